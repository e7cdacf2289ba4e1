"""Processes that do one thing after the other for the HTTP process: isolated as a model's own, ended if they hang."""

import asyncio
import contextlib
import functools
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slipway_process.serving.restarts import EngineCrashed, EngineError, ModelRefused
from slipway_process.serving.turns import QueueRules, TextBusy, Turns
from slipway_process.supervisor import observe

from ..tensors import Tensor
from .client import CHILD, BatchFailed, ModelProcess
from .messages import LoadModel

log = logging.getLogger("slipway.predict")

ATTEMPTS = 2  # a process may also end for another reason than its work


class WorkRefused(Exception):
    """Why something was not done. The text continues a sentence whose subject is what was given."""


class WorkerUnavailable(Exception):
    """No process could be started."""


class WorkersBusy(Exception):
    """Too much work waits; nothing was started."""


@dataclass(frozen=True, slots=True)
class WorkerRules:
    """`start`: what a process begins with. `verb`: what it does, for errors. `queue`: its slots are the processes.

    `timeout_s`: for one piece of work; a process that takes longer is ended. `module`: which is run. `idle_s`: after
    so long without work all processes end.
    """

    start: LoadModel
    verb: str
    queue: QueueRules
    timeout_s: float
    module: str = CHILD
    idle_s: float = math.inf


class Workers:
    """At most `rules.queue.slots` processes, each started when it is first needed."""

    def __init__(self, rules: WorkerRules, done: Callable[[float], None] = lambda seconds: None) -> None:
        """`done` gets the seconds of each piece of work."""
        self.rules, self._observe = rules, done
        self._turns = Turns(rules.queue)
        self._retirement: asyncio.TimerHandle | None = None
        self._retiring: asyncio.Task[None] | None = None
        self._idle: list[ModelProcess] = []
        self._here: set[ModelProcess] = set()  # idle or not
        self._tasks: set[asyncio.Task[list[Tensor]]] = set()

    def peak_bytes(self) -> int:
        """The sum of the most memory that each process has had."""
        return sum(process.peak_bytes() for process in self._here)

    async def warm_up(self) -> None:
        """Start the first process, so that the first piece of work does not wait for it."""
        await self._turns.take("")
        try:
            with contextlib.suppress(WorkerUnavailable):
                self._idle.append(await self._started())
        finally:
            self._turns.release("")

    async def run(self, inputs: Sequence[Tensor], outputs: Sequence[str], tenant: str = "") -> list[Tensor]:
        """The outputs of one piece of work. A client that leaves does not end the process.

        Raises:
            WorkRefused: the process refused it, took too long or ended.
            WorkersBusy: too much work of this tenant waits.
            WorkerUnavailable: no process could be started.
        """
        try:
            await self._turns.take(tenant)
        except TextBusy:
            raise WorkersBusy from None
        task = asyncio.create_task(self._in_a_process(inputs, outputs))
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._done, tenant))
        return await asyncio.shield(task)

    async def close(self) -> None:
        if self._retirement:
            self._retirement.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._retiring:
            await asyncio.wait([self._retiring])  # it may wait for a process that is in no list any more
        await self._end_idle()

    def _done(self, tenant: str, task: "asyncio.Task[list[Tensor]]") -> None:
        self._turns.release(tenant)
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen, also where the client left
        if math.isfinite(self.rules.idle_s):
            if self._retirement:
                self._retirement.cancel()
            self._retirement = asyncio.get_running_loop().call_later(self.rules.idle_s, self._retire)

    def _retire(self) -> None:
        if self._retiring is None or self._retiring.done():  # else it finds what got idle meanwhile
            self._retiring = observe(asyncio.create_task(self._end_idle()))

    async def _end_idle(self) -> None:
        while self._idle:
            process = self._idle.pop()
            self._here.discard(process)
            await process.kill()

    async def _in_a_process(self, inputs: Sequence[Tensor], outputs: Sequence[str]) -> list[Tensor]:
        rules = self.rules
        for attempt in range(1, ATTEMPTS + 1):
            process = self._idle.pop() if self._idle else await self._started()
            began = time.monotonic()
            try:
                found, _ = await process.compute(inputs, outputs)
            except BatchFailed as error:
                self._idle.append(process)
                raise WorkRefused(str(error)) from None
            except EngineCrashed as error:
                self._here.discard(process)
                took_s = time.monotonic() - began
                log.warning("a process to %s ended: %s", rules.verb, error, extra={"attempt": attempt})
                if took_s >= rules.timeout_s:
                    raise WorkRefused(f"took more than {rules.timeout_s:g} s to {rules.verb}") from None
                continue
            except BaseException:  # cancelled in the middle of an exchange
                self._here.discard(process)
                await process.kill()
                raise
            self._idle.append(process)
            self._observe(time.monotonic() - began)
            return found
        raise WorkRefused(f"ended each process that had to {rules.verb} it")

    async def _started(self) -> ModelProcess:
        process = ModelProcess(self.rules.timeout_s, self.rules.module)
        try:
            await process.start(self.rules.start)
        except (EngineError, ModelRefused, OSError) as error:
            log.warning("no process to %s: %s", self.rules.verb, error)
            raise WorkerUnavailable(str(error)) from None
        self._here.add(process)
        return process
