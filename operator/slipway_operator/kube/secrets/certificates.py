"""Keeps the release's certificate authorities, and the certificates of gateways and of each namespace's pods."""

import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from slipway_operator.api.objects import Object
from slipway_operator.kube.client import Client
from slipway_operator.kube.secrets.kept import KeptSecret, Words
from slipway_operator.manifests.pods import certificate
from slipway_operator.model.cluster import authorities, certificates
from slipway_operator.model.cluster.authorities import Authority, Terms
from slipway_operator.model.cluster.certificates import Issued, Role
from slipway_process.network.mutual_tls import PemIdentity

SOON_S = 2.0  # gateways wait for their certificate to start, and a new process gets the lease after a moment


@dataclass(frozen=True, slots=True)
class CertificateSecrets:
    """Names in the release's namespace."""

    namespace: str
    authorities: str
    gateways: str


class Certificates(KeptSecret[Authority, Issued]):
    """The authorities that sign, and the certificate of each namespace: without it pods with TLS do not start."""

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
    ) -> None:
        """`terms`: how long certificates are valid; the others as for any KeptSecret."""
        super().__init__(client, names.namespace, names.authorities, served, clock)
        self._gateways = names.gateways
        self._terms = terms or Terms()
        self._issued: dict[Role, tuple[object, Issued]] = {}

    def identity(self) -> PemIdentity | None:
        """Return the operator's client certificate for gateways and pods; None while there is no authority."""
        if not self._items:
            return None
        issued = self._issue(certificate.OPERATOR)
        return PemIdentity(issued.certificate, issued.private_key, issued.ca)

    def forget(self, namespace: str) -> None:
        """Forget what a namespace was given; the next `keep` writes it again."""
        super().forget(namespace)
        self._issued.pop(certificate.pods_of(namespace), None)

    def _parse(self, data: dict[str, str]) -> tuple[Authority, ...]:
        return authorities.parse(data)

    def _next(self, known: tuple[Authority, ...]) -> tuple[Authority, ...]:
        now = self._clock()
        fresh = authorities.new_authority(secrets.token_bytes(authorities.SEED_BYTES + 4), now)
        return authorities.advance(known, now, self._terms, fresh)

    def _manifest(self, items: tuple[Authority, ...]) -> Object:
        return certificate.authorities_secret(self._namespace, self._secret, items, self._terms)

    def _part(self, namespace: str) -> Issued:
        return self._issue(certificate.pods_of(namespace))

    def _part_manifest(self, namespace: str, part: Issued) -> Object:
        return certificate.issued_secret(namespace, certificate.NAME, part)

    async def _keep_others(self) -> None:
        """Write the gateways' certificate. All operators issue the same bytes, so any of them may write it."""
        body = certificate.issued_secret(self._namespace, self._gateways, self._issue(certificate.GATEWAY))
        await self._write(await self._read(self._gateways), body)

    def _issue(self, role: Role) -> Issued:
        """Return the current certificate of a role; it is signed once for each period and set of authorities."""
        period = authorities.period(role.name, self._clock(), self._terms)
        inputs = (tuple(one.id for one in self._items), period)
        known = self._issued.get(role)
        if known is None or known[0] != inputs:
            known = self._issued[role] = (inputs, certificates.issue(self._items, role, period, self._terms))
        return known[1]
