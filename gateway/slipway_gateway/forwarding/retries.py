"""Attempts of a request until one gives a first byte; meanwhile the request may wait for an endpoint."""

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from slipway_process import logs
from slipway_process.places import Places

from ..balancing.load_balancer import LoadBalancer
from ..judging.outcome import OutcomeRecorder
from ..judging.samples import stratum
from ..routing.router import RouteEndpoint
from ..routing.table import Route, namespace_of
from ..settings import GatewaySettings
from ..telemetry.metrics import GatewayMetrics, RequestRecord
from ..upstream.exchange import UpstreamRequest, UpstreamResponse
from ..wire import errors
from .crashes import CrashTracker
from .held_request import HeldRequest
from .retry_state import BAD_RESPONSE, AttemptFailure, RetryState
from .sender import Sender

if TYPE_CHECKING:
    from slipway_plane import _native


class Retries:
    """Attempts of all requests of one gateway."""

    def __init__(
        self,
        settings: GatewaySettings,
        balancer: LoadBalancer,
        metrics: GatewayMetrics,
        sender: Sender,
        crashes: CrashTracker,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._balancer = balancer
        self._metrics = metrics
        self._sender = sender
        self._crashes = crashes
        self._clock = clock
        self._held = Places(settings.max_held)

    def is_awaited(self, namespace: str) -> bool:
        """Whether requests wait for an endpoint in this namespace."""
        return self._held.held_by(_of_namespace(namespace)) > 0

    async def first_response(
        self,
        outgoing: UpstreamRequest,
        record: RequestRecord,
        state: RetryState,
        held_request: HeldRequest | None = None,
    ) -> UpstreamResponse:
        """The response to relay: the first that is no reason to retry or, after all attempts, the last error response.

        `held_request`: None for a stream whose response has begun.

        Raises:
            RequestError: no endpoint came in time, the last attempt gave no response, or the request is poison.
        """
        try:
            return await self._first_response(outgoing, record, state, held_request)
        finally:
            self._end_wait(state)
            self._end_retry(outgoing, state)

    async def _first_response(
        self, outgoing: UpstreamRequest, record: RequestRecord, state: RetryState, held_request: HeldRequest | None
    ) -> UpstreamResponse:
        while state.spent < state.limit and self._begin_retry(outgoing, state):
            first = not (state.attempts or state.resumes)
            # What is sent in place of it, or after it, is none of the lane's.
            begun = record.begun if first and not record.attempts else None
            endpoint = _endpoint_of(begun) if begun else self._pick(outgoing, state, self._crashes.avoided(state))
            if endpoint is None:
                if state.suspect and self._pick(outgoing, state):
                    # Only trials of others are in its way.
                    await self._crashes.wait_for_trial(state)
                    continue
                if state.waits_in_vain or not await self._hold(outgoing, record, state, held_request):
                    break
                continue
            self._end_wait(state)
            if state.last:
                self._metrics.retried(endpoint.model, record.revision, state.last.reason)
            record.revision, record.upstream = endpoint.revision, endpoint.url
            record.attempts += not state.resumes
            logs.add(revision=endpoint.revision)
            state.sent_s = self._clock() - (begun.ages_s[1] if begun else 0.0)
            if first:
                state.recorder = self._recorder(outgoing, endpoint, state.sent_s, begun)
            with record.trace.attempt(outgoing.headers, endpoint.url, endpoint.revision, state.spent + 1) as traced:
                attempt = self._sender.attempt(outgoing, endpoint, state.recorder if first else None, begun)
                if state.suspect:
                    with self._crashes.trial(endpoint.url):
                        result = await attempt
                else:
                    result = await attempt
                traced(*_shown(result))
            if isinstance(result, UpstreamResponse):
                return result
            state.note(endpoint.url, result)
            if result.crashed:
                reported = result.response is not None
                self._crashes.note(outgoing, endpoint, record, state, on_trial=True, reported=reported)
        return self._give_up(outgoing, state)

    def _pick(
        self, outgoing: UpstreamRequest, state: RetryState, avoided: Collection[str] = ()
    ) -> RouteEndpoint | None:
        barred = self._crashes.barred(outgoing, state)
        excluded = state.tried.union(avoided, barred) if state.suspect else state.tried
        return self._balancer.pick(
            outgoing.whose,
            outgoing.key,
            excluded,
            outgoing.revision,
            preferred=outgoing.preferred,
            holder=outgoing.holder,
            tenant=outgoing.tenant,
            prompt=outgoing.prompt,
            host=outgoing.base_revision,
        )

    def _recorder(
        self, outgoing: UpstreamRequest, endpoint: RouteEndpoint, began_s: float, begun: "_native.Begun | None"
    ) -> OutcomeRecorder:
        return self._balancer.first_attempts.record(
            endpoint,
            outgoing.key,
            self._stratum(outgoing, endpoint, begun),
            began_s,
            is_sample=outgoing.is_sample,
            stream=outgoing.stream,
            client=outgoing.client,
            excused=outgoing.excused,
        )

    def _stratum(self, outgoing: UpstreamRequest, endpoint: RouteEndpoint, begun: "_native.Begun | None") -> str:
        # What the fast lane began with, its endpoint has seen by now.
        cached = begun.was_cached if begun else None
        if cached is None:
            cached = outgoing.prompt is not None and self._balancer.prefixes.is_cached(outgoing.prompt, endpoint.url)
        return stratum(len(outgoing.body), stream=outgoing.stream, cached=cached)

    def _give_up(self, outgoing: UpstreamRequest, state: RetryState) -> UpstreamResponse:
        if state.suspect:
            raise errors.engine_crashed(long=False)
        if state.last is None:
            gone = outgoing.revision and not self._balancer.published.lists(outgoing.whose, outgoing.revision)
            if gone:
                raise errors.stream_gone()
            route = self._balancer.published.find(outgoing.whose)
            expected_s = route.wake_s if route else None
            raise (
                errors.no_endpoint(outgoing.model) if expected_s is None else errors.asleep(outgoing.model, expected_s)
            )
        if state.last.response is None:
            raise errors.bad_response() if state.last.reason == BAD_RESPONSE else errors.unreachable(state.last.reason)
        return state.last.response

    async def _hold(
        self, outgoing: UpstreamRequest, record: RequestRecord, state: RetryState, held_request: HeldRequest | None
    ) -> bool:
        """Waits for a change of the table or a pause, and allows all endpoints again; counts the request as held.

        False: the time or the places for waiting are used up, or the client is gone.
        """
        now, route = self._clock(), self._balancer.published.find(outgoing.whose)
        state.wakes |= route is not None and route.wake_s is not None
        if held_request:
            # A request that arrived during sleep keeps its waiting time after the wake, until the endpoints are known.
            state.hold_until = max(state.hold_until, held_request.began_s + self._hold_s(route))
        left = state.hold_until - now
        if left <= 0 or not self._begin_wait(outgoing, record, state):
            return False
        record.trace.event("hold", tried=len(state.tried))
        # An endpoint that failed is tried again after a pause; without endpoints only a new table helps.
        pause_s = min(left, state.pause_s) if state.tried else left
        with self._holding(held_request):
            await self._balancer.published.changed(
                min(pause_s, held_request.until_next_s(route, now)) if held_request else pause_s
            )
        if held_request:
            self._balancer.request_wake(outgoing.whose)
            await held_request.send_comment(self._balancer.published.find(outgoing.whose), self._clock())
            if held_request.left:
                return False
        state.pauses += 1
        state.tried.clear()
        return True

    def _begin_wait(self, outgoing: UpstreamRequest, record: RequestRecord, state: RetryState) -> bool:
        """Takes a place until there is an endpoint, if there is one for its model, its namespace and its client.

        A stream whose response has begun needs none, nor does what a server had begun with: it has one among the
        requests in flight.
        """
        if state.resumes or state.was_taken or state.held_for:
            return True
        model, namespace = f"model:{outgoing.whose}", _of_namespace(namespace_of(outgoing.whose))
        owners = (model, namespace, record.owner)
        if self._held.take(*owners):
            return False
        state.held_for = owners
        return True

    def _begin_retry(self, outgoing: UpstreamRequest, state: RetryState) -> bool:
        """Takes a place in the budget of the route for a further attempt, until the response; False: there is none.

        A server that was not reached got nothing, so another attempt multiplies no load. What a server had begun with
        is no retry either.
        """
        if not state.spent or state.was_taken or state.is_retrying:
            return True
        state.is_retrying = self._balancer.begin_retry(self._balancer.published.find(outgoing.whose))
        return state.is_retrying

    def _end_retry(self, outgoing: UpstreamRequest, state: RetryState) -> None:
        if state.is_retrying:
            self._balancer.retry_budgets.leave(outgoing.whose)
            state.is_retrying = False

    def _end_wait(self, state: RetryState) -> None:
        if state.held_for:
            self._held.leave(*state.held_for)
            state.held_for = ()

    @contextlib.contextmanager
    def _holding(self, held_request: HeldRequest | None) -> Iterator[None]:
        activity = held_request.activity if held_request else None
        self._metrics.held.inc()
        if activity:
            activity.held += 1
        try:
            yield
        finally:
            self._metrics.held.dec()
            if activity:
                activity.held -= 1

    def _hold_s(self, route: Route | None) -> float:
        return self._settings.hold_timeout_s if route is None or route.hold_s is None else route.hold_s


def _of_namespace(namespace: str) -> str:
    return f"namespace:{namespace}"


def _endpoint_of(begun: "_native.Begun") -> RouteEndpoint:
    """Where the fast lane has sent a request."""
    return RouteEndpoint(*begun.endpoint)


def _shown(result: UpstreamResponse | AttemptFailure) -> tuple[str, int]:
    """What a span shows of an attempt: "ok" or why it failed, and the status of the response (0: there is none)."""
    if isinstance(result, UpstreamResponse):
        return "ok" if not result.failed else "failed", result.status
    return result.reason, result.response.status if result.response else 0
