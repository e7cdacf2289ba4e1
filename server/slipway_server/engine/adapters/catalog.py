"""The names of adapters in the HTTP process: which ones requests may name, and how many requests use each. Pure."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...models.adapters.errors import AdapterError

MAX_ADAPTERS = 256


@dataclass(slots=True)
class CatalogEntry:
    """`digest`: of the adapter's files. `loaded`: in the kernels' memory now, or read again for its next request."""

    name: str
    path: str
    digest: str
    rank: int
    size_bytes: int
    loaded: bool = True
    created: int = field(default_factory=lambda: int(time.time()))


class UnknownAdapter(Exception):
    """There is no adapter of this name, or it is being unloaded."""


class AdapterCatalog:
    """`version` counts the changes of what is loaded: with the same version the list is the same."""

    def __init__(self, base: str) -> None:
        """`base`: the name of the model itself, which no adapter may have."""
        self._base = base
        self._entries: dict[str, CatalogEntry] = {}
        self._loading: set[str] = set()
        self._uses: dict[str, int] = {}
        self._idle: dict[str, asyncio.Event] = {}  # of adapters that are being unloaded
        self.version = 0

    @property
    def entries(self) -> list[CatalogEntry]:
        return list(self._entries.values())

    @property
    def names(self) -> frozenset[str]:
        """What `model` of a request may be."""
        return frozenset((self._base, *self._entries))

    @property
    def loaded(self) -> list[CatalogEntry]:
        return [entry for entry in self._entries.values() if entry.loaded]

    @property
    def used(self) -> list[str]:
        """The adapters that requests use."""
        return list(self._uses)

    def find(self, name: str) -> CatalogEntry | None:
        return self._entries.get(name)

    def digest_of(self, name: str) -> str:
        """The digest of an adapter; empty for the model itself. Raises UnknownAdapter."""
        if name in ("", self._base):
            return ""
        if (entry := self._entries.get(name)) is None:
            raise UnknownAdapter(name)
        return entry.digest

    @contextmanager
    def using(self, name: str) -> Iterator[str]:
        """Keeps an adapter from being unloaded, and yields its digest. Raises UnknownAdapter."""
        digest = self.digest_of(name)
        if digest:
            self._uses[name] = self._uses.get(name, 0) + 1
        try:
            yield digest
        finally:
            if digest:
                self._release(name)

    def _release(self, name: str) -> None:
        self._uses[name] -= 1
        if not self._uses[name]:
            del self._uses[name]
            if idle := self._idle.get(name):
                idle.set()

    @contextmanager
    def loading(self, name: str) -> Iterator[None]:
        """Reserves a name while its adapter is loaded. Raises AdapterError for one that is taken."""
        if name == self._base:
            raise AdapterError(f"{name!r} is the name of the model itself.", "lora_name")
        if name in self._entries:
            raise AdapterError(f"The lora adapter {name!r} has already been loaded.", "lora_name")
        if name in self._loading or name in self._idle:
            raise AdapterError(f"The lora adapter {name!r} is being loaded or unloaded.", "lora_name")
        if len(self._entries) + len(self._loading) >= MAX_ADAPTERS:
            raise AdapterError(f"There are {MAX_ADAPTERS} adapters, which is the limit: unload one.", "lora_name")
        self._loading.add(name)
        try:
            yield
        finally:
            self._loading.remove(name)

    def add(self, entry: CatalogEntry) -> None:
        self._entries[entry.name] = entry

    async def remove(self, name: str) -> str:
        """Removes a name, waits until no request uses it, and returns the digest if no other name has it, else "".

        Raises:
            UnknownAdapter: there is no such adapter.
        """
        if name not in self._entries:
            raise UnknownAdapter(name)
        entry = self._entries.pop(name)
        self.version += 1
        if name in self._uses:
            idle = self._idle[name] = asyncio.Event()
            try:
                await idle.wait()
            finally:
                del self._idle[name]
        shared = any(other.digest == entry.digest for other in self._entries.values())
        return "" if shared else entry.digest

    def set_loaded(self, sizes: dict[str, int]) -> None:
        """Applies what the engine has loaded: bytes by digest."""
        for entry in self._entries.values():
            entry.loaded = entry.digest in sizes
        self.version += 1
