"""Our programs as processes at the price of a fork: of a process that has imported all that they need."""

import asyncio
import functools
import importlib
import multiprocessing
import os
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from unittest import mock

from testkit import ROOT

PROGRAMS = ("slipway_operator", "slipway_gateway")
PATHS = os.pathsep.join(
    str(ROOT / folder) for folder in ("operator", "gateway", "jobs", "process", "contracts", "plane", ".")
)
END_S = 30.0


@functools.cache
def _parent() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *(f"{program}.__main__" for program in PROGRAMS)])
    with mock.patch.dict(os.environ, PYTHONPATH=PATHS):
        forkserver.ensure_running()
    return context


def become(program: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
    """What `python -m PROGRAM` does."""
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [program, *arguments]
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.exit(importlib.import_module(f"{program}.__main__").main())


class ForkedProgram:
    """One of our programs, with its log in a file; it may be started again after it has ended."""

    def __init__(self, program: str, arguments: Sequence[str], kubeconfig: Path, log: Path) -> None:
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "POD_NAMESPACE": "", "POD_ID": "slipway-1"}
        self._order = program, arguments, environment, log
        self._log = log
        self._process: ForkServerProcess | None = None

    async def start(self) -> None:
        self._log.touch()  # the child opens it some time later, and the test may read it at once
        self._process = _parent().Process(target=become, args=self._order, daemon=True)
        await asyncio.to_thread(self._process.start)

    async def kill(self) -> None:
        """As a node that loses power does."""
        process = self._started()
        process.kill()
        await asyncio.to_thread(process.join)

    async def end(self) -> tuple[int | None, float]:
        """As a kubelet does; the exit code and the seconds that it took."""
        process, started = self._started(), time.monotonic()
        process.terminate()
        await asyncio.to_thread(process.join, END_S)
        return process.exitcode, time.monotonic() - started

    async def stop(self) -> None:
        if self.runs():
            await self.kill()

    @property
    def pid(self) -> int:
        return self._started().pid or 0

    def runs(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def log(self) -> str:
        return self._log.read_text()

    def _started(self) -> ForkServerProcess:
        assert self._process is not None, "it was not started"
        return self._process
