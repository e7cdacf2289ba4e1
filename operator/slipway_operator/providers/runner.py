"""Takes measurements in the background, bounded and fair, and keeps results until they are stored."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Protocol

from slipway_operator.api.objects import ObjectKey
from slipway_operator.component import BUSY_PAUSE_S, Component, ReconciledDeployment
from slipway_operator.model.analysis.measure import ProviderAnswer, Question
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.cluster.plan import Plan
from slipway_operator.turns import Turns
from slipway_process.places import Places

Observe = Callable[[str, str, float], None]

QUESTIONS_LIMIT = 4096  # measurements in progress; beyond its share a namespace's wait for its next plan
AT_A_TIME = 64
OF_A_NAMESPACE = 8
JOBS_OF_A_NAMESPACE = 32  # more, because Jobs take long; they have their own turns and delay no request

log = logging.getLogger(__name__)


class MeasurementClient(Protocol):
    """Takes measurements."""

    async def measure(self, namespace: str, question: Question) -> ProviderAnswer:
        """Take one measurement; every failure is a ProviderAnswer with a problem."""

    async def release(self, question: Question) -> None:
        """Delete what was created for a measurement: its Job."""


class MeasurementRunner(Component):
    """The measurements of all plans. At most one measurement with a key is in progress."""

    def __init__(self, client: MeasurementClient, wake: Callable[[ObjectKey], None], observe: Observe) -> None:
        """`wake` gets the ModelDeployment of a new result; `observe` gets provider, outcome and seconds of each."""
        self._client, self._wake, self._observe = client, wake, observe
        self._wanted: dict[ObjectKey, dict[str, Question]] = {}
        self._answers: dict[ObjectKey, dict[str, ProviderAnswer]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Task[None]] = {}  # of cancelled tasks; a new one with the key waits for this
        self._places = Places(QUESTIONS_LIMIT)
        self._requests = Turns(AT_A_TIME, OF_A_NAMESPACE)
        self._jobs = Turns(QUESTIONS_LIMIT, JOBS_OF_A_NAMESPACE)

    def observe(self, deployment: ReconciledDeployment, observed: Observed) -> Observed:
        """Return the observed state with the results that came."""
        return replace(observed, measured=self.answers(deployment.key))

    def after(self, deployment: ReconciledDeployment, observed: Observed, planned: Plan, now: datetime) -> float | None:
        """Start the plan's measurements."""
        return None if self.follow(deployment.key, planned.questions) else BUSY_PAUSE_S

    def leave(self, key: ObjectKey) -> None:
        """Cancel the measurements: nothing needs their results any more."""
        self.forget(key)

    def answers(self, key: ObjectKey) -> dict[str, ProviderAnswer]:
        """Return the results that the last plan still needed, by key of the measurement."""
        return dict(self._answers.get(key, {}))

    def follow(self, key: ObjectKey, questions: Iterable[Question]) -> bool:
        """Start new measurements; cancel those not in `questions` and delete their Jobs. False when some must wait."""
        wanted = {question.key: question for question in questions}
        former, known = self._wanted.get(key, {}), self._answers.get(key, {})
        for name in former.keys() - wanted.keys():
            self._end(former[name], releases=True)
        new = [name for name in wanted if name not in known and name not in self._tasks]
        started = [name for name in new if not self._places.take(key[0])]
        waiting = set(new).difference(started)
        self._wanted[key] = {name: question for name, question in wanted.items() if name not in waiting}
        self._answers[key] = {name: known[name] for name in wanted if name in known}
        if not wanted:
            self.forget(key)
        for name in started:
            task = asyncio.create_task(self._question(key, wanted[name]), name=f"measurement {name}")
            self._tasks[name] = task
            # Callbacks, because a task that is cancelled before its first step runs none of its own code.
            task.add_done_callback(partial(self._forget_task, name))
            task.add_done_callback(lambda _: self._places.leave(key[0]))
        return not waiting

    def forget(self, key: ObjectKey) -> None:
        """Cancel the measurements of a ModelDeployment and drop its results; garbage collection deletes its Jobs."""
        for question in self._wanted.pop(key, {}).values():
            self._end(question, releases=False)
        self._answers.pop(key, None)

    async def close(self) -> None:
        """Cancel all measurements: the next process repeats them with the same keys, and finds the same Jobs."""
        tasks = [*self._tasks.values(), *self._ends.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget_task(self, name: str, task: asyncio.Task[None]) -> None:
        for tasks in (self._tasks, self._ends):
            if tasks.get(name) is task:
                del tasks[name]

    def _end(self, question: Question, *, releases: bool) -> None:
        """Cancel a measurement. `releases`: also delete its Job."""
        name = question.key
        task, former = self._tasks.pop(name, None), self._ends.get(name)
        if task:
            task.cancel()
        releases = releases and question.job is not None
        if task or releases:
            end = asyncio.create_task(self._ended(question, task, former, releases), name=f"end of measurement {name}")
            self._ends[name] = end
            end.add_done_callback(partial(self._forget_task, name))

    async def _ended(
        self, question: Question, task: asyncio.Task[None] | None, former: asyncio.Task[None] | None, releases: bool
    ) -> None:
        """Return when a cancelled measurement has ended, which then creates no Job, and its Job is deleted."""
        if running := {one for one in (task, former) if one}:
            await asyncio.wait(running)
        try:
            if releases:
                await self._client.release(question)
        except Exception:
            log.exception("a bug: what was made for measurement %s was not let go", question.key)

    async def _question(self, key: ObjectKey, question: Question) -> None:
        if end := self._ends.get(question.key):
            await asyncio.wait({end})  # or the Job of this measurement would be the one that is about to be deleted
        started, provider = time.monotonic(), question.metric.provider
        try:
            answer = await self._in_turn(key[0], question)
        except Exception:
            log.exception("a bug: measurement %s raised", question.key)
            answer = ProviderAnswer(problem="the operator failed to measure; see its log")
        self._observe(provider, "error" if answer.problem else "ok", time.monotonic() - started)
        if question.key in self._wanted.get(key, {}):
            self._answers[key][question.key] = answer
            self._wake(key)

    async def _in_turn(self, namespace: str, question: Question) -> ProviderAnswer:
        turns = self._jobs if question.job is not None else self._requests
        async with turns.turn(namespace):
            return await self._client.measure(namespace, question)
