"""Calls webhooks in the background, bounded and fair, and keeps responses until they are stored."""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from tenacity import AsyncRetrying, RetryCallState, retry_if_result, stop_after_attempt, wait_exponential

from slipway_contracts.api.times import format_time
from slipway_operator.api.objects import Json, ObjectKey
from slipway_operator.component import BUSY_PAUSE_S, Component, ReconciledDeployment
from slipway_operator.hooks import notices as forms
from slipway_operator.hooks.post import Poster, Reply, SecretUnreadable
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.cluster.plan import Plan
from slipway_operator.model.deployment.hooks import HookAnswer, HookCall
from slipway_operator.model.deployment.spec import hooks_of
from slipway_operator.planning.rollout.hook_calls import notices
from slipway_operator.turns import Turns
from slipway_process.fair_memory import FairMemory
from slipway_process.places import Places
from slipway_process.supervisor import observe

Measure = Callable[[str, str, float], None]
ReadSecret = Callable[[str, tuple[str, str]], Awaitable[str]]  # namespace, and name and key; raises SecretUnreadable

QUESTIONS_LIMIT = 4096  # calls in progress or waiting for a turn; beyond its share a namespace's wait for its next plan
NOTICES_LIMIT = 1024  # event calls in progress; beyond it the oldest of the namespace with most is dropped
CALLS_AT_A_TIME = 64
CALLS_OF_A_NAMESPACE = 8
RETRY_FIRST_S, RETRY_LIMIT_S = 1.0, 10.0

log = logging.getLogger(__name__)


class HookRunner(Component):
    """The calls of all plans. At most one call with an idempotency key is in progress."""

    def __init__(
        self,
        poster: Poster,
        wake: Callable[[ObjectKey], None],
        measure: Measure,
        read_secret: ReadSecret,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`wake` gets the ModelDeployment of a new response; `measure` gets type, outcome and seconds of every try."""
        self._poster, self._wake, self._measure, self._read_secret = poster, wake, measure, read_secret
        self._clock, self._sleep = clock, sleep
        self._wanted: dict[ObjectKey, frozenset[str]] = {}
        self._answers: dict[ObjectKey, dict[str, HookAnswer]] = {}
        self._questions: dict[str, asyncio.Task[None]] = {}
        self._places = Places(QUESTIONS_LIMIT)
        self._notices: FairMemory[str, asyncio.Task[None], HookCall] = FairMemory(NOTICES_LIMIT)  # by namespace
        self._turns = Turns(CALLS_AT_A_TIME, CALLS_OF_A_NAMESPACE)

    def observe(self, deployment: ReconciledDeployment, observed: Observed) -> Observed:
        """Return the observed state with the responses that came."""
        return replace(observed, hooks=self.answers(deployment.key))

    def after(self, deployment: ReconciledDeployment, observed: Observed, planned: Plan, now: datetime) -> float | None:
        """Start the plan's calls, and those about its Events."""
        hooks = hooks_of(deployment.spec, deployment.obj)
        self.notify(deployment.key, notices(deployment.obj, hooks, planned.status, planned.events, now))
        return None if self.follow(deployment.key, planned.calls) else BUSY_PAUSE_S

    def leave(self, key: ObjectKey) -> None:
        """Drop the responses: nothing needs them any more."""
        self.forget(key)

    def answers(self, key: ObjectKey) -> dict[str, HookAnswer]:
        """Return the responses that the last plan still needed, by idempotency key."""
        return dict(self._answers.get(key, {}))

    def follow(self, key: ObjectKey, calls: Iterable[HookCall]) -> bool:
        """Start the calls that are new, and drop responses that `calls` lacks; False when some calls must wait."""
        wanted = {call.key: call for call in calls}
        known = self._answers.get(key, {})
        self._wanted[key], self._answers[key] = frozenset(wanted), {one: known[one] for one in wanted if one in known}
        if not wanted:
            self.forget(key)
        new = [call for one, call in wanted.items() if one not in known and one not in self._questions]
        for call in new:
            if self._places.take(key[0]):
                return False
            task = asyncio.create_task(self._question(key, call), name=f"hook {call.key}")
            self._questions[call.key] = task
            task.add_done_callback(lambda _: self._places.leave(key[0]))
        return True

    def notify(self, key: ObjectKey, calls: Iterable[HookCall]) -> None:
        """Send event calls without keeping responses; calls beyond the limit are dropped and counted."""
        for call in calls:
            task = observe(asyncio.create_task(self._notice(key, call), name=f"hook {call.key}"))
            task.add_done_callback(partial(self._notices.pop, key[0]))
            for dropped, of_call in self._notices.put(key[0], task, call):
                dropped.cancel()
                self._measure(of_call.hook.type, "dropped", 0.0)

    def forget(self, key: ObjectKey) -> None:
        """Drop the responses for this ModelDeployment; calls in progress go on, and their responses are ignored."""
        self._wanted.pop(key, None)
        self._answers.pop(key, None)

    async def close(self) -> None:
        """Cancel calls in progress: the next process repeats them with the same keys."""
        tasks = [*self._questions.values(), *self._notices.keys()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _question(self, key: ObjectKey, call: HookCall) -> None:
        try:
            answer = await self._call(key, call)
        except Exception:
            log.exception("a bug: hook %s of %s/%s raised", call.hook.name, *key)
            answer = HookAnswer(False, "the operator failed to put the question; see its log")
        finally:
            del self._questions[call.key]
        if call.key in self._wanted.get(key, ()):
            self._answers[key][call.key] = answer
            self._wake(key)

    async def _notice(self, key: ObjectKey, call: HookCall) -> None:
        answer = await self._call(key, call)
        if not answer.ok:
            log.warning("event hook %s of %s/%s was not reached: %s", call.hook.name, *key, answer.message)

    async def _call(self, key: ObjectKey, call: HookCall) -> HookAnswer:
        """Make all tries of one call, each with the same idempotency key and body."""
        called_at = format_time(self._clock())
        payload = {**call.payload, "idempotencyKey": call.key, "timestamp": called_at}
        retrying = AsyncRetrying(
            sleep=self._sleep,
            stop=stop_after_attempt(call.hook.tries),
            wait=wait_exponential(multiplier=RETRY_FIRST_S, max=RETRY_LIMIT_S),
            retry=retry_if_result(_is_to_be_repeated),
            retry_error_callback=_last_reply,
        )
        reply: Reply = await retrying(self._try, key, call, payload)
        number = retrying.statistics["attempt_number"]
        tries = f" (try {number} of {call.hook.tries})" if number > 1 else ""
        return HookAnswer(reply.ok, reply.message + tries)

    async def _try(self, key: ObjectKey, call: HookCall, payload: Json) -> Reply:
        async with self._turns.turn(key[0]):
            started = time.monotonic()
            reply = await self._send(key[0], call, payload)
            self._measure(call.hook.type, reply.outcome, time.monotonic() - started)
            return reply

    async def _send(self, namespace: str, call: HookCall, payload: Json) -> Reply:
        """Send one request; a Secret is read for each, so that a new one needs no restart."""
        hook, body, url = call.hook, payload, call.hook.url
        try:
            secret = await self._read_secret(namespace, hook.secret) if hook.secret else ""
            if hook.format and (shaped := forms.notice(hook.format, payload, secret, payload["timestamp"])):
                body = shaped
            elif hook.format:
                return Reply("ok", "not sent: it is no news for this service")
            url = forms.url_with(url, secret) if hook.secret and forms.SECRET in url else url
        except (SecretUnreadable, ValueError) as error:
            return Reply("error", str(error), again=True)
        sent = json.dumps(body, separators=(",", ":")).encode()
        return await self._poster.post(url, sent, call.key, hook.timeout_s)


def _is_to_be_repeated(reply: Reply) -> bool:
    return not reply.ok and reply.again


def _last_reply(state: RetryCallState) -> Reply:
    assert state.outcome, "it is called after a try"
    reply: Reply = state.outcome.result()
    return reply
