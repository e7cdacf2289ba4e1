"""A pool with real processes of models, without HTTP."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from slipway_predict.batcher import BatchRules
from slipway_predict.executor import Executor, InferRequest
from slipway_predict.pool.eviction import PoolLimits
from slipway_predict.pool.loading import PoolRules
from slipway_predict.pool.pool import ProcessPool
from slipway_predict.process.messages import ModelLoaded
from slipway_predict.tensors import Tensor
from slipway_process.model_folder.catalog import PoolEntry
from slipway_process.supervisor import Supervisor

LARGE = PoolLimits(memory_bytes=4 << 30, max_loaded=32)
BATCH_TIMEOUT_S = 3.0


class BareHost:
    def __init__(self) -> None:
        self.executor = Executor(BatchRules(), BATCH_TIMEOUT_S)
        self.crashes = 0

    def ready(self, loaded: ModelLoaded) -> None: ...

    def crashed(self) -> None:
        self.crashes += 1

    def restarted(self) -> None: ...

    def peak_bytes(self) -> int:
        return self.executor.peak_bytes()

    async def end(self) -> None: ...


class Recorder:
    def __init__(self) -> None:
        self.loads: list[str] = []
        self.failures: list[str] = []
        self.evictions: list[tuple[str, str]] = []

    def loaded(self, key: tuple[str, str], seconds: float) -> None:
        self.loads.append(key[0])

    def failed(self, key: tuple[str, str]) -> None:
        self.failures.append(key[0])

    def evicted(self, key: tuple[str, str], reason: str) -> None:
        self.evictions.append((key[0], reason))


class RunningPool:
    def __init__(self, root: Path, limits: PoolLimits, **rules: Any) -> None:
        self.root, self.recorder = root, Recorder()
        self.restarts: list[str] = []
        self.tasks = Supervisor(self.restarts.append)
        # A slow machine takes long to load a model; who tests the limit itself gives another one.
        made = replace(PoolRules(root, limits, log_level="error"), **{"load_timeout_s": 120.0, **rules})
        self.pool = ProcessPool(root / "pool.json", made, self._host, self.recorder, self.tasks)

    def _host(self, entry: PoolEntry) -> BareHost:
        return BareHost()

    async def infer(self, name: str, request: InferRequest, version: str | None = None) -> list[Tensor]:
        async with self.pool.use(self.pool.find(name, version)) as resident:
            return await resident.host.executor.infer(request)

    def states(self) -> dict[str, str]:
        return {slot.entry.name: slot.state for slot in self.pool.slots.values()}

    def process(self, name: str) -> psutil.Process:
        resident = self.pool.find(name).resident
        assert resident
        inner = resident.host.executor._process._process
        assert inner
        return psutil.Process(inner.pid)


def model_processes() -> list[psutil.Process]:
    """Of pools in this process; a server of another test has its own."""
    found = psutil.Process().children()
    return [child for child in found if "slipway_predict.process.child" in command_line(child)]


def command_line(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return process.cmdline()
    return []


def write(root: Path, *models: dict[str, Any]) -> None:
    """At once, as a ConfigMap is replaced."""
    (root / "new.json").write_text(json.dumps({"models": models}))
    (root / "new.json").rename(root / "pool.json")


@contextlib.asynccontextmanager
async def running_pool(root: Path, limits: PoolLimits = LARGE, **rules: Any) -> AsyncIterator[RunningPool]:
    found, ready = RunningPool(root, limits, **rules), asyncio.Event()
    life = asyncio.create_task(found.pool.run(ready.set))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait([life, waiting], return_when=asyncio.FIRST_COMPLETED)
    try:
        yield found
    finally:
        waiting.cancel()
        life.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await life
