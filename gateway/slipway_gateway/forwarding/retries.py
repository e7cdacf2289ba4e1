"""Attempts of a request until one gives a first byte; meanwhile the request may wait for an endpoint."""

import contextlib
from collections.abc import Callable, Iterator

from ..balancing.backends import Backends
from ..judging.outcome import Fate
from ..routing.router import Target
from ..routing.table import Route
from ..settings import Settings
from ..telemetry.metrics import Metrics, Record
from ..upstream.exchange import Answer, Call
from ..wire import errors
from .crashes import Crashes
from .held_request import Waiting
from .retry_state import Effort
from .sender import Sender

_MAX_PAUSE_S = 1.0


class Retries:
    """Of one gateway. `held`: requests that wait for an endpoint now."""

    def __init__(
        self,
        settings: Settings,
        backends: Backends,
        metrics: Metrics,
        sender: Sender,
        crashes: Crashes,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._backends = backends
        self._metrics = metrics
        self._sender = sender
        self._crashes = crashes
        self._clock = clock
        self.held = 0

    async def first_answer(self, call: Call, record: Record, effort: Effort, waiting: Waiting | None = None) -> Answer:
        """`waiting`: of a request that nobody has begun to answer."""
        while effort.spent < effort.limit:
            target = self._pick(call, effort)
            if target is None and await self._crashes.waits(effort):
                continue
            if target is None:
                if effort.waits_in_vain or not await self._hold(call, effort, waiting):
                    break
                continue
            record.revision = target.revision
            first = not (effort.attempts or effort.resumes)
            if first:
                effort.fate = self._fate(call, target)
            effort.sent_s = self._clock()
            with self._crashes.trial(target.url, effort):
                result = await self._sender.attempt(call, target, effort.fate if first else None)
            if isinstance(result, Answer):
                return result
            effort.note(target.url, result)
            self._metrics.retried(target.model, target.revision, result.reason)
            # Of a stream that goes on a reset alone says too little: `max_resumes` bounds it.
            if result.crashed and (result.answer or not effort.resumes):
                self._crashes.note(call, target, record, effort, on_trial=True, said=result.answer is not None)
        return self._give_up(call, effort)

    def _pick(self, call: Call, effort: Effort) -> Target | None:
        avoided = self._crashes.avoided(effort)
        excluded = effort.tried.union(avoided) if avoided else effort.tried
        return self._backends.pick(
            call.whose, call.key, excluded, call.revision, preferred=call.preferred, holder=call.holder
        )

    def _fate(self, call: Call, target: Target) -> Fate:
        return self._backends.fate(
            target,
            call.key,
            call.stratum,
            self._clock(),
            by_split=call.by_split,
            stream=call.stream,
            client=call.client,
            excused=call.excused,
        )

    def _give_up(self, call: Call, effort: Effort) -> Answer:
        if effort.last is None:
            gone = call.revision and not self._backends.lists(call.whose, call.revision)
            if gone:
                raise errors.stream_gone()
            route = self._backends.find(call.whose)
            expected_s = route.wake_s if route else None
            raise errors.no_endpoint(call.model) if expected_s is None else errors.asleep(call.model, expected_s)
        if effort.last.answer is None:
            raise errors.unreachable(effort.last.reason)
        return effort.last.answer

    async def _hold(self, call: Call, effort: Effort, waiting: Waiting | None) -> bool:
        """Waits for a change of the table or a pause; False when the time or the places for it are used up."""
        now, route = self._clock(), self._backends.find(call.whose)
        effort.wakes |= route is not None and route.wake_s is not None
        if waiting:
            # What was promised to who came while it slept is kept when it is awake, and endpoints are still to be told.
            effort.hold_until = max(effort.hold_until, waiting.began_s + self._hold_s(route))
        left = effort.hold_until - now
        # A stream that is half answered keeps the place that it has; it came in by `max_inflight`.
        if left <= 0 or (self.held >= self._settings.max_held and not effort.resumes):
            return False
        # An endpoint that failed is tried again after a pause; where there is none, only a new table can help.
        pause_s = min(left, effort.pause_s) if effort.tried else left
        with self._holding(waiting):
            await self._backends.changed(min(pause_s, waiting.until_next_s(route, now)) if waiting else pause_s)
        if waiting:
            self._backends.call(call.whose)
            await waiting.tell(self._backends.find(call.whose), self._clock())
            if waiting.left:
                return False
        effort.pause_s = min(effort.pause_s * 2, _MAX_PAUSE_S)
        effort.tried.clear()
        return True

    @contextlib.contextmanager
    def _holding(self, waiting: Waiting | None) -> Iterator[None]:
        visitors = waiting.visitors if waiting else None
        self.held += 1
        self._metrics.held.inc()
        if visitors:
            visitors.held += 1
        try:
            yield
        finally:
            self.held -= 1
            self._metrics.held.dec()
            if visitors:
                visitors.held -= 1

    def _hold_s(self, route: Route | None) -> float:
        return self._settings.hold_timeout_s if route is None or route.hold_s is None else route.hold_s
