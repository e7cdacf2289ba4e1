"""Gives each request its model: at once when it is in memory, else when it is loaded. Follows the pool's file."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from slipway_process.model_folder.catalog import (
    Catalog,
    CatalogError,
    Fingerprint,
    ModelKey,
    PoolEntry,
    fingerprint,
    read_catalog,
)
from slipway_process.model_folder.checkpoint import CheckpointError
from slipway_process.serving.restarts import EngineError
from slipway_process.supervisor import OnFailure, Supervisor

from .loading import DRAIN_S, ModelLoader, PoolObserver, PoolRules
from .resident import ModelHost, Resident
from .slot import LoadFailed, ModelBusy, ModelPinned, ModelSlot, StillLoading, UnknownModel, UnknownVersion

log = logging.getLogger("slipway.pool")

POLL_S = 1.0  # between two looks at the file, the folders and the sizes


class ProcessPool:
    def __init__(
        self,
        file: Path,
        rules: PoolRules,
        host: Callable[[PoolEntry], ModelHost],
        observer: PoolObserver,
        tasks: Supervisor,
    ) -> None:
        """`tasks`: of the process. Raises CatalogError for a wrong file."""
        self._file, self._rules, self._tasks = file, rules, tasks
        self.slots: dict[ModelKey, ModelSlot] = {}
        self.loader = ModelLoader(rules, self.slots, host, observer)
        self.file_errors, self._wrong = 0, ""
        self._catalog = Catalog({}, {})
        self._apply(read_catalog(file))

    # -- requests

    def find(self, name: str, version: str | None = None) -> ModelSlot:
        """The slot of a version; None: the default version. Raises UnknownModel or UnknownVersion."""
        default = self._catalog.defaults.get(name)
        if default is None:
            raise UnknownModel(f"The model {name!r} does not exist here.")
        slot = self.slots.get((name, default if version is None else version))
        if slot is None:
            raise UnknownVersion(f"Version {version!r} of {name!r} is not served here.")
        return slot

    def versions(self, name: str) -> list[ModelSlot]:
        """The slots of all versions of a model. Raises UnknownModel."""
        self.find(name)
        return [slot for slot in self.slots.values() if slot.entry.name == name]

    def count(self, state: str) -> int:
        return sum(slot.state == state for slot in self.slots.values())

    def sizes(self) -> dict[ModelKey, float]:
        """Bytes of memory of each model in the file; 0 for a model that is not in memory."""
        return {key: slot.resident.size_bytes if slot.resident else 0 for key, slot in self.slots.items()}

    @contextlib.asynccontextmanager
    async def use(self, slot: ModelSlot) -> AsyncIterator[Resident]:
        """The model in memory, where it stays until the request gives it back.

        Raises:
            ModelBusy: too many requests hold it or wait for it.
            StillLoading, LoadFailed: the model is not in memory within the time.
        """
        if slot.in_flight >= slot.entry.max_in_flight:
            raise ModelBusy(f"{slot.in_flight} requests of {slot.entry.name!r} are running, which is the limit.")
        slot.in_flight += 1
        try:
            resident = await self._resident(slot)
            try:
                yield resident
            finally:
                resident.give_back()
                self.loader.changed()
        finally:
            slot.in_flight -= 1

    async def _resident(self, slot: ModelSlot) -> Resident:
        """The model in memory, taken for the request already, so that it is not evicted before the request uses it."""
        if slot.resident and slot.resident.available:
            slot.resident.take()
            return slot.resident
        slot.waiting += 1
        try:
            async with asyncio.timeout(self._rules.load_timeout_s):
                while not (slot.resident and slot.resident.available):
                    await self._wait(slot)
                slot.resident.take()
                return slot.resident
        except TimeoutError:
            raise StillLoading(
                f"The model {slot.entry.name!r} was not loaded within {self._rules.load_timeout_s:g} s.", 2.0
            ) from None
        finally:
            slot.waiting -= 1

    async def _wait(self, slot: ModelSlot) -> None:
        """Wait for the load of a model, or for the next start of its process."""
        if slot.removed:
            raise UnknownModel(f"The model {slot.entry.name!r} does not exist here any more.")
        if slot.resident is None:
            slot.check_failure(time.monotonic())
            await asyncio.shield(self.loader.want(slot))
            return
        try:
            await slot.resident.until_available()
        except EngineError as error:
            raise LoadFailed(str(error)) from None

    # -- commands

    async def load(self, slot: ModelSlot) -> None:
        """Load a model, also again if its files have changed. Raises StillLoading or LoadFailed."""
        slot.forgive()
        resident = slot.resident
        if resident and slot.load is None:
            try:
                found = await asyncio.to_thread(fingerprint, self._rules.root, slot.entry)
            except (CheckpointError, OSError) as error:
                raise LoadFailed(str(error)) from None
            if found == resident.fingerprint and slot.resident is resident:
                return
        try:
            async with asyncio.timeout(self._rules.load_timeout_s):
                await asyncio.shield(self.loader.want(slot))
        except TimeoutError:
            raise StillLoading(f"The model {slot.entry.name!r} is still loading.", 2.0) from None

    async def unload(self, slots: list[ModelSlot]) -> None:
        """Evict models; return when their memory is free. The next request loads them again. Raises ModelPinned."""
        for slot in slots:
            if slot.entry.pinned:
                raise ModelPinned(f"{slot.entry.name!r} {slot.entry.version} is pinned: remove the pin from the file.")
        for slot in slots:
            if slot.load:
                await asyncio.wait([slot.load], timeout=DRAIN_S)
        ends = [end for slot in slots if (end := self.loader.evict(slot, "unload"))]
        if ends:
            await asyncio.wait(ends)

    def fail_waiting(self, reason: str) -> None:
        """Fail all requests of all models, and those that wait for a model to be loaded."""
        self.loader.fail_loads(reason)
        for slot in self.slots.values():
            if slot.resident:
                slot.resident.host.executor.fail_waiting(reason)

    # -- the file and the folders

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Follow the file and load models until cancelled. Ready when the load of each pinned model was tried once."""
        loads = [self._tasks.start("loads", self.loader.work) for _ in range(self._rules.parallel_loads)]
        try:
            await self._load_pinned()
            on_ready()
            # Models that are in memory serve on without it.
            await self._tasks.start("pool-file", self._follow, OnFailure.SHOW)
        finally:
            for task in loads:
                task.cancel()  # once: a second time would interrupt the end of a process
            await asyncio.gather(*loads, return_exceptions=True)
            await self.loader.end()

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            await self._look()

    async def _load_pinned(self) -> None:
        """Load pinned models one after the other: there may be more of them than loads may wait."""
        for slot in [slot for slot in self.slots.values() if slot.entry.pinned]:
            with contextlib.suppress(StillLoading, LoadFailed):
                await asyncio.shield(self.loader.want(slot))

    async def _look(self) -> None:
        looked = {key: slot.entry for key, slot in self.slots.items() if slot.resident or slot.failure}
        catalog, found = await asyncio.to_thread(self._scan, looked)
        if catalog:
            self._apply(catalog)
        for key, print_ in found.items():
            if (slot := self.slots.get(key)) and slot.entry == looked[key]:
                self._compare(slot, print_)
        for slot in self.slots.values():
            if slot.resident and slot.resident.available:
                slot.resident.measure()
                slot.known = (slot.resident.fingerprint, slot.resident.size_bytes)
            if slot.entry.pinned and slot.resident is None and slot.load is None:
                self._try(slot)
        self.loader.shed()
        self.loader.changed()

    def _scan(self, looked: dict[ModelKey, PoolEntry]) -> tuple[Catalog | None, dict[ModelKey, Fingerprint]]:
        """The file's catalog, None if it is wrong, and the fingerprints of `looked`; in a thread: disks may be slow."""
        catalog, found = None, {}
        try:
            catalog = read_catalog(self._file)
            self._wrong = ""
        except CatalogError as error:
            if str(error) != self._wrong:
                self._wrong = str(error)
                self.file_errors += 1
                log.error("the former file of the pool counts: %s", error)
        for key, entry in looked.items():
            with contextlib.suppress(CheckpointError, OSError):
                found[key] = fingerprint(self._rules.root, entry)
        return catalog, found

    def _compare(self, slot: ModelSlot, found: Fingerprint) -> None:
        """Load changed files when two looks have seen the same ones: files that are being copied are not whole."""
        if slot.resident is None:
            if slot.failure and slot.failure.fingerprint != found:
                slot.forgive()
            return
        if found == slot.resident.fingerprint or slot.load:
            slot.seen = None
        elif slot.seen != found:
            slot.seen = found
        else:
            self._try(slot)

    def _try(self, slot: ModelSlot) -> None:
        with contextlib.suppress(StillLoading, LoadFailed):
            slot.check_failure(time.monotonic())
            self.loader.want(slot)

    def _apply(self, catalog: Catalog) -> None:
        """Apply the file: new entries can be loaded, models of removed ones leave, changed ones are loaded again."""
        if catalog == self._catalog:
            return
        for key in [key for key in self.slots if key not in catalog.entries]:
            slot = self.slots.pop(key)
            slot.removed = True
            self.loader.evict(slot, "removed")
        for key, entry in catalog.entries.items():
            slot = self.slots.setdefault(key, ModelSlot(entry))
            if slot.entry != entry:
                slot.entry, slot.known, slot.seen = entry, None, None
                slot.forgive()
                if slot.resident:
                    self._try(slot)
        self._catalog = catalog
        log.info("the pool's file is read", extra={"models": len(self.slots)})
