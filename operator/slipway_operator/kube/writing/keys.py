"""Keeps and rotates the release's keys, and writes those of each namespace: before its pods and every few minutes."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable

from slipway_operator.api.objects import Object
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import ApiError, Exists, Fenced, NotFound, Refused, Stale
from slipway_operator.kube.resources import SECRETS
from slipway_operator.manifests.pods.tenant_key import namespace_secret, release_secret
from slipway_operator.model.cluster import keys
from slipway_operator.model.cluster.keys import Key

LOOK_S = 60.0  # between two reads of the release's Secret
AGAIN_AFTER_S = 240.0  # shorter than the resync period: manual changes in a namespace are reverted


log = logging.getLogger(__name__)


class Keys:
    """The keys in the release's Secret, and which of them each namespace was given."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        secret: str,
        rotation_s: float,
        served: Callable[[], Iterable[tuple[str, str]]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`served`: namespace and name of each ModelDeployment. `clock`: Unix seconds."""
        self._client, self._served, self._clock = client, served, clock
        self._namespace, self._secret, self._rotation_s = namespace, secret, rotation_s
        self._keys: tuple[Key, ...] = ()
        self._given: dict[str, tuple[tuple[Key, ...], float]] = {}  # by namespace: what, and when
        self._lock = asyncio.Lock()
        self._trouble = ""

    def token(self) -> str:
        """Return the token that authenticates the operator at gateways; "" while there are no keys."""
        return keys.operator_token(self._keys[0]) if self._keys else ""

    async def keep(self, namespace: str) -> None:
        """Write a namespace's keys unless they were written lately.

        Without the permission, or without keys, pods run and honour no tenant there, and a warning is logged. Any
        other ApiError is raised before pods exist.
        """
        if not self._keys:
            await self.look()
        given, at = self._given.get(namespace, ((), 0.0))
        if not self._keys or (given == self._keys and self._clock() - at < AGAIN_AFTER_S):
            return
        content = self._keys
        try:
            await self._client.apply(SECRETS, namespace_secret(namespace, content))
        except Refused as error:
            log.warning("model pods in %s honour no tenant, all share one cache and turn: %s", namespace, error)
        self._given[namespace] = (content, self._clock())

    async def run(self) -> None:
        """Check the keys every LOOK_S until cancelled; changes are written to all namespaces at once."""
        while True:
            try:
                await self.look()
                await self._give_all()
            except Fenced:
                pass  # another operator has the lease and does this
            except ApiError as error:
                self._log_once(f"the keys cannot be kept: {error}")
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Read the Secret, and write the rotation step that is due.

        Raises:
            ApiError: when the API server is unavailable, or another writer was faster.
        """
        async with self._lock:
            try:
                found = await self._read()
                self._keys = await self._advance(found)
            except Refused as error:
                self._log_once(f"no tenant is honoured in new places, the keys cannot be kept: {error}")
            except keys.UnreadableKeys as error:
                where = f"{self._namespace}/{self._secret}"
                self._log_once(f"Secret {where}: {error}; delete it, then the operator writes it again")
            else:
                self._trouble = ""

    async def _read(self) -> Object | None:
        try:
            return await self._client.get(SECRETS, self._namespace, self._secret)
        except NotFound:
            return None

    async def _advance(self, found: Object | None) -> tuple[Key, ...]:
        """Return the keys after the step that is due. A deleted or emptied Secret is restored: pods have its keys."""
        now = self._clock()
        known = (keys.parse(found.get("data") or {}) if found else ()) or self._keys
        fresh = keys.new_key(secrets.token_bytes(keys.KEY_BYTES + 4), now)
        content = keys.advance(known, now, self._rotation_s, fresh)
        body = release_secret(self._namespace, self._secret, content)
        if found and (found.get("data") or {}) == body["data"]:
            return content
        try:
            await self._write(found, body)
        except (Fenced, Stale, Exists):
            if not known:
                raise
            return known
        if content != known:
            log.info("the release's keys are now %s", ", ".join(key.id for key in content))
        return content

    async def _write(self, found: Object | None, body: Object) -> None:
        """Write conditionally: of two operators the second one reads again."""
        if found is None:
            await self._client.create(SECRETS, body)
        else:
            metadata = {**found["metadata"], "labels": body["metadata"]["labels"]}
            await self._client.replace(SECRETS, {**body, "metadata": metadata, "type": found.get("type", "Opaque")})

    async def _give_all(self) -> None:
        for namespace in sorted({namespace for namespace, _ in self._served()}):
            if self._given.get(namespace, ((), 0.0))[0] == self._keys:
                continue  # its reconciles repair it
            try:
                await self.keep(namespace)
            except Fenced:
                raise
            except ApiError as error:  # a namespace that is being deleted must not block the others
                log.warning("namespace %s has not the newest keys yet: %s", namespace, error)

    def forget(self, namespace: str) -> None:
        """Forget what a namespace was given; the next `keep` writes it again."""
        self._given.pop(namespace, None)

    def _log_once(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            log.warning("%s", trouble)
