"""Tokens of broken streams, for clients that reconnect to this gateway: bounded in bytes and time."""

from collections.abc import Callable
from hashlib import blake2b
from typing import NamedTuple

from slipway_contracts.headers import TENANT
from slipway_process.fair_memory import FairMemory

from ..limits.budget import MemoryBudget
from ..upstream.exchange import UpstreamRequest

ENTRY_BYTES = 256  # what CPython takes for one entry beside its tokens


def stream_key(stream: str, outgoing: UpstreamRequest) -> bytes:
    """Key of a stream and its request, so that tokens never continue a different request."""
    digest = blake2b(digest_size=16)
    for part in (stream, outgoing.path, outgoing.headers.get(TENANT, "")):
        digest.update(part.encode() + b"\0")
    digest.update(outgoing.body)  # not joined with the others, which would copy it
    return digest.digest()


class _Kept(NamedTuple):
    at_s: float
    client: str
    tokens: bytes


class ResumeMemory:
    """Tokens by `stream_key`.

    When the memory is full, or requests need its room, the client that has most there loses its oldest stream.
    """

    def __init__(self, size_bytes: int, window_s: float, clock: Callable[[], float], budget: MemoryBudget) -> None:
        self._window_s, self._clock = window_s, clock
        self._kept: dict[bytes, _Kept] = {}  # the oldest first
        self._shares: FairMemory[str, bytes, int] = FairMemory(size_bytes, int)  # by client: sizes of its streams
        self._account = budget.open("")
        budget.caches(self._account, self._reclaim)

    @property
    def size_bytes(self) -> int:
        return self._account.held_bytes

    def keep(self, name: bytes, tokens: bytes, client: str) -> None:
        """Keeps `tokens` as they are sent to servers, with commas; they replace earlier ones of the key `name`.

        Without room in the budget nothing is kept.
        """
        self._drop(name)
        size_bytes = ENTRY_BYTES + len(tokens)
        if self._account.grow(size_bytes):
            return
        self._kept[name] = _Kept(self._clock(), client, tokens)
        for former, _ in self._shares.put(client, name, size_bytes):
            self._forget(former)
        self._tidy()

    def find(self, name: bytes) -> bytes:
        """The tokens of a key; empty if there are none. The entry stays: a client may reconnect more than once."""
        self._tidy()
        return self._kept[name].tokens if name in self._kept else b""

    def _tidy(self) -> None:
        oldest_s = self._clock() - self._window_s
        while self._kept:
            name = next(iter(self._kept))
            if self._kept[name].at_s > oldest_s:
                return
            self._drop(name)

    def _drop(self, name: bytes) -> None:
        if name in self._kept:
            self._shares.pop(self._kept[name].client, name)
            self._forget(name)

    def _forget(self, name: bytes) -> None:
        self._account.shrink(ENTRY_BYTES + len(self._kept.pop(name).tokens))

    def _reclaim(self, wanted_bytes: int) -> int:
        before = self.size_bytes
        while self._kept and before - self.size_bytes < wanted_bytes:
            self._forget(self._shares.drop()[0])
        return before - self.size_bytes
