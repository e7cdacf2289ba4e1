"""One life of a model in memory: its process, who holds it, and how much it takes."""

import asyncio
import contextlib
import logging
import time
from typing import Protocol

from slipway_process.model_folder.catalog import Fingerprint, PoolEntry
from slipway_process.serving.restarts import EngineCrashed, EngineError, Restarts, keep_running

from ..executor import Executor
from ..process.messages import LoadModel, ModelLoaded

log = logging.getLogger("slipway.pool")


class ModelHost(Protocol):
    """What answers the requests of a model that is in memory."""

    @property
    def executor(self) -> Executor: ...

    def ready(self, loaded: ModelLoaded) -> None: ...

    def crashed(self) -> None: ...

    def restarted(self) -> None: ...

    def peak_bytes(self) -> int: ...

    async def end(self) -> None: ...


class Resident:
    """One model in memory. Its process is started again after a crash, as often as that of a server's only model."""

    def __init__(self, entry: PoolEntry, host: ModelHost, print_: Fingerprint, reserved_bytes: int, most: int) -> None:
        """`reserved_bytes` count until the memory is measured. `most`: restarts within a while."""
        self.entry, self.host, self.fingerprint = entry, host, print_
        self.size_bytes = reserved_bytes
        self.in_hand = 0  # requests that hold the model
        self.loaded_s = self.last_used_s = time.monotonic()
        self._idle, self._available = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._restarts = Restarts(most)
        self._life: asyncio.Task[None] | None = None

    @property
    def available(self) -> bool:
        """Whether requests can be computed now: not while the model's process starts or restarts."""
        return self._available.is_set()

    def start(self, message: LoadModel) -> "asyncio.Task[None]":
        """Start the process. The task ends with an error when the model cannot be loaded, or crashed too often."""
        executor, host = self.host.executor, self.host
        self._life = asyncio.create_task(
            keep_running(
                lambda: executor.run(message, self._ready, self._crashed), self._restart_in_s, self.host.restarted
            )
        )
        self._life.add_done_callback(lambda life: host.executor.fail_waiting("The model left the memory."))
        return self._life

    async def until_available(self) -> None:
        """Wait until the model is available. Raises EngineError when it never will be."""
        assert self._life, "it was started"
        waiting = asyncio.create_task(self._available.wait())
        try:
            await asyncio.wait([self._life, waiting], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if self._life.done():
            if self._life.cancelled():
                raise EngineError("The model left the memory.")
            await self._life

    def take(self) -> None:
        """Note that a request begins to use the model."""
        self.in_hand += 1
        self._idle.clear()

    def give_back(self) -> None:
        self.in_hand -= 1
        self.last_used_s = time.monotonic()
        if not self.in_hand:
            self._idle.set()

    def measure(self) -> None:
        """Set `size_bytes` to the most memory that the model's processes have had since their start."""
        self.size_bytes = self.host.peak_bytes() or self.size_bytes

    async def end(self, drain_s: float) -> None:
        """End the model when its requests have ended, after `drain_s` seconds at most. Its memory is free on return."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                await self._idle.wait()
        if self.in_hand:
            self.host.executor.fail_waiting("The model leaves the memory, and the time for its last requests is over.")
        if self._life:
            self._life.cancel()
            await asyncio.wait([self._life])
            if not self._life.cancelled():
                self._life.exception()  # seen
        await self.host.end()

    def _ready(self, loaded: ModelLoaded) -> None:
        self.host.ready(loaded)
        self._available.set()

    def _crashed(self) -> None:
        self._available.clear()
        self.host.crashed()

    def _restart_in_s(self, crash: EngineCrashed) -> float | None:
        """Seconds until the restart; None: never. Requests wait only for the first restart, which is at once."""
        delay_s = self._restarts.delay_s(time.monotonic())
        if delay_s != 0.0:
            self.host.executor.fail_waiting("The process of the model ended while this request waited for it.")
        log.warning("a model of the pool crashed", extra={"model": self.entry.name, "version": self.entry.version})
        return delay_s
