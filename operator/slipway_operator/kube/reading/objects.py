"""Reads a ModelDeployment and its children: from the cache, and from the API server where that may be stale."""

from slipway_operator.api.objects import Object, ObjectKey
from slipway_operator.kube import subjects
from slipway_operator.kube.client import Client
from slipway_operator.kube.errors import NotFound
from slipway_operator.kube.ownership import is_leaving
from slipway_operator.kube.reading.cache import ByKind, ObjectCache


class ObjectReader:
    """`trusts_cache`: whether what is cached is read at all; without watches nothing keeps a cache up to date."""

    def __init__(self, client: Client, cache: ObjectCache, *, trusts_cache: bool = True) -> None:
        self._client, self._cache, self._trusts_cache = client, cache, trusts_cache
        self._doubted: set[ObjectKey] = set()

    def subjects(self) -> list[ObjectKey]:
        """Return the keys of the ModelDeployments and ModelAdapters that are cached."""
        return list(self._cache.subjects())

    def doubt(self, key: ObjectKey) -> None:
        """Read the ModelDeployment and its children from the API server until `trust` is called."""
        self._doubted.add(key)

    def trust(self, key: ObjectKey) -> None:
        """Read them from the cache again."""
        self._doubted.discard(key)

    def is_fresh(self, key: ObjectKey) -> bool:
        """Whether the next read goes to the API server."""
        return not self._trusts_cache or key in self._doubted

    async def deployment(self, key: ObjectKey) -> Object:
        """Return the ModelDeployment, or the ModelAdapter in the form of `kube.subjects`. Raises NotFound."""
        obj = None if self.is_fresh(key) else self._cache.get(key)
        if obj is None:
            obj = await subjects.read(self._client, key)
            if self._trusts_cache:
                self._cache.update(subjects.resource_of(key[1]), subjects.as_stored(obj))
        return obj

    async def base(self, key: ObjectKey) -> Object | None:
        """Return the ModelDeployment that serves an adapter; None where there is none, or it is being deleted."""
        try:
            obj = await self.deployment(key)
        except NotFound:
            return None
        return None if is_leaving(obj) else obj

    async def children(self, key: ObjectKey) -> ByKind:
        """Return the children of a ModelDeployment."""
        return await self.read_children(key) if self.is_fresh(key) else self._cache.children(key)

    async def read_children(self, key: ObjectKey) -> ByKind:
        """Return the children as the API server has them now."""
        return await self._cache.read(self._client, key)
