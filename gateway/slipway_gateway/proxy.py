"""Forwards one request: attempts until a first byte, and again for the rest of a stream whose server is gone."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from .backends import Backends
from .bodies import outgoing
from .budget import Account, Budget
from .container import budget_bytes, memory_limit_bytes
from .crashes import Crashes
from .exchange import Answer, Call, Effort, Fault
from .fate import Fate
from .lease import Lease
from .memory import Memory, name_of
from .mirror.lane import Lane
from .proof import Prover
from .relay import Relay
from .router import Target
from .samples import ENTRY_BYTES, MAX_ENTRIES
from .settings import Settings
from .table import Route
from .telemetry.metrics import Metrics, Record
from .upstream import read_at_least
from .waiting import Waiting
from .wire import answers, errors
from .wire.resume import Trail

RETRIED_STATUSES = frozenset({429, 502, 503})
# A whole answer up to this size is read before its first byte is sent: a server that dies in it is still a clean 502.
_MAX_WHOLE_BYTES = 1 << 20
_MAX_REFUSAL_BYTES = 64 << 10
_MAX_PAUSE_S = 1.0
_AUTOMATIC_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class Proxy:
    """Owns the connections to the endpoints."""

    def __init__(
        self, settings: Settings, backends: Backends, metrics: Metrics, session: aiohttp.ClientSession
    ) -> None:
        self._settings = settings
        self._backends = backends
        self._metrics = metrics
        self._session = session
        self._held = 0
        self._cut = False
        # As long as a request runs: what `cut` ends it by.
        self._limits: set[asyncio.Timeout] = set()
        self._clock = asyncio.get_running_loop().time
        self.crashes = Crashes(metrics, self._clock)
        self.budget = _budget(settings, metrics, self._clock)
        self._memory = Memory(settings.max_remembered_bytes, settings.remember_s, self._clock, self.budget)
        metrics.remembered.set_function(lambda: self._memory.size_bytes)
        self._prover = Prover(settings.tenant_keys_file)
        account = self.budget.open("")
        self.lane = Lane(settings, backends, metrics, session, self._is_busy, account=account, prover=self._prover)

    def _is_busy(self) -> bool:
        """Whether clients need all there is: some wait for an endpoint, or half of `max_inflight` is in flight."""
        return self._held > 0 or len(self._limits) > self._settings.max_inflight // 2

    async def forward(self, request: web.Request, call: Call, record: Record, *, close: bool) -> web.StreamResponse:
        limit = asyncio.timeout_at(self._clock() + self._settings.request_timeout_s)
        effort = Effort(self._clock(), self._settings.max_attempts)
        visitors, every_s = self._backends.enter(call.whose), self._settings.wake_comment_s
        waiting = Waiting(request, call, record, visitors, began_s=self._clock(), every_s=every_s)
        relay: Relay | None = None
        try:
            async with limit:
                self._limit(limit)
                self.crashes.check(call, record, effort)
                answer = await self._first_answer(call, record, effort, waiting)
                if (ended := await waiting.turn_down(answer)) is not None:
                    return ended
                relay = Relay(self, request, call, answer, record, opened=waiting.out)
                return await relay.run(close=close)
        except TimeoutError:
            if relay is None:
                if effort.fate and not self._cut:
                    effort.fate.failed(self._clock())
                return await waiting.refuse(errors.draining() if self._cut else errors.timed_out())
            return await relay.end("drained" if self._cut else "timeout")
        except errors.Refusal as refusal:
            return await waiting.refuse(refusal)
        finally:
            self._limits.discard(limit)
            if relay:
                relay.close()
            if effort.fate:
                effort.fate.left(self._clock())
            self._backends.visits.leave(visitors)

    def cut(self) -> None:
        """Ends what still runs: a stream with an event that says so, anything else with a refusal."""
        self._cut = True
        for limit in self._limits:
            self._limit(limit)

    def _limit(self, limit: asyncio.Timeout) -> None:
        self._limits.add(limit)
        if self._cut and not limit.expired():
            limit.reschedule(self._clock())

    # -- until the first byte

    async def _first_answer(self, call: Call, record: Record, effort: Effort, waiting: Waiting | None = None) -> Answer:
        """`waiting`: of a request that nobody has begun to answer."""
        while effort.spent < effort.limit:
            target = self._pick(call, effort)
            if target is None and await self.crashes.waits(effort):
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
            with self.crashes.trial(target.url, effort):
                result = await self._attempt(call, target, effort.fate if first else None)
            if isinstance(result, Answer):
                return result
            effort.note(target.url, result)
            self._metrics.retried(target.model, target.revision, result.reason)
            # Of a stream that goes on a reset alone says too little: `max_resumes` bounds it.
            if result.crashed and (result.answer or not effort.resumes):
                self.crashes.note(call, target, record, effort, on_trial=True, said=result.answer is not None)
        return self._give_up(call, effort)

    def _pick(self, call: Call, effort: Effort) -> Target | None:
        avoided = self.crashes.avoided(effort)
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
        if left <= 0 or (self._held >= self._settings.max_held and not effort.resumes):
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
        self._held += 1
        self._metrics.held.inc()
        if visitors:
            visitors.held += 1
        try:
            yield
        finally:
            self._held -= 1
            self._metrics.held.dec()
            if visitors:
                visitors.held -= 1

    def _hold_s(self, route: Route | None) -> float:
        return self._settings.hold_timeout_s if route is None or route.hold_s is None else route.hold_s

    async def _attempt(self, call: Call, target: Target, fate: Fate | None) -> Answer | Fault:
        """`fate`: of the first attempt alone."""
        lease = self._backends.lease(target, first=fate is not None, fate=fate, client=call.client)
        response: aiohttp.ClientResponse | None = None
        done = False
        try:
            response = await self._post(call, target)
            result = await self._read_start(target, response, lease, call.account)
            done = isinstance(result, Answer)
            return result
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            lease.failed()
            self._no_answer(target)
            return Fault("connect", sent=False)
        except TimeoutError:
            lease.failed()
            raise
        except (aiohttp.ClientError, OSError):
            lease.failed()
            # One that is about to leave is gone for other reasons; and an answer that has begun has its own bounds.
            listed = target.url in self._no_answer(target)
            return Fault("reset", crashed=listed and response is None)
        finally:
            if not done:
                lease.release()
                if response is not None:
                    response.close()

    def _no_answer(self, target: Target) -> tuple[str, ...]:
        """An endpoint did not answer; returns the endpoints of its revision that take new requests."""
        ready = self._ready_urls(target)
        self._backends.ejection.failed(target, 0, ready)
        return ready

    def _answered(self, target: Target, status: int) -> None:
        if status < 500:
            self._backends.ejection.succeeded(target)
        else:
            self._backends.ejection.failed(target, status, self._ready_urls(target))

    def _ready_urls(self, target: Target) -> tuple[str, ...]:
        return self._backends.urls(target.model, target.revision)

    async def _post(self, call: Call, target: Target) -> aiohttp.ClientResponse:
        self._prover.sign(call.headers, target.route)
        return await self._session.post(
            URL(target.url + call.path_qs, encoded=True),
            data=outgoing(call.body, call.tokens),
            headers=call.headers,
            allow_redirects=False,
            skip_auto_headers=_AUTOMATIC_HEADERS,
        )

    async def _read_start(
        self, target: Target, response: aiohttp.ClientResponse, lease: Lease, account: Account
    ) -> Answer | Fault:
        status = response.status
        whole = response.content_length is not None or response.content_type == "application/json"
        wanted = _MAX_REFUSAL_BYTES if status in RETRIED_STATUSES else _MAX_WHOLE_BYTES if whole else 1
        start = await read_at_least(response, wanted, account)
        answer = Answer(target, status, CIMultiDict(response.headers), start)
        if status >= 500 and not answers.is_deadline(start):
            lease.failed(start)
        elif status != 200 and lease.fate:
            lease.fate.refused(self._clock())
        self._answered(target, status)
        if status in RETRIED_STATUSES:
            return Fault(str(status), answer=answer, crashed=status == 503 and errors.says_crashed(start))
        if status < 500:
            lease.began()
        answer.rest = None if response.content.at_eof() else response
        answer.lease = lease
        return answer

    # -- what a relay needs

    def resume_effort(self) -> Effort:
        """For all resumes of one stream: what kills each server that it comes to must come to few."""
        return Effort(0.0, self._settings.max_resumes + 1, resumes=True)

    async def go_on(self, call: Call, trail: Trail, broken: Answer, record: Record, effort: Effort) -> Answer | None:
        """The rest of a broken stream from another server of its revision; None when none gives it in time."""
        target = broken.target
        headers, tokens = trail.ask(call.headers, call.tokens)
        effort.again(target.url, self._clock() + self._settings.resume_timeout_s)
        try:
            rest = replace(call, headers=headers, tokens=tokens, revision=target.revision)
            answer = await self._first_answer(rest, record, effort)
        except (errors.Refusal, aiohttp.ServerTimeoutError) as ended:
            if isinstance(ended, errors.Refusal) and ended.outcome == errors.POISON:
                raise
            answer = broken
        if answer is not broken and (answer.status != 200 or not trail.goes_on(answer.headers)):
            answer.close()
            answer = broken
        self._metrics.resumed(target.model, target.revision, "lost" if answer is broken else "resumed")
        return None if answer is broken else answer

    def remember(self, call: Call, trail: Trail) -> None:
        """Of a stream that did not come to its end here."""
        if tokens := trail.tokens:
            self._memory.keep(name_of(trail.stream, call), tokens)

    def remembered(self, call: Call, stream: str) -> bytes:
        """Tokens of a stream that broke here, with commas; empty when it did not, or too long ago."""
        tokens = self._memory.find(name_of(stream, call))
        self._metrics.returned(known=bool(tokens))
        return tokens

    def now(self) -> float:
        return self._clock()

    @property
    def stall_timeout_s(self) -> float:
        return self._settings.stall_timeout_s


def _budget_bytes(settings: Settings) -> int:
    return budget_bytes(settings.memory_budget_bytes, memory_limit_bytes())


def sessions_within(settings: Settings) -> int:
    """How many sessions are remembered for the judge: a sixteenth of the memory for requests."""
    return min(MAX_ENTRIES, _budget_bytes(settings) // 16 // ENTRY_BYTES)


def _budget(settings: Settings, metrics: Metrics, clock: Callable[[], float]) -> Budget:
    size_bytes = _budget_bytes(settings) - sessions_within(settings) * ENTRY_BYTES
    share_bytes = size_bytes * settings.max_client_percentage // 100
    made = Budget(size_bytes, share_bytes, clock, metrics.shed)
    metrics.memory_budget.set(size_bytes)
    metrics.memory_held.set_function(lambda: made.used_bytes)
    return made
