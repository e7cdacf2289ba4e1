"""What answers a request in place of its own deployment, while that one cannot: before the first byte only.

Other deployments, a smaller one under load, and at most one provider outside. What failed is counted as before, against
the revision that failed. What something else answers is no evidence about any revision. A fallback of a fallback is not
tried, and a request that engines died with goes nowhere else.
"""

import asyncio
import logging
from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from slipway_contracts.resilience import ExternalTarget

from ..balancing.activity import RouteActivity
from ..balancing.circuit_breaker import OPEN
from ..balancing.load_balancer import LoadBalancer
from ..balancing.overload import MODEL
from ..external.client import ExternalCall, ExternalClient
from ..routing.fallbacks import Fallback
from ..routing.router import RouteEndpoint
from ..routing.table import Route, RouteTable
from ..settings import GatewaySettings
from ..telemetry.metrics import GatewayMetrics, RequestRecord
from ..upstream.exchange import UpstreamRequest, UpstreamResponse
from ..wire import errors, request_fields
from ..wire.request_fields import RequestFields
from .held_request import HeldRequest
from .retries import Retries
from .retry_state import RetryState

log = logging.getLogger(__name__)

ERROR, NO_CAPACITY, CONTEXT_TOO_LONG, TIMEOUT = "error", "no_capacity", "context_too_long", "timeout"
QUOTA, CIRCUIT_OPEN = "quota", "circuit_open"  # limits of the tenant refuse the request; the breaker is open
_BUSY_STATUSES = frozenset({429, 503})

Result = UpstreamResponse | errors.RequestError
Target = Route | Fallback  # a deployment, or a provider


class Answered(msgspec.Struct):
    """A request and its first response. `state`, `activity`: of the deployment that answered in place of its own."""

    outgoing: UpstreamRequest
    response: UpstreamResponse
    state: RetryState | None = None
    activity: RouteActivity | None = None


def reason_of(result: Result) -> str:
    """Why another deployment should answer; empty where the result is for the client."""
    if isinstance(result, errors.RequestError):
        if result.status == 504:
            return TIMEOUT
        if result.code == errors.CIRCUIT_OPEN:
            return CIRCUIT_OPEN
        failed = result.outcome in ("no_endpoint", "upstream_error") and result.code != errors.ENGINE_CRASHED
        return (NO_CAPACITY if result.status == 503 else ERROR) if failed else ""
    if result.status in _BUSY_STATUSES:
        return NO_CAPACITY
    if result.failed:
        return ERROR
    return CONTEXT_TOO_LONG if errors.reports_context_too_long(result.status, result.start) else ""


def moved(outgoing: UpstreamRequest, target: Route, why: str) -> UpstreamRequest:
    """The request as another deployment gets it. Credentials of the client go only where that one wants them too."""
    headers = outgoing.headers.copy()
    for name in set(outgoing.forwarded) - set(target.forward_headers):
        headers.popall(name, None)
    table_name = msgspec.json.decode(_model_of(outgoing.body), type=str)
    isolation = outgoing.isolation
    return replace(
        outgoing,
        headers=headers,
        body=request_fields.with_model(outgoing.body, RequestFields(model=table_name), target.model),
        route=target.name,
        preferred="",
        prompt=None,
        forwarded=tuple(name for name in outgoing.forwarded if name in target.forward_headers),
        isolation=None if isolation is None else replace(isolation, deployment=target.name),
        fallback=why,
        capture=None,
        adapter=None,
        responds_as="" if outgoing.adapter and outgoing.responds_as == outgoing.adapter.model else outgoing.responds_as,
    )


class _Model(msgspec.Struct):
    model: msgspec.Raw


def _model_of(body: bytes) -> msgspec.Raw:
    return msgspec.json.decode(body, type=_Model).model


class Fallbacks:
    """First responses of the requests of one gateway, by their own deployment or by something else in its place."""

    def __init__(
        self,
        settings: GatewaySettings,
        balancer: LoadBalancer,
        retries: Retries,
        metrics: GatewayMetrics,
        external: ExternalClient,
    ) -> None:
        self._settings, self._balancer, self._retries, self._metrics = settings, balancer, retries, metrics
        self._external = external

    async def first_response(
        self,
        outgoing: UpstreamRequest,
        record: RequestRecord,
        state: RetryState,
        held_request: HeldRequest,
        refusal: errors.RequestError | None = None,
    ) -> Answered:
        """The first response, as of `Retries.first_response`, of the first deployment that has one for the client.

        `refusal`: limits of its tenant refuse the request, so its own deployment does not get it.

        Raises:
            RequestError: the request's own deployment has none, and nothing else answers in its place.
        """
        route = self._balancer.published.find(outgoing.whose)
        targets = list(self._targets(outgoing, record, route, beyond_limits=refusal is not None))
        state.fails_fast = bool(targets)
        result: Result = refusal or await self._own_result(
            outgoing, record, state, held_request, route, patient=not targets
        )
        reason = QUOTA if refusal else "" if state.suspect else reason_of(result)
        if route is not None and reason == NO_CAPACITY and isinstance(result, UpstreamResponse):
            self._balancer.overloads.refused(route)
        if targets and reason:
            failed_revision = record.revision
            if state.recorder is not None and state.recorder.on_fallback is not None:
                state.recorder.on_fallback()
            for target in targets:
                if is_smaller(target, route) and reason != NO_CAPACITY:
                    continue
                answered = await self._in_place(target, route, outgoing, record, reason)
                self._metrics.fell_back(record.model, failed_revision, reason, answered=answered is not None)
                if answered is not None:
                    if isinstance(result, UpstreamResponse):
                        result.close()
                    record.model = self._name_of(target)
                    return answered
            record.revision = failed_revision
        if isinstance(result, errors.RequestError):
            raise result
        return Answered(outgoing, result)

    def answers_beyond_limits(self, outgoing: UpstreamRequest, record: RequestRecord) -> bool:
        """Whether a provider may answer a request that limits of its tenant refuse."""
        route = self._balancer.published.find(outgoing.whose)
        return any(self._targets(outgoing, record, route, beyond_limits=True))

    async def _own_result(
        self,
        outgoing: UpstreamRequest,
        record: RequestRecord,
        state: RetryState,
        held_request: HeldRequest,
        route: Route | None,
        *,
        patient: bool,
    ) -> Result:
        """What the request's own deployment answers, or why it does not. `patient`: nothing else can answer."""
        if route is None or route.circuit_breaker is None:
            return await self._attempts(outgoing, record, state, held_request, None if patient else route)
        breakers = self._balancer.breakers
        if (sent_in := breakers.begin(route)) == OPEN:
            return errors.circuit_open(record.model, breakers.opens_again_s(route))
        failed: bool | None = None
        try:
            result = await self._attempts(outgoing, record, state, held_request, route)
            failed = failed_by(result)
        except TimeoutError:
            failed = True
            raise
        finally:
            if breakers.ended(route, sent_in, failed=None if state.suspect else failed):
                self._metrics.breaker_opened(record.model)
                log.warning("the circuit breaker of %s opened", route.name)
        return result

    async def _attempts(
        self,
        outgoing: UpstreamRequest,
        record: RequestRecord,
        state: RetryState,
        held_request: HeldRequest | None,
        bounded_by: Route | None,
    ) -> Result:
        """The result of a deployment. `bounded_by`: the route whose time to the first byte bounds it; None: none does.

        The time of the whole request bounds all tries together.
        """
        try:
            async with asyncio.timeout(bounded_by.first_byte_seconds if bounded_by else None) as bound:
                return await self._retries.first_response(outgoing, record, state, held_request)
        except errors.RequestError as refusal:
            return refusal
        except TimeoutError:
            if not bound.expired() or bounded_by is None:
                raise
        # It counts as any other failure: against its revision, and against the pod that hangs.
        if state.recorder is not None and not state.recorder.ended:
            state.recorder.fail(self._balancer.now())
        self._balancer.hangs(RouteEndpoint(outgoing.whose, record.model, record.revision, record.upstream))
        return errors.timed_out()

    def _targets(
        self, outgoing: UpstreamRequest, record: RequestRecord, route: Route | None, *, beyond_limits: bool = False
    ) -> Iterator[Target]:
        """What can answer in place of the request's own deployment, and may by its tenant: ready routes, a provider.

        `beyond_limits`: limits of the tenant refuse the request, so that only a provider that says so may answer.
        """
        table = self._balancer.published.current
        if table is None or route is None or not _may_move(outgoing):
            return
        fallbacks = route.fallbacks if outgoing.fallbacks is None else outgoing.fallbacks
        if route.smaller:
            fallbacks = (Fallback(route.smaller), *fallbacks)
        has_external = False
        for fallback in fallbacks:
            if fallback.external is not None:
                if not has_external and self._may_leave(fallback.external, outgoing, record, beyond_limits):
                    has_external = True
                    yield fallback
            elif not beyond_limits and (target := self._ready(table, fallback.name, record)) and target is not route:
                yield target

    def _ready(self, table: RouteTable, name: str, record: RequestRecord) -> Route | None:
        """A route that can answer, if the tenant may use it."""
        target = table.routes.get(name)
        if target is None or target.asleep or not table.ready(target):
            return None
        allowed = record.identity is None or record.identity.tenant.may_use((target.name, table.id_of(target)))
        return target if allowed else None

    def _may_leave(
        self, target: ExternalTarget, outgoing: UpstreamRequest, record: RequestRecord, beyond_limits: bool
    ) -> bool:
        """Whether a request may go to a provider: its tenant allows that, and the administrator listed the host."""
        allowed = record.identity is not None and record.identity.tenant.external
        return allowed and (target.on_quota or not beyond_limits) and self._external.may_call(target, outgoing.path)

    async def _in_place(
        self, target: Target, route: Route | None, outgoing: UpstreamRequest, record: RequestRecord, reason: str
    ) -> Answered | None:
        """What a target answers, within the retry budget of the request's own route; None where it cannot either."""
        if not self._balancer.begin_retry(route):
            return None
        try:
            if isinstance(target, Fallback):
                return await self._by_provider(target, outgoing, record, reason)
            return await self._by_route(target, route, outgoing, record, reason)
        finally:
            self._balancer.retry_budgets.leave(outgoing.whose)

    async def _by_route(
        self, target: Route, route: Route | None, outgoing: UpstreamRequest, record: RequestRecord, reason: str
    ) -> Answered | None:
        own = moved(outgoing, target, f"{_printable(outgoing.whose)}; {reason}")
        if is_smaller(target, route):
            own = replace(own, degraded=(MODEL, *own.degraded))
            self._metrics.degraded(record.model, (MODEL,))
        state = RetryState(0.0, self._settings.max_attempts, fails_fast=True)
        activity = self._balancer.enter(target.name)
        answered: Answered | None = None
        try:
            result = await self._attempts(own, record, state, None, route)
            reason_against = reason_of(result)
            if isinstance(result, UpstreamResponse) and not reason_against:
                answered = Answered(own, result, state, activity)
            elif isinstance(result, UpstreamResponse):
                result.close()
        finally:
            if answered is None:
                self._balancer.activity.leave(activity)
        if is_smaller(target, route) and route is not None and reason_against == NO_CAPACITY:
            self._balancer.overloads.refused(route)
        if answered is not None:
            self._charge(own, record, target.name, self._name_of(target))
        return answered

    async def _by_provider(
        self, target: Fallback, outgoing: UpstreamRequest, record: RequestRecord, reason: str
    ) -> Answered | None:
        """At most one call. What it costs is the price of the model that has the provider's name here."""
        assert target.external is not None
        name = _printable(target.name)
        about = (outgoing.path, outgoing.body, outgoing.stream, outgoing.account, outgoing.client)
        if outgoing.meter is not None:
            outgoing.meter.sent = True
        result = await self._external.respond(ExternalCall(target.namespace, target.external, name, *about))
        if not isinstance(result, UpstreamResponse):
            self._metrics.called_provider(record.model, name, str(result))
            return None
        self._metrics.called_provider(record.model, name, "answered")
        if outgoing.meter is not None:
            outgoing.meter.answered = True
        self._charge(outgoing, record, name, name)
        record.revision = record.upstream = ""
        why = f"{_printable(outgoing.whose)}; {reason}; external={_printable(target.external.name)}"
        own = replace(outgoing, fallback=why, responds_as=outgoing.model, capture=None, prompt=None, isolation=None)
        return Answered(own, result)

    def _charge(self, outgoing: UpstreamRequest, record: RequestRecord, name: str, model: str) -> None:
        """The tenant pays the price of what answers. What was reserved stays reserved, once."""
        if outgoing.meter is not None and record.identity is not None:
            outgoing.meter.turn_to(model, record.identity.tenant.policy.price_of(name, model))

    def _name_of(self, target: Target) -> str:
        table = self._balancer.published.current
        if isinstance(target, Fallback):
            return _printable(target.name)
        return table.id_of(target) if table else target.name


def failed_by(result: Result) -> bool | None:
    """Whether a result is a failure for the circuit breaker; None where it is no evidence: the deployment is busy."""
    reason = reason_of(result)
    if reason in (ERROR, TIMEOUT):
        return True
    return None if reason == NO_CAPACITY or isinstance(result, errors.RequestError) else False


def is_smaller(target: Target, route: Route | None) -> bool:
    """Whether a target is the smaller deployment of the route's degradation, and no other fallback."""
    return route is not None and isinstance(target, Route) and target.name == route.smaller


def _may_move(outgoing: UpstreamRequest) -> bool:
    """Whether another model may answer: a request for text that no revision has begun with, and no line of a batch."""
    bound = outgoing.revision or outgoing.holder or outgoing.tokens
    return outgoing.writes_text and outgoing.method == "POST" and not bound and not outgoing.batch


def _printable(name: str) -> str:
    """A name for a header: names of a routes file may have any characters."""
    return "".join(char if "!" <= char <= "~" else "?" for char in name)
