"""Forwards requests: attempts until the first byte, then the response; the time of all of it is limited."""

import asyncio
import time
from collections.abc import Callable
from types import TracebackType

import aiohttp
from aiohttp import web

from slipway_contracts.route_table import InferenceLogSample

from ..balancing.load_balancer import LoadBalancer
from ..feedback.tokens import FeedbackTokens
from ..judging.samples import ENTRY_BYTES, MAX_ENTRIES
from ..limits.budget import MemoryBudget
from ..limits.container import budget_bytes, memory_limit_bytes
from ..limits.processor import ProcessorUse, processor_limit
from ..mirror.endpoints import MirrorEndpoints
from ..mirror.leg import LegSender
from ..mirror.queue import MirrorQueue
from ..mirror.room import MirrorMemory
from ..mirror.twins import TwinShadows
from ..routing.table import namespace_of
from ..settings import GatewaySettings
from ..telemetry.inference_log import Exchanged, InferenceLog, may_capture
from ..telemetry.metrics import GatewayMetrics, RequestRecord
from ..upstream.exchange import UpstreamRequest, UpstreamResponse
from ..upstream.isolation import TenantIsolation
from ..upstream.session import open_direct
from ..upstream.tenant_proof import TenantSigner
from ..wire import errors, request_fields
from ..wire.inference import infers
from ..wire.predictions import only_label
from .crashes import CrashTracker
from .held_request import HeldRequest
from .relay import Relay, RelayContext
from .resume_memory import ResumeMemory
from .resumption import Resumption
from .retries import Retries
from .retry_state import RetryState
from .sender import Sender


class Proxy:
    """Runs requests: it bounds their time and joins attempts, responses and mirrored copies."""

    def __init__(
        self,
        settings: GatewaySettings,
        balancer: LoadBalancer,
        metrics: GatewayMetrics,
        session: aiohttp.ClientSession,
        inference_log: InferenceLog | None = None,
    ) -> None:
        self._settings = settings
        self._balancer = balancer
        self._limits = _TimeLimits(settings.request_timeout_s)
        clock = self._clock = time.monotonic  # the event loop's
        self.budget = _budget(settings, metrics, clock)
        signer = TenantSigner(settings.tenant_keys_file)
        self.feedback = FeedbackTokens(settings.tenant_keys_file)
        self.inference_log = inference_log or InferenceLog()
        self._crashes = CrashTracker(balancer, metrics, settings.resume_timeout_s, clock)
        isolation = TenantIsolation(balancer.published, signer)
        sender = Sender(balancer, session, open_direct(session), signer, clock, isolation)
        self._retries = Retries(settings, balancer, metrics, sender, self._crashes, clock=clock)
        memory = ResumeMemory(settings.max_remembered_bytes, settings.remember_s, clock, self.budget)
        metrics.remembered.set_function(lambda: memory.size_bytes)
        self.resumption = Resumption(settings, self._retries, memory, metrics, clock)
        self._processor = ProcessorUse(clock, time.thread_time, processor_limit())
        copies = MirrorMemory(self.budget.open(""), settings.mirror_max_bytes)
        endpoints = MirrorEndpoints(balancer.in_flight, clock)
        self.mirror_queue = MirrorQueue(
            settings,
            balancer,
            metrics,
            session,
            self._is_busy,
            memory=copies,
            signer=signer,
            endpoints=endpoints,
            isolation=isolation,
            is_suspect=self._crashes.is_suspect,
            on_death=self._crashes.copy_died,
        )
        legs = LegSender(settings, session, copies, endpoints, clock, self._crashes.copy_died, isolation=isolation)
        self.twins = TwinShadows(
            settings, balancer, metrics, legs, self._is_busy, is_suspect=self._crashes.is_suspect, signer=signer
        )
        self._shared = RelayContext(self.resumption, self.mirror_queue, self._crashes, clock, settings.stall_timeout_s)

    def _is_busy(self, route: str) -> bool:
        """Whether clients need the capacity: some wait for an endpoint in the namespace of this route, half of
        `max_inflight` is in flight, or the processor is in use."""
        if self._retries.is_awaited(namespace_of(route)) or len(self._limits) > self._settings.max_inflight // 2:
            return True
        most = self._settings.mirror_max_cpu_percentage
        return most < 100 and self._processor.share() * 100 > most

    async def forward(
        self, request: web.Request, outgoing: UpstreamRequest, record: RequestRecord
    ) -> web.StreamResponse:
        began_s = self._clock()
        state = RetryState(began_s, self._settings.max_attempts)
        activity, every_s = self._balancer.enter(outgoing.whose), self._settings.wake_comment_s
        held_request = HeldRequest(request, outgoing, record, activity, began_s=began_s, every_s=every_s)
        relay: Relay | None = None
        try:
            with _Bound(self._limits):
                self._crashes.check(outgoing, record, state)
                response = await self._retries.first_response(outgoing, record, state, held_request)
                if (ended := await held_request.refuse_response(response)) is not None:
                    return ended
                token = self._feedback_token(outgoing, response, state, record)
                opened = held_request.out
                relay = Relay(self._shared, request, outgoing, response, record, opened=opened, feedback=token)
                out = await relay.run()
                self._log_inference(outgoing, response, record, token)
                return out
        except TimeoutError:
            if relay is None:
                if state.recorder and not self._limits.cut:
                    state.recorder.fail(self._clock())
                return await held_request.refuse(errors.draining() if self._limits.cut else errors.timed_out())
            return await relay.end("drained" if self._limits.cut else "timeout")
        except errors.RequestError as refusal:
            return await held_request.refuse(refusal)
        finally:
            if relay:
                relay.close()
            recorder = state.recorder
            if recorder and not recorder.ended:
                recorder.abandon(self._clock())
            self._balancer.activity.leave(activity)
            own = recorder.outcome if recorder and outgoing.is_sample else None
            self.twins.offer(outgoing, record.request_id, own)

    def _feedback_token(
        self, outgoing: UpstreamRequest, response: UpstreamResponse, state: RetryState, record: RequestRecord
    ) -> str:
        """The token with which the client can send feedback on this response; empty where feedback has no use."""
        origin = state.recorder.origin if state.recorder else None
        if origin is None or response.status != 200 or not outgoing.computes:
            return ""
        if not origin.compared and not (self._log_rule(outgoing, record) and may_capture(record.identity)):
            return ""
        whole = response.rest is None
        label = only_label(outgoing.path, response.headers, response.start) if whole else None
        tenant = record.identity.name if record.identity else ""
        session = "" if outgoing.key.startswith(request_fields.ALONE) else outgoing.key
        return self.feedback.make(origin, response.endpoint.revision, tenant, session, label)

    def _log_inference(
        self, outgoing: UpstreamRequest, response: UpstreamResponse, record: RequestRecord, token: str
    ) -> None:
        """Adds a request of a classic model, whose client has the whole response, to the inference log."""
        rule = self._log_rule(outgoing, record) if record.code == 200 else None
        if rule is None:
            return
        output = response.start if response.rest is None else None
        id_ = self.feedback.id_of(token)
        found = Exchanged(outgoing.route, outgoing.path, response.headers, outgoing.body, output, id_)
        self.inference_log.inferred(found, rule, record, self._clock() - record.started)

    def _log_rule(self, outgoing: UpstreamRequest, record: RequestRecord) -> InferenceLogSample | None:
        """The rule by which the inference log takes this request of a classic model; None where it does not."""
        if not (self.inference_log.is_on and infers(outgoing.path)):
            return None
        table = self._balancer.published.current
        route = table.routes.get(outgoing.route) if table else None
        rule = route.inference_log if route else None
        return rule if rule is not None and self.inference_log.takes(rule, record) else None

    def cut(self) -> None:
        """Ends running requests: a stream with an error event, any other one with an error response."""
        self._limits.end_all()


class _TimeLimits:
    """Bounds the time of all running requests by one timer, which costs less than a timer for each request.

    `cut`: requests are ended before their time.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._due_s: dict[_Bound, float] = {}  # in the order in which they are due: all have the same limit
        self._timer: asyncio.TimerHandle | None = None
        self.cut = False

    def __len__(self) -> int:
        """Requests that run."""
        return len(self._due_s)

    def enter(self, bound: "_Bound") -> None:
        """The time of a request begins; `leave` ends it."""
        due_s = self._due_s[bound] = time.monotonic() + self._limit_s
        if self.cut:
            self._loop.call_soon(bound.end)
        elif self._timer is None:
            self._timer = self._loop.call_at(due_s, self._look)

    def leave(self, bound: "_Bound") -> None:
        del self._due_s[bound]

    def end_all(self) -> None:
        self.cut = True
        for bound in self._due_s:
            bound.end()

    def _look(self) -> None:
        self._timer = None
        for bound, due_s in self._due_s.items():
            if due_s > self._loop.time():
                self._timer = self._loop.call_at(due_s, self._look)
                return
            bound.end()


class _Bound:
    """Context manager in which the time of one request is bounded: as `asyncio.timeout`, which has its own timer.

    Raises TimeoutError at its end if `end` was called inside.
    """

    __slots__ = ("_before", "_ended", "_limits", "_task")

    def __init__(self, limits: _TimeLimits) -> None:
        self._limits = limits
        self._task: asyncio.Task[object] | None = None
        self._before = 0  # cancellations of the task that others requested
        self._ended = False

    def __enter__(self) -> None:
        self._task = task = asyncio.current_task()
        assert task is not None
        self._before = task.cancelling()
        self._limits.enter(self)

    def end(self) -> None:
        """The request ends now. Without effect when it has ended."""
        if self._task is not None and not self._ended:
            self._ended = True
            self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        self._limits.leave(self)
        if self._ended and task and task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from error


def _budget_bytes(settings: GatewaySettings) -> int:
    return budget_bytes(settings.memory_budget_bytes, memory_limit_bytes())


def max_sessions(settings: GatewaySettings) -> int:
    """How many sessions are remembered for the judge: those that a sixteenth of the memory for requests holds."""
    return min(MAX_ENTRIES, _budget_bytes(settings) // 16 // ENTRY_BYTES)


def _budget(settings: GatewaySettings, metrics: GatewayMetrics, clock: Callable[[], float]) -> MemoryBudget:
    size_bytes = _budget_bytes(settings) - max_sessions(settings) * ENTRY_BYTES
    share_bytes = size_bytes * settings.max_client_percentage // 100
    made = MemoryBudget(size_bytes, share_bytes, clock, metrics.shed)
    metrics.memory_budget.set(size_bytes)
    metrics.memory_held.set_function(lambda: made.used_bytes)
    return made
