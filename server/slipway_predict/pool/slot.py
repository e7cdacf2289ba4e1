"""One model of the pool's file, in memory or not: who waits for it, why it failed, and how large it was."""

import asyncio
from dataclasses import dataclass, field

from slipway_process.backoff import Backoff
from slipway_process.model_folder.catalog import Fingerprint, PoolEntry

from .eviction import ModelInMemory
from .resident import Resident

BACKOFF = Backoff(1.0, 60.0)  # between two attempts to load a model that fails
# Estimate for a model that was never measured: an interpreter with its runtime, and memory for each byte of its files.
BASE_BYTES, BYTES_PER_FILE_BYTE = 160 << 20, 3


class PoolError(Exception):
    """Why a request does not get its model. `retry_after_s`: seconds after which another try may succeed."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnknownModel(PoolError):
    """The pool's file does not have the model."""


class UnknownVersion(PoolError):
    """The file has other versions of the model."""


class ModelBusy(PoolError):
    """The model has as many requests as it may have at a time."""


class StillLoading(PoolError):
    """The time to wait for the model is over, or too many models wait to be loaded."""


class LoadFailed(PoolError):
    """The model cannot be loaded now."""


class ModelPinned(PoolError):
    """A pinned model cannot be unloaded."""


@dataclass(frozen=True, slots=True)
class Failure:
    reason: str
    until_s: float  # no attempt before
    attempts: int
    fingerprint: Fingerprint | None  # of the files that failed


@dataclass(slots=True, eq=False)
class ModelSlot:
    entry: PoolEntry
    resident: Resident | None = None
    load: "asyncio.Future[None] | None" = None  # queued or running
    leaving: int = 0  # residents of the model that end now
    in_flight: int = 0  # requests that hold it or wait for it
    waiting: int = 0  # those of them that wait
    failure: Failure | None = None
    removed: bool = False  # from the file
    known: tuple[Fingerprint, int] | None = None  # how large these files were in memory
    seen: Fingerprint | None = None  # other files than the loaded ones, at the last look
    _attempts: int = field(default=0, repr=False)

    @property
    def state(self) -> str:
        """READY, LOADING, UNLOADING or UNAVAILABLE, as in the index of the Open Inference Protocol."""
        if self.resident and self.resident.available:
            return "READY"
        if self.load or self.resident:
            return "LOADING"
        return "UNLOADING" if self.leaving else "UNAVAILABLE"

    @property
    def reason(self) -> str:
        if self.failure:
            return self.failure.reason
        return "unloaded" if self.state == "UNAVAILABLE" else ""

    def need_bytes(self, found: Fingerprint, limit_bytes: int) -> int:
        """Bytes to reserve for the model: as much as these files took the last time, or an estimate."""
        if self.known and self.known[0] == found:
            return self.known[1]
        return min(limit_bytes, BASE_BYTES + BYTES_PER_FILE_BYTE * found.size_bytes)

    def failed(self, reason: str, now_s: float, found: Fingerprint | None) -> None:
        """Note a failed load. The next attempt waits."""
        self._attempts += 1
        self.failure = Failure(reason, now_s + BACKOFF.delay_s(self._attempts), self._attempts, found)

    def succeeded(self) -> None:
        self.failure, self._attempts = None, 0

    def forgive(self) -> None:
        """Allow the next attempt at once: a load was requested explicitly, or the files have changed."""
        if self.failure:
            self.failure = Failure(self.failure.reason, 0.0, self.failure.attempts, self.failure.fingerprint)

    def check_failure(self, now_s: float) -> None:
        """Raises LoadFailed while a failed model is not tried again."""
        if self.failure and now_s < self.failure.until_s:
            raise LoadFailed(self.failure.reason, self.failure.until_s - now_s)

    def in_memory(self, resident: Resident) -> ModelInMemory:
        """The model for `eviction`. While its successor loads it counts as not pinned, and may leave before."""
        return ModelInMemory(
            self.entry.key,
            resident.size_bytes,
            resident.loaded_s,
            resident.last_used_s,
            busy=resident.in_hand > 0 or self.waiting > 0,
            pinned=self.entry.pinned and self.load is None,
        )
