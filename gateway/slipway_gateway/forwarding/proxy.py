"""Forwards one request: attempts until a first byte, and again for the rest of a stream whose server is gone."""

import asyncio
from collections.abc import Callable

import aiohttp
from aiohttp import web

from ..balancing.backends import Backends
from ..judging.samples import ENTRY_BYTES, MAX_ENTRIES
from ..limits.budget import Budget
from ..limits.container import budget_bytes, memory_limit_bytes
from ..mirror.queue import Lane
from ..settings import Settings
from ..telemetry.metrics import Metrics, Record
from ..upstream.exchange import Call
from ..upstream.tenant_proof import Prover
from ..wire import errors
from .crashes import Crashes
from .held_request import Waiting
from .relay import Relay, RelayContext
from .resume_memory import Memory
from .resumption import Resumption
from .retries import Retries
from .retry_state import Effort
from .sender import Sender


class Proxy:
    """Runs requests: it bounds their time and joins attempts, responses and mirrored copies."""

    def __init__(
        self, settings: Settings, backends: Backends, metrics: Metrics, session: aiohttp.ClientSession
    ) -> None:
        self._settings = settings
        self._backends = backends
        self._cut = False
        # As long as a request runs: what `cut` ends it by.
        self._limits: set[asyncio.Timeout] = set()
        clock = self._clock = asyncio.get_running_loop().time
        self.budget = _budget(settings, metrics, clock)
        prover = Prover(settings.tenant_keys_file)
        self._crashes = Crashes(metrics, clock)
        sender = Sender(backends, session, prover, clock)
        self._retries = Retries(settings, backends, metrics, sender, self._crashes, clock=clock)
        memory = Memory(settings.max_remembered_bytes, settings.remember_s, clock, self.budget)
        metrics.remembered.set_function(lambda: memory.size_bytes)
        self.resumption = Resumption(settings, self._retries, memory, metrics, clock)
        account = self.budget.open("")
        self.lane = Lane(settings, backends, metrics, session, self._is_busy, account=account, prover=prover)
        self._shared = RelayContext(self.resumption, self.lane, self._crashes, clock, settings.stall_timeout_s)

    def _is_busy(self) -> bool:
        """Whether clients need all there is: some wait for an endpoint, or half of `max_inflight` is in flight."""
        return self._retries.held > 0 or len(self._limits) > self._settings.max_inflight // 2

    async def forward(self, request: web.Request, call: Call, record: Record, *, close: bool) -> web.StreamResponse:
        limit = asyncio.timeout_at(self._clock() + self._settings.request_timeout_s)
        effort = Effort(self._clock(), self._settings.max_attempts)
        visitors, every_s = self._backends.enter(call.whose), self._settings.wake_comment_s
        waiting = Waiting(request, call, record, visitors, began_s=self._clock(), every_s=every_s)
        relay: Relay | None = None
        try:
            async with limit:
                self._limit(limit)
                self._crashes.check(call, record, effort)
                answer = await self._retries.first_answer(call, record, effort, waiting)
                if (ended := await waiting.turn_down(answer)) is not None:
                    return ended
                relay = Relay(self._shared, request, call, answer, record, opened=waiting.out)
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
