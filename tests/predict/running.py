"""An executor with a real process of a model, restarted as in a server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import numpy
import psutil

from slipway_predict.batcher import BatchRules
from slipway_predict.executor import Executor, InferRequest, Observer
from slipway_predict.process.messages import LoadModel, ModelLoaded
from slipway_predict.tensors import NUMPY, Tensor
from slipway_process.model_folder import classic as model_file
from slipway_process.serving.restarts import EngineCrashed, keep_running


class Running:
    def __init__(self, executor: Executor, batches: list[int]) -> None:
        self.executor, self.batches = executor, batches
        self.ready: list[ModelLoaded] = []
        self.crashes = self.non_finite = 0
        self.loaded = asyncio.Event()

    def on_ready(self, ready: ModelLoaded) -> None:
        self.ready.append(ready)
        self.loaded.set()

    def on_non_finite(self) -> None:
        self.non_finite += 1

    def on_crash(self) -> None:
        self.crashes += 1
        self.loaded.clear()

    @property
    def process(self) -> psutil.Process:
        inner = self.executor._process._process
        assert inner
        return psutil.Process(inner.pid)


@contextlib.asynccontextmanager
async def running(
    folder: Path, rules: BatchRules | None = None, *, batch_timeout_s: float = 30.0, memory_bytes: int = 0
) -> AsyncIterator[Running]:
    """With the model loaded."""
    file, batches = model_file.find(folder), list[int]()
    observer = Observer(
        batch=lambda rows, wait_s, seconds: batches.append(rows), non_finite=lambda: found.on_non_finite()
    )
    executor = Executor(rules or BatchRules(), batch_timeout_s, observer)
    found = Running(executor, batches)
    start = LoadModel(str(file.path), file.format, 1, memory_bytes, executor.batcher.rules.max_size, "error")

    def restart(_: EngineCrashed) -> float:
        return 0.0

    life = asyncio.create_task(keep_running(lambda: executor.run(start, found.on_ready, found.on_crash), restart))
    waiting = asyncio.create_task(found.loaded.wait())
    await asyncio.wait([life, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if life.done():
        await life
    try:
        yield found
    finally:
        life.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await life


def request(name: str, datatype: str, values: object, *outputs: str, timeout_s: float = float("inf")) -> InferRequest:
    tensor = Tensor(name, datatype, numpy.array(values, NUMPY[datatype]))
    return InferRequest((tensor,), outputs, timeout_s=timeout_s)
