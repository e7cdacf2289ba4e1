"""Processes that read: some at most, each started when it is first needed, for tenants in turns."""

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from slipway_process.serving.turns import QueueRules, Turns
from slipway_process.supervisor import observe

from ...text.pool import TextTimeout
from .client import ProcessEnded, ReadingProcess
from .messages import Begin, FromChild, Job

log = logging.getLogger("slipway.http")

JOB_S = 10.0  # for one job; a process that takes longer is ended
IDLE_S = 60.0  # after which a process that need not be kept is ended


class JobKilled(Exception):
    """The process ended while it worked, most likely because of that work."""


class NoProcess(Exception):
    """No process could be started."""


@dataclass(frozen=True, slots=True)
class ProcessRules:
    """`kept`: processes that are not ended when they are idle."""

    queue: QueueRules
    kept: int
    job_s: float = JOB_S
    idle_s: float = IDLE_S


class Processes:
    def __init__(self, begin: Begin, rules: ProcessRules) -> None:
        self._begin, self._rules = begin, rules
        self._turns = Turns(rules.queue)
        self._idle: list[tuple[ReadingProcess, asyncio.TimerHandle]] = []
        self._here = 0  # processes, idle or not
        self._tasks: set[asyncio.Task[object]] = set()

    async def warm_up(self) -> None:
        """Start the first process, so that no request waits for it."""
        await self._turns.take("")
        try:
            with contextlib.suppress(NoProcess):
                self._put_back(await self._started())
        finally:
            self._turns.release("")

    async def ask(self, job: Job, tenant: str) -> FromChild:
        """The answer to a job. A client that leaves does not end the process.

        Raises:
            TextBusy: too many jobs of this tenant wait.
            TextTimeout: it took too long, and its process was ended.
            JobKilled: its process ended.
            NoProcess: no process could be started.
        """
        await self._turns.take(tenant)
        task = asyncio.create_task(self._in_a_process(job, tenant))
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while self._idle:
            process, timer = self._idle.pop()
            timer.cancel()
            await process.end()

    def _done(self, task: "asyncio.Task[object]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen, also where the client left

    async def _in_a_process(self, job: Job, tenant: str) -> FromChild:
        try:
            process = await self._idle_or_started()
            try:
                answer = await process.ask(job, self._rules.job_s)
            except BaseException as error:
                raise await self._ended(process, error) from None
            self._put_back(process)
            return answer
        finally:
            self._turns.release(tenant)

    async def _idle_or_started(self) -> ReadingProcess:
        while self._idle:
            process, timer = self._idle.pop()
            timer.cancel()
            if process.runs:
                return process
            await self._forget(process)
        return await self._started()

    async def _started(self) -> ReadingProcess:
        process = ReadingProcess()
        self._here += 1
        try:
            await process.start(self._begin)
        except (ProcessEnded, OSError) as error:
            status = await self._forget(process)
            log.error("no process that reads requests: %s", error, extra={"status": status})
            raise NoProcess(str(error)) from None
        except BaseException:
            await self._forget(process)
            raise
        return process

    async def _ended(self, process: ReadingProcess, error: BaseException) -> BaseException:
        """End a process in the middle of a job; return what its client is to know."""
        status = await self._forget(process)
        if isinstance(error, TimeoutError):
            log.warning("a process that reads requests took too long and was ended")
            return TextTimeout(f"It took longer than {self._rules.job_s:g} s.")
        if isinstance(error, ProcessEnded):
            log.warning("a process that reads requests ended: %s", error, extra={"status": status})
            return JobKilled(str(error))
        return error

    async def _forget(self, process: ReadingProcess) -> int:
        self._here -= 1
        return await process.end()

    def _put_back(self, process: ReadingProcess) -> None:
        timer = asyncio.get_running_loop().call_later(self._rules.idle_s, self._retire, process)
        self._idle.append((process, timer))

    def _retire(self, process: ReadingProcess) -> None:
        """A process was idle for long."""
        if self._here <= self._rules.kept:
            return
        self._idle = [(other, timer) for other, timer in self._idle if other is not process]
        self._here -= 1  # at once: others may retire before the task below begins, and one is kept
        task: asyncio.Task[object] = observe(asyncio.create_task(process.end()))
        self._tasks.add(task)
        task.add_done_callback(self._done)
