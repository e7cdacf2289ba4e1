"""Other deployments that answer a request in place of its own, while that one cannot: before the first byte only.

What failed is counted as before, against the revision that failed. What another deployment answers is no evidence about
any revision. A fallback of a fallback is not tried, and a request that engines died with goes to no other deployment.
"""

import asyncio
from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from ..balancing.activity import RouteActivity
from ..balancing.load_balancer import LoadBalancer
from ..routing.router import RouteEndpoint
from ..routing.table import Route
from ..settings import GatewaySettings
from ..telemetry.metrics import GatewayMetrics, RequestRecord
from ..upstream.exchange import UpstreamRequest, UpstreamResponse
from ..wire import errors, request_fields
from ..wire.request_fields import RequestFields
from .held_request import HeldRequest
from .retries import Retries
from .retry_state import RetryState

ERROR, NO_CAPACITY, CONTEXT_TOO_LONG, TIMEOUT = "error", "no_capacity", "context_too_long", "timeout"
_BUSY_STATUSES = frozenset({429, 503})

Result = UpstreamResponse | errors.RequestError


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
    )


class _Model(msgspec.Struct):
    model: msgspec.Raw


def _model_of(body: bytes) -> msgspec.Raw:
    return msgspec.json.decode(body, type=_Model).model


class Fallbacks:
    """First responses of the requests of one gateway, by their own deployment or by another one in its place."""

    def __init__(
        self, settings: GatewaySettings, balancer: LoadBalancer, retries: Retries, metrics: GatewayMetrics
    ) -> None:
        self._settings, self._balancer, self._retries, self._metrics = settings, balancer, retries, metrics

    async def first_response(
        self, outgoing: UpstreamRequest, record: RequestRecord, state: RetryState, held_request: HeldRequest
    ) -> Answered:
        """The first response, as of `Retries.first_response`, of the first deployment that has one for the client.

        Raises:
            RequestError: the request's own deployment has none, and no other one answers in its place.
        """
        targets = list(self._targets(outgoing, record))
        state.fails_fast = bool(targets)
        result = await self._own_result(outgoing, record, state, held_request, patient=not targets)
        if targets and not state.suspect and (reason := reason_of(result)):
            failed_revision = record.revision
            for target in targets:
                answered = await self._by(target, outgoing, record, reason)
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

    async def _own_result(
        self,
        outgoing: UpstreamRequest,
        record: RequestRecord,
        state: RetryState,
        held_request: HeldRequest,
        *,
        patient: bool,
    ) -> Result:
        """What the request's own deployment answers, or why it does not. `patient`: nothing else can answer."""
        route = None if patient else self._balancer.published.find(outgoing.whose)
        try:
            async with asyncio.timeout(route.first_byte_seconds if route else None) as bound:
                return await self._retries.first_response(outgoing, record, state, held_request)
        except errors.RequestError as refusal:
            return refusal
        except TimeoutError:
            if not bound.expired() or route is None:
                raise
        # It counts as any other failure: against its revision, and against the pod that hangs.
        if state.recorder is not None and not state.recorder.ended:
            state.recorder.fail(self._balancer.now())
        self._balancer.hangs(RouteEndpoint(route.name, record.model, record.revision, record.upstream))
        return errors.timed_out()

    def _targets(self, outgoing: UpstreamRequest, record: RequestRecord) -> Iterator[Route]:
        """Routes that can answer in place of the request's own: ready ones that its tenant may use."""
        table, route = self._balancer.published.current, self._balancer.published.find(outgoing.whose)
        if table is None or route is None or not route.fallback or not _may_move(outgoing):
            return
        for name in route.fallback_routes:
            target = table.routes.get(name)
            if target is None or target.asleep or not table.ready(target):
                continue
            if record.identity is None or record.identity.tenant.may_use((target.name, table.id_of(target))):
                yield target

    async def _by(
        self, target: Route, outgoing: UpstreamRequest, record: RequestRecord, reason: str
    ) -> Answered | None:
        """What this deployment answers; None where it cannot either."""
        own = moved(outgoing, target, f"{_printable(outgoing.whose)}; {reason}")
        state = RetryState(0.0, self._settings.max_attempts, fails_fast=True)
        activity = self._balancer.enter(target.name)
        response: UpstreamResponse | None = None
        try:
            response = await self._retries.first_response(own, record, state)
        except errors.RequestError:
            pass
        finally:
            if response is None:
                self._balancer.activity.leave(activity)
        if response is None:
            return None
        if reason_of(response):
            response.close()
            self._balancer.activity.leave(activity)
            return None
        if own.meter is not None and record.identity is not None:
            model = self._name_of(target)
            own.meter.turn_to(model, record.identity.tenant.policy.price_of(target.name, model))
        return Answered(own, response, state, activity)

    def _name_of(self, target: Route) -> str:
        table = self._balancer.published.current
        return table.id_of(target) if table else target.name


def _may_move(outgoing: UpstreamRequest) -> bool:
    """Whether another model may answer: a request for text that no revision has begun with, and no line of a batch."""
    bound = outgoing.revision or outgoing.holder or outgoing.tokens
    return outgoing.writes_text and outgoing.method == "POST" and not bound and not outgoing.batch


def _printable(name: str) -> str:
    """A name for a header: names of a routes file may have any characters."""
    return "".join(char if "!" <= char <= "~" else "?" for char in name)
