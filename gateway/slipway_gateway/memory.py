"""The tokens of streams that broke, for clients that come back to this gateway: bounded in bytes and in time."""

from collections.abc import Callable
from hashlib import blake2b

from .exchange import Call
from .wire.headers import TENANT

ENTRY_BYTES = 256  # what CPython takes for one beside its tokens


def name_of(stream: str, call: Call) -> bytes:
    """A stream together with its request: the tokens of an answer lead nobody on who asks something else."""
    said = (stream, call.path, call.headers.get(TENANT, ""))
    return blake2b(b"\0".join((*map(str.encode, said), call.body)), digest_size=16).digest()


class Memory:
    """The one that broke longest ago goes first."""

    def __init__(self, size_bytes: int, window_s: float, clock: Callable[[], float]) -> None:
        self._limit_bytes, self._window_s, self._clock = size_bytes, window_s, clock
        self._kept: dict[bytes, tuple[float, bytes]] = {}
        self.size_bytes = 0

    def keep(self, name: bytes, tokens: bytes) -> None:
        """`tokens` as they are sent to servers, with commas. In place of what was kept under this name."""
        self._drop(name)
        self._kept[name] = (self._clock(), tokens)
        self.size_bytes += ENTRY_BYTES + len(tokens)
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
            self.size_bytes -= ENTRY_BYTES + len(self._kept.pop(name)[1])
