"""Tokens of broken streams, for clients that reconnect to this gateway: bounded in bytes and time."""

from collections.abc import Callable
from hashlib import blake2b

from ..limits.budget import MemoryBudget
from ..upstream.exchange import UpstreamRequest
from ..wire.headers import TENANT

ENTRY_BYTES = 256  # what CPython takes for one entry beside its tokens


def stream_key(stream: str, outgoing: UpstreamRequest) -> bytes:
    """Key of a stream and its request, so that tokens never continue a different request."""
    digest = blake2b(digest_size=16)
    for part in (stream, outgoing.path, outgoing.headers.get(TENANT, "")):
        digest.update(part.encode() + b"\0")
    digest.update(outgoing.body)  # not joined with the others, which would copy it
    return digest.digest()


class ResumeMemory:
    """Tokens by `stream_key`. The oldest stream is evicted first, when the memory is full or requests need its room."""

    def __init__(self, size_bytes: int, window_s: float, clock: Callable[[], float], budget: MemoryBudget) -> None:
        self._limit_bytes, self._window_s, self._clock = size_bytes, window_s, clock
        self._kept: dict[bytes, tuple[float, bytes]] = {}
        self._account = budget.open("")
        budget.caches(self._reclaim)

    @property
    def size_bytes(self) -> int:
        return self._account.held_bytes

    def keep(self, name: bytes, tokens: bytes) -> None:
        """Keeps `tokens` as they are sent to servers, with commas; they replace earlier ones of the key `name`.

        Without room in the budget nothing is kept.
        """
        self._drop(name)
        if self._account.grow(ENTRY_BYTES + len(tokens)):
            return
        self._kept[name] = (self._clock(), tokens)
        self._tidy()

    def find(self, name: bytes) -> bytes:
        """The tokens of a key; empty if there are none. The entry stays: a client may reconnect more than once."""
        self._tidy()
        return self._kept[name][1] if name in self._kept else b""

    def _tidy(self) -> None:
        oldest_s = self._clock() - self._window_s
        while self._kept:
            name = next(iter(self._kept))
            if self._kept[name][0] > oldest_s and self.size_bytes <= self._limit_bytes:
                return
            self._drop(name)

    def _drop(self, name: bytes) -> None:
        if name in self._kept:
            self._account.shrink(ENTRY_BYTES + len(self._kept.pop(name)[1]))

    def _reclaim(self, wanted_bytes: int) -> int:
        before = self.size_bytes
        while self._kept and before - self.size_bytes < wanted_bytes:
            self._drop(next(iter(self._kept)))
        return before - self.size_bytes
