"""The tokens of streams that broke, for clients that come back to this gateway: bounded in bytes and in time."""

from collections.abc import Callable
from hashlib import blake2b

from ..limits.budget import Budget
from ..upstream.exchange import Call
from ..wire.headers import TENANT

ENTRY_BYTES = 256  # what CPython takes for one beside its tokens


def name_of(stream: str, call: Call) -> bytes:
    """A stream together with its request: the tokens of an answer lead nobody on who asks something else."""
    said = blake2b(digest_size=16)
    for part in (stream, call.path, call.headers.get(TENANT, "")):
        said.update(part.encode() + b"\0")
    said.update(call.body)  # where it is: joined with the others it would be copied
    return said.digest()


class Memory:
    """The one that broke longest ago goes first, when this memory is full or requests need the room."""

    def __init__(self, size_bytes: int, window_s: float, clock: Callable[[], float], budget: Budget) -> None:
        self._limit_bytes, self._window_s, self._clock = size_bytes, window_s, clock
        self._kept: dict[bytes, tuple[float, bytes]] = {}
        self._account = budget.open("")
        budget.caches(self._reclaim)

    @property
    def size_bytes(self) -> int:
        return self._account.held_bytes

    def keep(self, name: bytes, tokens: bytes) -> None:
        """`tokens` as they are sent to servers, with commas. In place of what was kept under this name."""
        self._drop(name)
        if self._account.grow(ENTRY_BYTES + len(tokens)):
            return
        self._kept[name] = (self._clock(), tokens)
        self._tidy()

    def find(self, name: bytes) -> bytes:
        """Empty when there is nothing. It stays: a client may have to come back more than once."""
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
