"""Keeps the release's certificate authorities, and the certificates of gateways and of each namespace's pods."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from slipway_operator.api.objects import Object
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, Exists, Fenced, NotFound, Refused, Stale
from slipway_operator.kube.resources import SECRETS
from slipway_operator.manifests.pods import certificate
from slipway_operator.model.cluster import authorities, certificates
from slipway_operator.model.cluster.authorities import Authority, Terms, UnreadableAuthorities
from slipway_operator.model.cluster.certificates import Issued, Role
from slipway_process.network.mutual_tls import PemIdentity

LOOK_S, SOON_S = 60.0, 2.0  # between two reads of the Secret; without it no gateway starts
AGAIN_AFTER_S = 240.0  # shorter than the resync period: manual changes in a namespace are reverted

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CertificateSecrets:
    """Names in the release's namespace."""

    namespace: str
    authorities: str
    gateways: str


class Certificates:
    """What signs, and which certificate each namespace was given."""

    def __init__(
        self,
        client: Client,
        names: CertificateSecrets,
        served: Callable[[], Iterable[tuple[str, str]]],
        terms: Terms | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`served`: namespace and name of each ModelDeployment. `clock`: Unix seconds."""
        self._client, self._names, self._served, self._clock = client, names, served, clock
        self._terms = terms or Terms()
        self._authorities: tuple[Authority, ...] = ()
        self._given: dict[str, tuple[Issued, float]] = {}  # by namespace: what, and when
        self._issued: dict[Role, tuple[object, Issued]] = {}
        self._lock = asyncio.Lock()
        self._trouble = ""

    def identity(self) -> PemIdentity | None:
        """Return what the operator shows to gateways and pods; None while there is no authority."""
        if not self._authorities:
            return None
        issued = self._issue(certificate.OPERATOR)
        return PemIdentity(issued.certificate, issued.private_key, issued.ca)

    async def keep(self, namespace: str) -> None:
        """Write the certificate of a namespace's pods unless it was written lately.

        Without the permission a warning is logged: pods with TLS do not start there. Any other ApiError is raised
        before pods exist.
        """
        if not self._authorities:
            await self.look()
        if not self._authorities:
            return
        issued, (given, at) = self._issue(certificate.pods_of(namespace)), self._given.get(namespace, (None, 0.0))
        if given == issued and self._clock() - at < AGAIN_AFTER_S:
            return
        try:
            await self._client.apply(SECRETS, certificate.issued_secret(namespace, certificate.NAME, issued))
        except Refused as error:
            log.warning("pods with TLS do not start in %s, they have no certificate: %s", namespace, error)
        self._given[namespace] = (issued, self._clock())

    async def run(self) -> None:
        """Take each step when it is due, until cancelled."""
        while True:
            pause_s = LOOK_S
            try:
                await self.look()
                await self._give_all()
            except Fenced:
                pause_s = SOON_S  # the lease comes a moment after the process, or another operator writes this
            except ApiError as error:
                self._log_once(f"the certificates cannot be kept: {error}")
            await asyncio.sleep(pause_s)

    async def look(self) -> None:
        """Read the Secret, write the step that is due, and then the certificate of the gateways.

        Raises:
            ApiError: when the API server is unavailable, or another writer was faster.
        """
        async with self._lock:
            try:
                self._authorities = await self._advance(await self._read(self._names.authorities))
                await self._keep_gateways()
            except Refused as error:
                self._log_once(f"there are no certificates, their Secrets cannot be kept: {error}")
            except UnreadableAuthorities as error:
                where = f"{self._names.namespace}/{self._names.authorities}"
                self._log_once(f"Secret {where}: {error}; delete it, then the operator writes it again")
            else:
                self._trouble = ""

    def forget(self, namespace: str) -> None:
        """Forget what a namespace was given; the next `keep` writes it again."""
        self._given.pop(namespace, None)
        self._issued.pop(certificate.pods_of(namespace), None)

    async def _read(self, name: str) -> Object | None:
        try:
            return await self._client.get(SECRETS, self._names.namespace, name)
        except NotFound:
            return None

    async def _advance(self, found: Object | None) -> tuple[Authority, ...]:
        """Return the authorities after the step that is due. A deleted or emptied Secret is restored from memory."""
        now = self._clock()
        known = (authorities.parse(found.get("data") or {}) if found else ()) or self._authorities
        fresh = authorities.new_authority(secrets.token_bytes(authorities.SEED_BYTES + 4), now)
        content = authorities.advance(known, now, self._terms, fresh)
        own = self._names
        body = certificate.authorities_secret(own.namespace, own.authorities, content, self._terms)
        try:
            await self._write(found, body)
        except (Fenced, Stale, Exists):
            if not known:
                raise
            return known
        if content != known:
            log.info("the release's certificate authorities are now %s", ", ".join(one.id for one in content))
        return content

    async def _keep_gateways(self) -> None:
        """Write the gateways' certificate. Another operator's is the same, so a lost race is no loss."""
        own = self._names
        body = certificate.issued_secret(own.namespace, own.gateways, self._issue(certificate.GATEWAY))
        await self._write(await self._read(own.gateways), body)

    async def _write(self, found: Object | None, body: Object) -> None:
        """Write what differs, conditionally: of two operators the second one reads again."""
        if found is None:
            await self._client.create(SECRETS, body)
        elif (found.get("data") or {}) != body["data"]:
            metadata = {**found["metadata"], "labels": body["metadata"]["labels"]}
            await self._client.replace(SECRETS, {**body, "metadata": metadata, "type": found.get("type", "Opaque")})

    async def _give_all(self) -> None:
        for namespace in sorted({namespace for namespace, _ in self._served()}):
            given = self._given.get(namespace)
            if self._authorities and given and given[0] == self._issue(certificate.pods_of(namespace)):
                continue  # its reconciles repair it
            try:
                await self.keep(namespace)
            except Fenced:
                raise
            except ApiError as error:  # a namespace that is being deleted must not block the others
                log.warning("namespace %s has not the newest certificate yet: %s", namespace, error)

    def _issue(self, role: Role) -> Issued:
        """The certificate of a role now; signed once for each period and set of authorities."""
        period = authorities.period(role.name, self._clock(), self._terms)
        inputs = (tuple(one.id for one in self._authorities), period)
        known = self._issued.get(role)
        if known is None or known[0] != inputs:
            known = self._issued[role] = (inputs, certificates.issue(self._authorities, role, period, self._terms))
        return known[1]

    def _log_once(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            log.warning("%s", trouble)
