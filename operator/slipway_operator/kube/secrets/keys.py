"""Keeps and rotates the release's keys, and writes those of each namespace: before its pods and every few minutes."""

import secrets
import time
from collections.abc import Callable, Iterable

from slipway_operator.api.objects import Object
from slipway_operator.kube.client import Client
from slipway_operator.kube.secrets.kept import KeptSecret, Words
from slipway_operator.manifests.pods.tenant_key import namespace_secret, release_secret
from slipway_operator.model.cluster import keys
from slipway_operator.model.cluster.keys import Key


class Keys(KeptSecret[Key, tuple[Key, ...]]):
    """The keys by which pods and gateways know the tenant of a request. Without them pods run and honour no tenant."""

    task = "keys"
    words = Words(
        items="keys",
        refused="no tenant is honoured in new places",
        refused_in="model pods in %s honour no tenant, all share one cache and turn",
    )
    unreadable = keys.UnreadableKeys

    def __init__(
        self,
        client: Client,
        namespace: str,
        secret: str,
        rotation_s: float,
        served: Callable[[], Iterable[tuple[str, str]]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`rotation_s`: age of a key at which its successor is made; the others as for any KeptSecret."""
        super().__init__(client, namespace, secret, served, clock)
        self._rotation_s = rotation_s

    def token(self) -> str:
        """Return the token that authenticates the operator at gateways; "" while there are no keys."""
        return keys.operator_token(self._items[0]) if self._items else ""

    def _parse(self, data: dict[str, str]) -> tuple[Key, ...]:
        return keys.parse(data)

    def _next(self, known: tuple[Key, ...]) -> tuple[Key, ...]:
        now = self._clock()
        return keys.advance(known, now, self._rotation_s, keys.new_key(secrets.token_bytes(keys.KEY_BYTES + 4), now))

    def _manifest(self, items: tuple[Key, ...]) -> Object:
        return release_secret(self._namespace, self._secret, items)

    def _part(self, namespace: str) -> tuple[Key, ...]:
        return self._items

    def _part_manifest(self, namespace: str, part: tuple[Key, ...]) -> Object:
        return namespace_secret(namespace, part)
