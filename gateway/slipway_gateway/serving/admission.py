"""Takes a request into the limits of its tenant, and charges it when it ends, however it ends."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import force_setattr, replace

from slipway_contracts.headers import RESUME
from slipway_contracts.tenants import TenantReport

from ..identity.authenticate import Method, RequestIdentity
from ..identity.tenants import KnownTenant
from ..ledger.writer import Ledger, new_id
from ..quotas.bounds import bound_of
from ..quotas.estimate import Estimate, estimate, output_limit
from ..quotas.meter import Charge, Meter, Saved
from ..quotas.policy import Budget, Policy, RequestBounds
from ..quotas.recent import RecentUse
from ..quotas.registry import Quotas
from ..quotas.shared import SharedQuotas
from ..quotas.tenant import CONCURRENCY, INPUT, LONG_CONTEXT, OUTPUT, REQUESTS, SPEND, TOKENS, Limits, Share
from ..quotas.usage import RESPONSES, Usage
from ..sharing.counters import CountersAway, SharedBudgets, SharedCounters
from ..sharing.limiter import Limiter, LimitRefusal, Taken
from ..telemetry.metrics import GatewayMetrics, RequestRecord
from ..upstream.exchange import UpstreamRequest
from ..wire import errors, request_fields, resume
from ..wire.request_fields import RequestFields
from ..wire.responses import WITHOUT_MODEL

if TYPE_CHECKING:
    from slipway_plane import _native

    from ..fast_lane.lane import FastLane

# Streams whose usage has to be requested.
_USAGE_ON_REQUEST = ("/v1/chat/completions", "/v1/completions")
_LEFT = "client_closed"
_NOTHING = RecentUse()
_ONE_REQUEST = {REQUESTS: 1}


Response = TypeVar("Response")


class Admission:
    """Limits and charges of one gateway. Requests without an identity have neither."""

    def __init__(
        self,
        ledger: Ledger,
        metrics: GatewayMetrics,
        clock: Callable[[], float],
        limiter: Limiter | None = None,
        budgets: SharedBudgets | None = None,
        *,
        on_implausible: Callable[[str, int, int], None] = lambda model, reported, possible: None,
    ) -> None:
        """`budgets`: spending counted with other gateways; None: this gateway knows only what its ledger has.

        `on_implausible`: gets the model and tokens that a server reported, and how many the request can have caused.
        """
        self.ledger = ledger
        self._metrics = metrics
        self._clock = clock
        self._limiter = limiter or Limiter(clock)
        self._budgets = budgets
        self._recent: dict[str, RecentUse] = {}
        self._on_implausible = on_implausible
        self.take_counts: Callable[[], None] = lambda: None  # of the fast lane

    @property
    def quotas(self) -> Quotas | SharedQuotas:
        """The quotas that this gateway counts itself, without other gateways."""
        return self._limiter.quotas

    def join(self, lane: "FastLane") -> None:
        """The fast lane takes from the same limits and budgets. Must come before the first request."""
        self._limiter.quotas, self.take_counts = lane.quotas, lane.drain
        self.ledger.join(lane.spending, lane.drain)

    @property
    def share(self) -> Share:
        """This gateway's share of limits and budgets that gateways divide."""
        return self._limiter.share

    def counts_together(self, policy: Policy) -> bool:
        """Whether requests of a tenant with this policy are counted with other gateways."""
        return (self.counters is not None and policy.limits.any) or (self._budgets is not None and policy.budget.any)

    @property
    def counters(self) -> SharedCounters | None:
        """Where limits are counted with other gateways; None: they are not."""
        return self._limiter.counters

    def may_spend(self, tenant: str, budget: Budget) -> bool:
        """Whether something is left of a budget that gateways spend together, as far as that is known here."""
        budgets = self._budgets
        if budgets is None or not budget.any:
            return True
        if self.ledger.exhausted(tenant, budget):
            return False
        return self.ledger.is_shared if budgets.away else budgets.allows(tenant, budget, self._limiter.parts)

    def part(self, policy: Policy) -> tuple[Limits, Budget]:
        """This gateway's part of limits, and of a budget that it does not spend with others."""
        budget = self._part(policy.budget) if self._budgets is None else Budget()
        return self._limiter.part(policy.limits), budget

    def gather(self, one: "_native.TenantCharge") -> None:
        """Takes what requests of one tenant came to in the fast lane."""
        usage, now_s = Usage(*one.usage), self._clock()
        self._metrics.authenticated(Method.KEY, "ok", one.admitted)
        used = self._recent_of(one.tenant).used
        used.add({REQUESTS: one.admitted}, now_s)
        if not one.requests:
            return
        hits, (limited_input, limited_output), (saved_tokens, saved_nano) = one.hits
        tokens = {INPUT: usage.input_tokens + limited_input, OUTPUT: usage.output_tokens + limited_output}
        used.add(tokens, now_s)
        if one.requests > hits:
            self._metrics.tokens_used(one.tenant, one.model, usage)
        saved = Saved(Usage(*saved_tokens), saved_nano, hits) if hits else None
        about = (one.tenant, one.key, one.model, one.revision, one.hour)
        charge = Charge(new_id(), *about, usage, one.cost_nano, one.estimated, one.requests, saved)
        self.ledger.gather(charge)

    def prepare_again(self, outgoing: UpstreamRequest, record: RequestRecord) -> UpstreamRequest:
        """A request that is sent once more, with another body: it is charged and takes from limits as a new one.

        Raises:
            RequestError: it has more tokens than a request of its tenant may have.
        """
        before = outgoing.meter
        if before is None:
            return outgoing
        fields = request_fields.parse(outgoing.body)
        prepared = self.prepare(replace(outgoing, meter=None), fields, record, new_id())
        if prepared.meter is not None:
            # Its body requests the usage already, where the first one's had to be completed.
            prepared.meter.strips_usage = before.strips_usage
        return prepared

    def prepare(
        self, outgoing: UpstreamRequest, fields: RequestFields, record: RequestRecord, charge_id: str = ""
    ) -> UpstreamRequest:
        """The request with a meter if it has a tenant; a stream of a tenant then also requests its usage.

        `charge_id`: of its charge; empty: that of the record.

        Raises:
            RequestError: it has more tokens than a request of its tenant may have.
        """
        identity, model = record.identity, record.model
        if identity is None:
            return outgoing
        policy = identity.tenant.policy
        estimated = _estimate(outgoing, fields, policy)
        _check_context(policy.bounds.context, estimated, output_limit(fields, outgoing.path))
        strips_usage = outgoing.stream and outgoing.path in _USAGE_ON_REQUEST and fields.lacks_usage
        meter = Meter(
            charge_id or record.id,
            identity.name,
            identity.key_id,
            estimate=estimated,
            bound=bound_of(outgoing.path, outgoing.body, fields),
            price=policy.price_of(outgoing.whose, model),
            model=model,
            hour=self.ledger.hour,
            resumed_at=resume.position_of(outgoing.headers.get(RESUME, "")),
            strips_usage=strips_usage,
            echoes=outgoing.path == RESPONSES,
        )
        if strips_usage:
            return replace(outgoing, body=request_fields.with_usage(outgoing.body, fields), meter=meter)
        # No one else has the request yet, and a copy of it takes longer than all else here.
        force_setattr(outgoing, "meter", meter)
        return outgoing

    def tenants_changed(self, tenants: Collection[str]) -> None:
        """Forgets deleted tenants: their recent use at once, their buckets only where they are full."""
        self.quotas.forget_others(tenants, self._clock())
        for name in self._recent.keys() - set(tenants):
            del self._recent[name]

    def report(self, tenant: KnownTenant) -> TenantReport:
        """Use, refusals and spending of one tenant, for its status."""
        name, now_s = tenant.name, self._clock()
        quota, recent = self.quotas.find(name), self._recent.get(name, _NOTHING)
        spent = self.ledger.spent(name)
        return TenantReport(
            last_minute=recent.used.last_minute(now_s),
            refused=recent.refused.last_minute(now_s),
            running=quota.running if quota else 0,
            day_nano=spent.day_nano,
            month_nano=spent.month_nano,
            exhausted=self._known_exhausted(name, tenant.policy.budget),
            generation=tenant.generation,
        )

    def _refuse(self, tenant: str, limit: str) -> None:
        self._metrics.quota_refused(tenant, limit)
        self._recent_of(tenant).refused.add({limit: 1}, self._clock())

    @contextlib.contextmanager
    def arriving(self, identity: RequestIdentity | None) -> Iterator[None]:
        """While the body of a request is awaited: as many of a tenant as may run.

        Raises:
            RequestError: that many are awaited already.
        """
        limits = identity.tenant.policy.limits if identity else None
        if identity is None or limits is None or not limits.concurrency:
            yield
            return
        quota = self._limiter.arrive(identity.name, limits)
        if isinstance(quota, LimitRefusal):
            self._refuse(identity.name, quota.reached.limit)
            raise _refused(quota, limits)
        try:
            yield
        finally:
            quota.arrived()

    async def charged(
        self,
        meter: Meter,
        policy: Policy,
        record: RequestRecord,
        forward: Callable[[], Awaitable[Response]],
        beyond: Callable[[errors.RequestError], Awaitable[Response]] | None = None,
    ) -> Response:
        """What `forward` returns: the request takes from all limits of its tenant, or from none; it is charged once.

        `beyond`: forwards a request that limits refuse, but not the budget.

        Raises:
            RequestError: a limit is reached or the budget is spent.
        """
        left = False
        try:
            taken, long_context = await self._take_all(meter, policy, record.begun)
        except errors.RequestError as refusal:
            if beyond is None or refusal.code != errors.RATE_LIMITED:
                raise
            return await self._charged_beyond(meter, policy, partial(beyond, refusal))
        record.trace.event(
            "quota reserved", **{f"slipway.{name}": amount for name, amount in meter.estimate.amounts().items()}
        )
        try:
            return await forward()
        except asyncio.CancelledError:
            left = True
            raise
        finally:
            self.settle(meter, taken, left=left or record.outcome == _LEFT)
            self._end_long_context(long_context)
            record.trace.event("quota settled")

    async def _take_all(
        self, meter: Meter, policy: Policy, begun: "_native.Begun | None"
    ) -> tuple[Taken, Taken | None]:
        """What the request takes from its limits, and from that of long prompts where it has one.

        Raises:
            RequestError: a limit is reached or the budget is spent.
        """
        long_context = await self._take_long_context(meter, policy.bounds)
        try:
            return await self.take(meter, policy, begun), long_context
        except BaseException:
            self._end_long_context(long_context)
            raise

    async def _take_long_context(self, meter: Meter, bounds: RequestBounds) -> Taken | None:
        """The request is one with a long prompt from now on, or it is none (None).

        Raises:
            RequestError: as many of its tenant are in progress as may be.
        """
        if not bounds.long_context or meter.estimate.input_tokens < bounds.long_context:
            return None
        limits = Limits(concurrency=bounds.long_concurrency)
        # A quota of its own. No tenant has its name: names of objects have no space.
        taken = await self._limiter.reserve(f"{meter.tenant} {LONG_CONTEXT}", meter.id, limits, {})
        if isinstance(taken, LimitRefusal):
            self._refuse(meter.tenant, LONG_CONTEXT)
            what = f"{bounds.long_concurrency} concurrent requests with {bounds.long_context} input tokens or more"
            raise errors.rate_limited("tokens", what, taken.reached.wait_s, {})
        return taken

    def _end_long_context(self, taken: Taken | None) -> None:
        if taken is not None:
            self._limiter.settle(taken, {})

    async def _charged_beyond(
        self, meter: Meter, policy: Policy, forward: Callable[[], Awaitable[Response]]
    ) -> Response:
        """What `forward` returns: the request takes from no limit, and is charged once.

        Raises:
            RequestError: the budget is spent.
        """
        if period := await self._open(meter, policy):
            self._refuse(meter.tenant, SPEND)
            raise errors.out_of_budget(period)
        try:
            return await forward()
        finally:
            self._charge(meter)

    async def _open(self, meter: Meter, policy: Policy) -> str:
        """Opens the request in the ledger, where something is left of the budget; else the period that is spent."""
        if self._budgets is None:
            return self.ledger.open(meter, self._part(policy.budget))
        # Nothing else is awaited before it is open: requests that come at once do not all see the same rest.
        return await self._exhausted(self._budgets, meter.tenant, policy.budget) or self.ledger.open(meter)

    async def take(self, meter: Meter, policy: Policy, begun: "_native.Begun | None" = None) -> Taken:
        """The request begins, within its budget and its limits. `settle` ends it.

        `begun`: what the fast lane has done with it, which has taken it into both where it has sent it.

        Raises:
            RequestError: a limit is reached or the budget is spent.
        """
        if begun is not None and (adopted := self._adopt(meter, policy, begun)):
            return adopted
        if period := await self._open(meter, policy):
            self._refuse(meter.tenant, SPEND)
            raise errors.out_of_budget(period)
        try:
            taken = await self._limiter.reserve(meter.tenant, meter.id, policy.limits, meter.estimate.amounts())
            if isinstance(taken, LimitRefusal):
                self._refuse(meter.tenant, taken.reached.limit)
                raise _refused(taken, policy.limits)
        except BaseException:
            self._charge(meter)
            meter.miss()
            raise
        return self._taken(meter, taken)

    def _adopt(self, meter: Meter, policy: Policy, begun: "_native.Begun") -> Taken | None:
        """What the fast lane has taken for the request; None: nothing."""
        self.ledger.open(meter)  # before the lane gives back what it expects
        if (found := begun.take_reservation(meter.tenant)) is None:
            self.ledger.drop(meter)
            return None
        return self._taken(meter, self._limiter.adopt(meter.tenant, meter.id, policy.limits, *found))

    def _taken(self, meter: Meter, taken: Taken) -> Taken:
        meter.limit_headers, meter.admitted = taken.headers, True
        self._recent_of(meter.tenant).used.add(_ONE_REQUEST, self._clock())
        return taken

    def settle(self, meter: Meter, taken: Taken, *, left: bool) -> None:
        """The request ended. `left`: its client was gone before."""
        try:
            used = meter.used(left=left)
            self._limiter.settle(taken, used)
            self._recent_of(meter.tenant).used.add(used, self._clock(), only=TOKENS)
        finally:
            self._charge(meter)

    def _recent_of(self, tenant: str) -> RecentUse:
        found = self._recent.get(tenant)
        if found is None:
            found = self._recent[tenant] = RecentUse()
        return found

    def _charge(self, meter: Meter) -> None:
        self.ledger.close(meter)
        if not meter.begun:
            return
        self._metrics.tokens_used(meter.tenant, meter.model, meter.usage)
        if claimed := meter.implausible:
            self._implausible(meter, claimed)

    def _implausible(self, meter: Meter, claimed: Usage) -> None:
        """Shows that a server reported more than its request can have caused, which was not charged."""
        reported, possible = (one.input_tokens + one.output_tokens for one in (claimed, meter.usage))
        self._metrics.usage_implausible(meter.model, meter.revision)
        self._on_implausible(meter.model, reported, possible)

    async def _exhausted(self, budgets: SharedBudgets, tenant: str, budget: Budget) -> str:
        """`day` or `month` where nothing is left of it, else empty."""
        if not budget.any:
            return ""
        known = self.ledger.exhausted(tenant, budget)
        if known or (budgets.away and self.ledger.is_shared):
            return known
        try:
            return await budgets.exhausted(tenant, budget, self._limiter.parts)
        except CountersAway:
            return self.ledger.exhausted(tenant, self._part(budget))

    def _known_exhausted(self, tenant: str, budget: Budget) -> str:
        """Like `_exhausted`, from what this gateway knows without a call to other servers."""
        if self._budgets is None:
            return self.ledger.exhausted(tenant, self._part(budget))
        return self.ledger.exhausted(tenant, budget) or self._budgets.last_known(tenant)

    def _part(self, budget: Budget) -> Budget:
        """This gateway's part of a budget, where each gateway knows only its own spending; else the whole budget."""
        parts = self._limiter.parts
        return budget if parts <= 1 or self.ledger.is_shared else budget.part(parts)


def _estimate(outgoing: UpstreamRequest, fields: RequestFields, policy: Policy) -> Estimate:
    return estimate(
        fields,
        outgoing.path,
        len(outgoing.body),
        policy.output_tokens,
        computes=outgoing.path not in WITHOUT_MODEL,
        writes_text=outgoing.writes_text,
    )


def _check_context(most: int, estimated: Estimate, limit: int | None) -> None:
    """`most`: tokens of the prompt and of the response; 0: any number. `limit`: of the response, in the request."""
    if most and estimated.input_tokens + (limit or 0) > most:
        raise errors.context_too_long(most, estimated.input_tokens, limit or 0)


def _refused(refusal: LimitRefusal, limits: Limits) -> errors.RequestError:
    what = {
        REQUESTS: ("requests", f"{limits.requests_per_minute} requests per minute"),
        INPUT: ("tokens", f"{limits.input_tokens_per_minute} input tokens per minute"),
        OUTPUT: ("tokens", f"{limits.output_tokens_per_minute} output tokens per minute"),
        CONCURRENCY: ("requests", f"{limits.concurrency} concurrent requests"),
    }
    kind, limit = what[refusal.reached.limit]
    return errors.rate_limited(kind, limit, refusal.reached.wait_s, refusal.headers)
