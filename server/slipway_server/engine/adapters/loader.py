"""The thread that reads adapters and converts them for the kernels, while steps go on. One adapter at a time."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import torch

from slipway_process.supervisor import keep_thread

from ...kernels.low_rank import Adaptable, Prepared, UpdateRefused
from ...models.adapters import folder
from ...models.adapters.errors import AdapterError
from ...models.adapters.folder import AdapterLimits
from ...models.adapters.targets import Target

log = logging.getLogger("slipway.adapters")

# Of the thread, and of those that torch starts for it: where cores are few, steps have them first.
NICENESS = 10

Operations = Sequence[Mapping[str, Adaptable]]  # of each layer, by name


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    """Everything is in the kernels' layout; putting it into a slot takes no time."""

    path: str
    digest: str
    rank: int
    size_bytes: int
    seconds: float
    prepared: Mapping[tuple[int, str], Prepared]


@dataclass(frozen=True, slots=True)
class FailedAdapter:
    path: str
    reason: str
    field: str


class AdapterLoader:
    def __init__(
        self,
        limits: AdapterLimits,
        targets: Mapping[str, Target],
        parts: Mapping[str, int],
        operations: Operations,
    ) -> None:
        self._limits, self._targets, self._parts, self._operations = limits, targets, parts, operations
        self._jobs: SimpleQueue[str] = SimpleQueue()
        self._results: SimpleQueue[LoadedAdapter | FailedAdapter] = SimpleQueue()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._started = False

    def fileno(self) -> int:
        """The descriptor that is readable when `take` may return something."""
        return self._wake_read

    def load(self, path: str) -> None:
        """Has the thread read the adapter; `take` returns what came of it."""
        if not self._started:
            self._started = True
            # It waits for jobs as long as the process lives.
            kept = ("adapters", self._run, lambda name: log.error("a thread failed", extra={"thread": name}))
            threading.Thread(target=keep_thread, args=(*kept, threading.Event()), name="adapters", daemon=True).start()
        self._jobs.put(path)

    def take(self) -> LoadedAdapter | FailedAdapter | None:
        """What came of an adapter; None where nothing has since the last call."""
        # First the descriptor: a result that comes after this makes it readable again.
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 64)
        try:
            return self._results.get_nowait()
        except Empty:
            return None

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while True:
            path = self._jobs.get()
            self._results.put(self.read(path))
            os.write(self._wake_write, b"1")

    def read(self, path: str) -> LoadedAdapter | FailedAdapter:
        """Checks, reads and converts an adapter."""
        began_s = time.monotonic()
        try:
            with torch.inference_mode():
                return self._read(path, began_s)
        except AdapterError as error:
            return FailedAdapter(path, str(error), error.field)
        except UpdateRefused as error:
            return FailedAdapter(path, f"{error}.", str(error).partition(":")[0])
        except OSError as error:
            return FailedAdapter(path, f"The adapter cannot be read: {error.strerror}.", "lora_path")
        except MemoryError:
            return FailedAdapter(path, "There is not enough memory for the adapter.", "lora_path")
        except Exception as error:  # a bug of ours: the thread goes on
            log.exception("an adapter failed", extra={"path": path})
            return FailedAdapter(path, f"The adapter cannot be loaded: {type(error).__name__}.", "lora_path")

    def _read(self, path: str, began_s: float) -> LoadedAdapter:
        files = folder.check(path, self._limits, self._targets)
        adapter = folder.read(files, self._targets, self._parts)
        prepared: dict[tuple[int, str], Any] = {}
        for (layer, operation), update in adapter.updates.items():
            prepared[layer, operation] = self._operations[layer][operation].prepare(update)
        size_bytes = sum(each.size_bytes for each in prepared.values())
        seconds = time.monotonic() - began_s
        return LoadedAdapter(path, adapter.digest, adapter.rank, size_bytes, seconds, prepared)
