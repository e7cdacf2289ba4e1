"""The certificate of the conversion webhook: authorities in a Secret, and what follows from them and the time (D29)."""

import base64
import secrets
import time
from collections.abc import Callable, Sequence

from slipway_operator.api.objects import Object
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import Exists, Fenced, NotFound, Stale
from slipway_operator.kube.resources import SECRETS
from slipway_operator.manifests.pods.tenant_key import kept_secret
from slipway_operator.model.cluster import authorities, certificates
from slipway_operator.model.cluster.authorities import Authority, Terms
from slipway_operator.model.cluster.certificates import CA, Issued, Role
from slipway_operator.model.cluster.webhook_host import WebhookHost

COMPONENT = "conversion-webhook"


class ConversionCa:
    """All operators of a release read the same Secret and issue the same bytes, so that any of them can answer."""

    def __init__(
        self, client: Client, host: WebhookHost, terms: Terms | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        """`clock`: Unix seconds."""
        self._client, self._host, self._clock = client, host, clock
        self._terms = terms or Terms()
        self._known: tuple[Authority, ...] = ()

    async def look(self) -> Issued | None:
        """The certificate that is served now. None: the Secret does not exist yet, and another operator makes it.

        Raises:
            ApiError: the Secret cannot be read or made.
            UnreadableAuthorities: no operator wrote it so.
        """
        self._known = tuple(await self._advance(await self._read()))
        if not self._known:
            return None
        role = Role(self._host.dns_name, serves=True, connects=False)
        period = authorities.period(role.name, self._clock(), self._terms)
        return certificates.issue(self._known, role, period, self._terms)

    async def _read(self) -> Object | None:
        try:
            return await self._client.get(SECRETS, self._host.namespace, self._host.secret)
        except NotFound:
            return None

    async def _advance(self, found: Object | None) -> Sequence[Authority]:
        """Take the step of the rotation that is due. A Secret that is deleted is restored from memory."""
        known = (authorities.parse(found.get("data") or {}) if found else ()) or self._known
        now = self._clock()
        fresh = authorities.new_authority(secrets.token_bytes(authorities.SEED_BYTES + 4), now)
        items = authorities.advance(known, now, self._terms, fresh)
        body = self._manifest(items)
        try:
            if found is None:
                await self._client.create(SECRETS, body)
            elif (found.get("data") or {}) != body["data"]:
                await self._client.replace(SECRETS, {**body, "metadata": {**found["metadata"], **_labels(body)}})
        except (Fenced, Stale, Exists):
            return known  # another operator's work, which the next look finds
        return items

    def _manifest(self, items: Sequence[Authority]) -> Object:
        ca = base64.b64encode(certificates.bundle(items, self._terms).encode()).decode()
        data = {authorities.DATA: authorities.render(items), CA: ca}
        return kept_secret(self._host.namespace, self._host.secret, COMPONENT, data)


def _labels(body: Object) -> Object:
    return {"labels": body["metadata"]["labels"]}
