"""Keeps the certificates of gateways and of each namespace's pods, by the release's authorities or by an issuer."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from slipway_operator.api.objects import Object, ObjectKey
from slipway_operator.component import ReconciledDeployment
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import NotFound
from slipway_operator.kube.resources import SECRETS
from slipway_operator.kube.secrets.cert_manager import CertManagerSource
from slipway_operator.kube.secrets.kept import KeptSecret, Words
from slipway_operator.manifests.pods import certificate
from slipway_operator.model.cluster import authorities, certificates
from slipway_operator.model.cluster.authorities import Terms
from slipway_operator.model.cluster.certificates import CA, Issued, Role
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.issuing import trust
from slipway_operator.model.issuing.issuer import Candidate, IssuerRef
from slipway_operator.model.issuing.trust import Anchor
from slipway_process.network.mutual_tls import PemIdentity

SOON_S = 2.0  # gateways wait for their certificate to start, and a new process gets the lease after a moment


@dataclass(frozen=True, slots=True)
class CertificateSecrets:
    """Names in the release's namespace."""

    namespace: str
    authorities: str
    gateways: str

    def requested(self, role: str) -> str:
        """Return the name of a role's Certificate of cert-manager and of the Secret that it makes of it."""
        return f"{self.authorities.removesuffix('-ca')}-{role}"


class Certificates(KeptSecret[Anchor, Issued]):
    """Who signs, and the certificate of each namespace: without it pods with TLS do not start.

    Without a usable certificate of the issuer, `Issued` has CAs alone: the former certificate stays where there is one.
    """

    task = "certificates"
    words = Words(
        items="certificate authorities",
        refused="there are no certificates",
        refused_in="pods with TLS do not start in %s, they have no certificate",
    )
    unreadable = authorities.UnreadableAuthorities
    fenced_pause_s = SOON_S

    def __init__(
        self,
        client: Client,
        names: CertificateSecrets,
        served: Callable[[], Iterable[tuple[str, str]]],
        terms: Terms | None = None,
        clock: Callable[[], float] = time.time,
        *,
        issuer: IssuerRef | None = None,
    ) -> None:
        """`terms`: how long certificates are valid; the others as for any KeptSecret.

        `issuer`: of cert-manager; None: the release's authorities sign.
        """
        super().__init__(client, names.namespace, names.authorities, served, clock)
        self._names, self._terms = names, terms or Terms()
        self._issued: dict[Role, tuple[object, Issued]] = {}
        self._kept: set[str] = set()  # namespaces of pools need have no ModelDeployment
        self._shown: Candidate | None = None
        self._new = asyncio.Event()
        self._issuer = issuer
        self._source = CertManagerSource(client, names.namespace, issuer, self._terms, clock) if issuer else None

    def identity(self) -> PemIdentity | None:
        """Return the operator's client certificate for gateways and pods; None while there is none."""
        if not self._items:
            return None
        issued = self._issue(certificate.OPERATOR)
        if issued.certificate:
            return PemIdentity(issued.certificate, issued.private_key, issued.ca)
        # After a restart there is no former one to go on with, and gateways get a new CA within minutes.
        shown = self._shown or self._candidate(certificate.OPERATOR)
        return PemIdentity(shown.certificate, shown.private_key, issued.ca) if shown else None

    async def keep(self, namespace: str) -> None:
        """Write a namespace's certificate, as any KeptSecret; with an issuer it comes some seconds later."""
        if self._source and namespace not in self._kept:
            self._kept.add(namespace)
            await self.look()
            self._new.set()
        await super().keep(namespace)

    async def look(self) -> None:
        """Read what the issuer gave, then look as any KeptSecret."""
        if self._source:
            await self._source.refresh(self._roles())
        await super().look()

    def observe(self, deployment: ReconciledDeployment, observed: Observed) -> Observed:
        """Return the observed state with what keeps pods from a certificate."""
        return replace(observed, certificate=self.problem(deployment.key[0]))

    def forget(self, key: ObjectKey) -> None:
        """Forget what the namespace of a ModelDeployment was given; the next `keep` writes it again."""
        super().forget(key)
        self._issued.pop(certificate.pods_of(key[0]), None)

    def problem(self, namespace: str) -> str | None:
        """Return why the issuer gives pods of a namespace no certificate; empty when it does.

        None: not known yet, or without an issuer.
        """
        role = certificate.pods_of(namespace)
        why = self._source.problem(role) if self._source else None
        if not why:
            return why
        return f"Certificate {self._namespace}/{self._roles()[role]} of the issuer {self._issuer}: {why}"

    def _roles(self) -> dict[Role, str]:
        namespaces = self._kept | {namespace for namespace, _ in self._served()}
        pods = {certificate.pods_of(name): self._names.requested(f"pods-{name}") for name in sorted(namespaces)}
        own = {certificate.GATEWAY: "gateway", certificate.OPERATOR: "operator"}
        return {role: self._names.requested(name) for role, name in own.items()} | pods

    def _parse(self, data: dict[str, str]) -> tuple[Anchor, ...]:
        return trust.parse(data)

    def _next(self, known: tuple[Anchor, ...]) -> tuple[Anchor, ...]:
        now = self._clock()
        fresh = authorities.new_authority(secrets.token_bytes(authorities.SEED_BYTES + 4), now)
        return trust.advance(known, self._source.offer() if self._source else None, now, self._terms, fresh)

    def _manifest(self, items: tuple[Anchor, ...]) -> Object:
        return certificate.authorities_secret(self._namespace, self._secret, items, self._terms)

    def _part(self, namespace: str) -> Issued:
        return self._issue(certificate.pods_of(namespace))

    def _part_manifest(self, namespace: str, part: Issued) -> Object:
        return certificate.issued_secret(namespace, certificate.NAME, part)

    async def _give(self, namespace: str, part: Issued) -> None:
        if part.certificate:
            await super()._give(namespace, part)
            return
        with contextlib.suppress(NotFound):  # no pods with TLS yet
            await self._client.patch(SECRETS, namespace, certificate.NAME, {"data": {CA: part.data()[CA]}})

    async def _pause(self, seconds: float) -> None:
        seconds = SOON_S if self._source and self._source.waits else seconds
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._new.wait()
        self._new.clear()

    async def _keep_others(self) -> None:
        """Write the gateways' certificate. All operators issue the same bytes, so any of them may write it."""
        if not self._items:
            return
        issued, found = self._issue(certificate.GATEWAY), await self._read(self._names.gateways)
        body = certificate.issued_secret(self._namespace, self._names.gateways, issued)
        if not issued.certificate:
            if not found:
                return
            body["data"] = {**(found.get("data") or {}), CA: body["data"][CA]}
        await self._write(found, body)

    def _issue(self, role: Role) -> Issued:
        """Return the current certificate of a role; an own one is signed once for each period and set of anchors."""
        if trust.issuer_signs(self._items):
            found = self._candidate(role)
            ca = certificate.bundle(self._items, self._terms)
            if not found or not trust.is_trusted(self._items, found.cas, self._clock(), self._terms):
                return Issued("", "", ca)
            self._shown = found if role == certificate.OPERATOR else self._shown
            return Issued(found.certificate, found.private_key, ca)
        period = authorities.period(role.name, self._clock(), self._terms)
        inputs = (tuple(one.id for one in self._items), period)
        known = self._issued.get(role)
        if known is None or known[0] != inputs:
            issued = certificates.issue(trust.own(self._items), role, period, self._terms)
            issued = replace(issued, ca=certificate.bundle(self._items, self._terms))
            known = self._issued[role] = (inputs, issued)
        return known[1]

    def _candidate(self, role: Role) -> Candidate | None:
        return self._source.candidate(role) if self._source else None
