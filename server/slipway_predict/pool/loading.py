"""Loads models, a few at a time, in the order in which they were wanted; makes room for each before it starts."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slipway_process.model_folder import classic
from slipway_process.model_folder.catalog import Fingerprint, ModelKey, PoolEntry, fingerprint
from slipway_process.model_folder.checkpoint import CheckpointError
from slipway_process.serving.restarts import EngineError

from ..process.messages import LoadModel
from .eviction import ModelInMemory, Others, PoolLimits, make_room, shed
from .resident import ModelHost, Resident
from .slot import LoadFailed, ModelSlot, PoolError, StillLoading

log = logging.getLogger("slipway.pool")

DRAIN_S = 30.0  # for the requests of a model that leaves


@dataclass(frozen=True, slots=True)
class PoolRules:
    """`root`: the folder of all models. `model_memory_bytes`: the limit of a model that has none of its own."""

    root: Path
    limits: PoolLimits
    load_timeout_s: float = 30.0  # that a request, or a model in the queue, waits
    max_load_s: float = 120.0  # of one model: one that hangs holds up no other for longer
    parallel_loads: int = 2
    max_waiting_loads: int = 64
    model_memory_bytes: int = 1 << 30
    max_restarts: int = 5
    max_batch_size: int = 64
    log_level: str = "info"


class PoolObserver(Protocol):
    """Callbacks for metrics."""

    def loaded(self, key: ModelKey, seconds: float) -> None: ...

    def failed(self, key: ModelKey) -> None: ...

    def evicted(self, key: ModelKey, reason: str) -> None: ...


class ModelLoader:
    def __init__(
        self,
        rules: PoolRules,
        slots: dict[ModelKey, ModelSlot],
        host: Callable[[PoolEntry], ModelHost],
        observer: PoolObserver,
    ) -> None:
        self._rules, self._slots, self._host, self._observer = rules, slots, host, observer
        self._queue: asyncio.Queue[ModelSlot] = asyncio.Queue(rules.max_waiting_loads)
        self._starting: dict[ModelSlot, int] = {}  # bytes that are reserved
        self._leaving: dict[Resident, asyncio.Task[None]] = {}
        self._room = asyncio.Lock()  # one model at a time looks for room: none takes what another one made
        self._changed = asyncio.Event()  # something that may make room

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    @property
    def used_bytes(self) -> int:
        residents = [slot.resident for slot in self._slots.values() if slot.resident]
        return sum(one.size_bytes for one in (*residents, *self._leaving)) + sum(self._starting.values())

    def changed(self) -> None:
        """Look for room again: a request has ended, or a model has been measured."""
        self._changed.set()

    def want(self, slot: ModelSlot) -> "asyncio.Future[None]":
        """The future of the model's load, queued if it is not yet. Raises StillLoading when too many loads wait."""
        if slot.load is None:
            if self._queue.full():
                raise StillLoading(f"{self._queue.qsize()} models wait to be loaded, which is the limit.", 2.0)
            slot.load = asyncio.get_running_loop().create_future()
            slot.load.add_done_callback(lambda load: load.cancelled() or load.exception())
            self._queue.put_nowait(slot)
        return slot.load

    async def end(self) -> None:
        """End all processes; nothing loads models any more."""
        for slot in self._slots.values():
            self.evict(slot, "shutdown", drain_s=0.0)
        await asyncio.gather(*self._leaving.values(), return_exceptions=True)

    def evict(self, slot: ModelSlot, reason: str, drain_s: float = DRAIN_S) -> "asyncio.Task[None] | None":
        """Give the model no further request; end it when its requests have ended, after `drain_s` seconds at most.

        Returns a task that ends when the model's memory is free; None where the model was not in memory.
        """
        resident, slot.resident = slot.resident, None
        if resident is None:
            return None
        self._observer.evicted(slot.entry.key, reason)
        log.info("evicted", extra={"model": slot.entry.name, "version": slot.entry.version, "reason": reason})
        return self._end(slot, resident, drain_s)

    def fail_loads(self, reason: str) -> None:
        """Fail the requests that wait for a load; the loads go on."""
        for slot in self._slots.values():
            if slot.load:
                _settle(slot.load, StillLoading(reason))

    def shed(self) -> None:
        """Evict models when all together have outgrown the memory: a model grows with its largest batch."""
        facts = self._in_memory()
        for key in shed(self._rules.limits, facts, self._others()):
            self.evict(self._slots[key], "grown")

    # -- one load

    async def work(self) -> None:
        """Load one model after the other until cancelled; `parallel_loads` tasks do."""
        while True:
            slot = await self._queue.get()
            load, found = slot.load, None
            assert load, "a slot in the queue has a load"
            began = time.monotonic()
            try:
                found = await asyncio.to_thread(fingerprint, self._rules.root, slot.entry)
                await self._load(slot, found)
                slot.succeeded()
                self._observer.loaded(slot.entry.key, time.monotonic() - began)
                _settle(load, None)
            except StillLoading as error:
                _settle(load, error)  # no fault of the model
            except (CheckpointError, EngineError, LoadFailed, OSError) as error:
                self._failed(slot, str(error), found, load)
            except asyncio.CancelledError:
                _settle(load, StillLoading("The server is shutting down."))
                raise
            except Exception:
                log.exception("a load failed", extra={"model": slot.entry.name})
                self._failed(slot, "The server failed while it loaded the model.", found, load)
            finally:
                slot.load = None
                self._starting.pop(slot, None)
                self._changed.set()

    def _failed(self, slot: ModelSlot, reason: str, found: Fingerprint | None, load: "asyncio.Future[None]") -> None:
        now_s = time.monotonic()
        slot.failed(reason, now_s, found)
        assert slot.failure, "it has just failed"
        fields = {"model": slot.entry.name, "version": slot.entry.version, "attempts": slot.failure.attempts}
        log.error("a model cannot be loaded: %s", reason, extra=fields)
        self._observer.failed(slot.entry.key)
        _settle(load, LoadFailed(reason, slot.failure.until_s - now_s))

    async def _load(self, slot: ModelSlot, found: Fingerprint) -> None:
        entry, rules = slot.entry, self._rules
        if slot.removed:
            raise StillLoading("The model is not in the pool's file any more.")
        file = await asyncio.to_thread(classic.find, rules.root / entry.path, entry.format, entry.task)
        limit_bytes = min(entry.max_memory_bytes or rules.model_memory_bytes, rules.limits.memory_bytes)
        need_bytes = slot.need_bytes(found, limit_bytes)
        await self._reserve(slot, need_bytes)
        resident = Resident(entry, self._host(entry), found, need_bytes, rules.max_restarts)
        life = resident.start(
            LoadModel(
                str(file.path),
                file.format,
                entry.threads,
                limit_bytes,
                rules.max_batch_size,
                rules.log_level,
                entry.task == "classify",
            )
        )
        try:
            async with asyncio.timeout(rules.max_load_s):
                await resident.until_available()
        except TimeoutError:
            await resident.end(0.0)
            raise LoadFailed(f"The model was not loaded within {rules.max_load_s:g} s.") from None
        except BaseException:
            await resident.end(0.0)
            raise
        resident.measure()
        slot.known = (found, resident.size_bytes)
        self._starting.pop(slot, None)
        if slot.removed or slot.entry != entry:
            await resident.end(0.0)
            raise StillLoading("The pool's file has changed while the model was loaded.")
        self.evict(slot, "changed")
        resident.loaded_s = resident.last_used_s = time.monotonic()
        slot.resident, slot.seen = resident, None
        life.add_done_callback(lambda ended: self._lost(slot, resident, ended))
        self.shed()

    def _lost(self, slot: ModelSlot, resident: Resident, life: "asyncio.Task[None]") -> None:
        """Drop a model whose process crashed too often, or could not be started again."""
        reason = "" if life.cancelled() else str(life.exception() or "")
        if slot.resident is not resident:
            return
        slot.resident = None
        slot.failed(reason or "The process of the model ended.", time.monotonic(), resident.fingerprint)
        log.error("a model is lost: %s", reason, extra={"model": slot.entry.name, "version": slot.entry.version})
        self._observer.evicted(slot.entry.key, "crashed")
        self._end(slot, resident, 0.0)

    def _end(self, slot: ModelSlot, resident: Resident, drain_s: float) -> "asyncio.Task[None]":
        task = asyncio.create_task(resident.end(drain_s))
        self._leaving[resident] = task
        slot.leaving += 1

        def ended(task: "asyncio.Task[None]") -> None:
            if not task.cancelled() and (error := task.exception()):
                log.error("the end of a model failed", exc_info=error, extra={"model": slot.entry.name})
            del self._leaving[resident]
            slot.leaving -= 1
            self._changed.set()

        task.add_done_callback(ended)
        return task

    # -- room

    async def _reserve(self, slot: ModelSlot, need_bytes: int) -> None:
        """Wait until `need_bytes` are reserved for a model; they count until its memory is measured.

        Raises:
            StillLoading: models that must stay have all the room.
            LoadFailed: there never will be room.
        """
        try:
            async with asyncio.timeout(self._rules.load_timeout_s), self._room:
                await self._wait_for_room(slot, need_bytes)
        except TimeoutError:
            raise StillLoading("The memory is full of models that are in use, pinned or just loaded.", 2.0) from None

    async def _wait_for_room(self, slot: ModelSlot, need_bytes: int) -> None:
        while True:
            self._changed.clear()
            now_s = time.monotonic()
            room = make_room(self._rules.limits, self._in_memory(), self._others(), need_bytes, now_s)
            if room.impossible:
                raise LoadFailed(f"The model does not fit into the pool: {room.impossible}.")
            if room.fits:
                self._starting[slot] = need_bytes
                return
            if room.evict:
                for key in room.evict:
                    self.evict(self._slots[key], "room")
                continue
            timeout_s = None if room.wait_until_s is None else max(0.01, room.wait_until_s - now_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._changed.wait()

    def _in_memory(self) -> list[ModelInMemory]:
        return [slot.in_memory(slot.resident) for slot in self._slots.values() if slot.resident]

    def _others(self) -> Others:
        return Others(
            sum(self._starting.values()),
            len(self._starting),
            sum(one.size_bytes for one in self._leaving),
            len(self._leaving),
        )


def _settle(load: "asyncio.Future[None]", error: PoolError | None) -> None:
    if load.done():
        return
    if error:
        load.set_exception(error)
    else:
        load.set_result(None)
