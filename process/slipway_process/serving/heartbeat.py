"""The engine's heartbeat in shared memory: it can be read while the engine, the event loop, or both are stuck."""

import mmap
import os
import struct

# Monotonic seconds of the last beat (0: still loading), steps done. The clock is the machine's, so both processes read
# the same one; eight aligned bytes are written at once on every platform that we run on.
_BEAT = struct.Struct("=d")
_STEPS = struct.Struct("=Q")
SIZE_BYTES = _BEAT.size + _STEPS.size


class Heartbeat:
    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._memory = mmap.mmap(fd, SIZE_BYTES)

    @classmethod
    def create(cls) -> "Heartbeat":
        fd = os.memfd_create("slipway-heartbeat")
        os.ftruncate(fd, SIZE_BYTES)
        return cls(fd)

    def beat(self, now_s: float, *, steps: int) -> None:
        _STEPS.pack_into(self._memory, _BEAT.size, steps)
        _BEAT.pack_into(self._memory, 0, now_s)

    @property
    def steps(self) -> int:
        return int(_STEPS.unpack_from(self._memory, _BEAT.size)[0])

    def age_s(self, now_s: float) -> float:
        """Seconds since the last beat; 0 before the first one."""
        last = float(_BEAT.unpack_from(self._memory, 0)[0])
        return now_s - last if last else 0.0

    def close(self) -> None:
        self._memory.close()
        os.close(self.fd)
