"""Chooses an endpoint for each attempt, and reports each route to the operator."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from slipway_contracts.gateway_report import RevisionReport, RouteReport
from slipway_contracts.resilience import ExternalTarget
from slipway_contracts.route_table import MirrorRoute

from ..judging.outcome import OutcomeRecorder
from ..judging.samples import MAX_ENTRIES, GenerationSamples
from ..routing.adapters import with_adapters
from ..routing.mirroring import choose_mirror
from ..routing.router import RouteEndpoint, assign_revision, host_order, pick, pick_in_revision
from ..routing.table import Route, RouteTable, equivalent_revisions, namespace_of
from ..telemetry.metrics import GatewayMetrics
from .accuracy import Accuracy
from .activity import ActivityTracker, RouteActivity
from .attempt import Attempt, RequestCounts
from .circuit_breaker import CircuitBreakers
from .ejection import OutlierEjection
from .endpoint_picker import LeastLoad
from .failsafe import AttemptResult
from .failsafe_state import FailsafeSettings, FailsafeState
from .first_attempts import FirstAttempts
from .held_adapters import HeldAdapterReports
from .in_flight import InFlight
from .objectives import Objectives
from .outlier import OutlierDetection
from .overload import Overloads
from .prefix_affinity import PrefixRouting
from .prefix_index import MAX_BLOCKS
from .prompt_blocks import PromptBlocks
from .published_table import PublishedTable
from .retry_budgets import RetryBudgets
from .service import RouteServices
from .shared_prefixes import SharedPrefixRouting
from .spares import Spares
from .usage_reports import UsageReports

if TYPE_CHECKING:
    from slipway_plane import _native

    from ..fast_lane.lane import FastLane


KeyProblems = Callable[[str, tuple[ExternalTarget, ...]], tuple[str, ...]]  # of a namespace; a sentence each


def _no_problems(namespace: str, targets: tuple[ExternalTarget, ...]) -> tuple[str, ...]:
    return ()


class LoadBalancer:
    """Joins the published table with the live state of its routes.

    `hung_after_s`: silence of a stream's server that counts as a failure; 0: never.
    `clock`: the event loop's, which is `time.monotonic`.
    """

    def __init__(
        self,
        metrics: GatewayMetrics,
        failsafe: FailsafeSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        hung_after_s: float = 60.0,
        incarnation: str = "",
        outlier_detection: OutlierDetection | None = None,
        max_sessions: int = MAX_ENTRIES,
        max_prefix_blocks: int = MAX_BLOCKS,
    ) -> None:
        self.metrics = metrics
        self._clock = clock
        self.published = PublishedTable()
        self._source: RouteTable | None = None  # the last table, without what pods report
        self.adapters = HeldAdapterReports(clock)
        self._lane: FastLane | None = None
        self.key_problems: KeyProblems = _no_problems
        self.failsafe = FailsafeState(metrics, failsafe or FailsafeSettings(), clock)
        self.in_flight = InFlight(metrics)
        self.ejection = OutlierEjection(outlier_detection or OutlierDetection(), metrics, clock)
        self.breakers = CircuitBreakers(clock)
        metrics.open_breakers.set_function(lambda: self.breakers.open)
        self.retry_budgets = RetryBudgets()
        self.overloads = Overloads(clock)
        metrics.overloaded.set_function(lambda: self.overloads.overloaded)
        self.spares = Spares()
        self.prefixes: PrefixRouting | SharedPrefixRouting = PrefixRouting(max_prefix_blocks, clock)
        metrics.prefix_blocks.set_function(lambda: self.prefixes.blocks)
        self.objectives = Objectives()
        self.accuracy = Accuracy()
        metrics.registry.register(self.objectives)
        metrics.registry.register(self.accuracy)
        self.activity = ActivityTracker(clock, incarnation)
        self._services = RouteServices(clock, self.activity.notify)
        self._usage_reports = UsageReports(clock, self.activity.notify)
        self.first_attempts = FirstAttempts(
            self.published,
            self.failsafe,
            metrics,
            clock,
            self.accuracy,
            hung_after_s=hung_after_s,
            max_sessions=max_sessions,
        )

    def join(self, lane: "FastLane") -> None:
        """The fast lane serves plain requests of this balancer's table. Must come before the first table."""
        self._lane = lane
        self.prefixes = lane.recounter.prompts = SharedPrefixRouting(lane.prefixes, self._clock)
        self.in_flight.join(lane.native)
        self.failsafe.join(lane.native)
        self.ejection.join(lane.native.eject)
        self.activity.join(lane.native.activity)
        self.first_attempts.samples.lane = lane
        lane.follow(self._take)

    def _take(self, counts: "_native.LaneCounts") -> None:
        """Counts of the fast lane since the last ones."""
        for one in counts.revisions:
            self.in_flight.first_attempts(one.route, one.revision, one.requests)
            if one.answered:
                self._services.answered(one.route, one.answered)
                self.failsafe.began_in_lane(one.route, one.revision, one.clients)
        for url, successes in counts.endpoints:
            self.ejection.succeeded_in_lane(url, successes)
            self.spares.answered(url)

    def _drain(self) -> None:
        if self._lane is not None:
            self._lane.drain()

    def _publish_in_lane(self, table: RouteTable | None) -> None:
        if self._lane is None:
            return

        def state_of(route: Route) -> "tuple[_native.Generation | None, bool, float | None]":
            samples = self.first_attempts.samples.epoch(route, self._clock(), is_used=False)
            counted = samples.in_lane if samples else None
            return counted, self.failsafe.is_cut_off(route), self.failsafe.valid_for_s(route)

        self._lane.publish(table, state_of, self.in_flight.by_url_here, self.in_flight.by_tenant_here)

    def publish(self, table: RouteTable | None) -> None:
        """Replaces the route table and adapts all live state to it. None: no table is known, and nothing is routed."""
        self._source = table
        if table is not None:
            self.adapters.follow(table)
        self._adopt(with_adapters(table, self.adapters.by_url) if table else None)

    def publish_again(self) -> None:
        """Pods hold other adapters than before."""
        if self._source is not None:
            self._adopt(with_adapters(self._source, self.adapters.by_url))

    def _adopt(self, table: RouteTable | None) -> None:
        self._drain()
        last, known = self.published.current or RouteTable(), table or RouteTable()
        self.in_flight.follow(known)
        self.first_attempts.samples.keep(known.routes, self._clock())
        self.activity.follow(known.routes)
        self._services.follow((name, route.uid, known.ready(route)) for name, route in known.routes.items())
        self._usage_reports.follow(known.routes)
        self.failsafe.follow(last, known)
        self.ejection.follow(known)
        self.breakers.follow(known.routes)
        self.overloads.follow(known.routes)
        self.spares.follow(known)
        self.prefixes.follow(known)
        self.objectives.follow(known.routes)
        self.accuracy.follow(known.routes)
        self.metrics.routes_applied({name: route.generation for name, route in known.routes.items()})
        # Before its digest is reported: an acknowledged table is in force in both lanes.
        self._publish_in_lane(table)
        self.published.publish(table)

    # -- choice of an endpoint

    def pick(
        self,
        model: str,
        key: str,
        excluded: Collection[str],
        revision: str = "",
        *,
        prompt: PromptBlocks | None = None,
        **wishes: str,
    ) -> RouteEndpoint | None:
        """As `_pick`; ejected endpoints are used only when there is no other one."""
        ejected = self.ejection.urls()
        if ejected and (endpoint := self._pick(model, key, ejected.union(excluded), revision, prompt=prompt, **wishes)):
            return endpoint
        return self._pick(model, key, excluded, revision, prompt=prompt, **wishes)

    def _pick(
        self,
        model: str,
        key: str,
        excluded: Collection[str],
        revision: str = "",
        *,
        preferred: str = "",
        holder: str = "",
        tenant: str = "",
        prompt: PromptBlocks | None = None,
        host: str = "",
    ) -> RouteEndpoint | None:
        """An endpoint for an attempt, by the weights of the route; None when there is none, or the route sleeps.

        `preferred`: a revision that comes first, whatever its weight. `revision`: the only one that can respond.
        `holder`: tag of the endpoint that has the client's stream, which comes first. `excluded`: URLs. `prompt`: of a
        request whose route prefers endpoints that have seen its beginning. `host`: of an adapter, the only revision of
        its base that may serve.
        """
        table, route = self.published.current, self.published.find(model)
        if table is None or route is None or route.asleep:
            return None
        least = LeastLoad(self.in_flight.by_url, self.in_flight.of_tenant(tenant))
        picker = self.prefixes.picker(prompt, least)
        hosts = self._hosts(table, route, key)
        if host:
            same = equivalent_revisions(host)
            others = (url for url, (base, runs) in table.hosts.items() if base == route.base and runs not in same)
            excluded = {*excluded, *others}
        if revision:
            found = (
                pick_in_revision(table, route, name, key, picker, excluded=excluded, holder=holder, hosts=hosts)
                for name in equivalent_revisions(revision)
            )
            return next((one for one in found if one), None)
        if preferred and (
            one := pick_in_revision(table, route, preferred, key, picker, excluded=excluded, hosts=hosts)
        ):
            return one
        in_force = self.failsafe.weights_in_force(table, route)
        avoided = self.failsafe.avoided_revision(route, in_force, key)
        return pick(table, in_force, key, picker, excluded, avoided=avoided, hosts=hosts)

    def _hosts(self, table: RouteTable, route: Route, key: str) -> Sequence[str]:
        """The revisions of an adapter's base in the order in which a key tries them; none for another route."""
        base = table.routes.get(route.base)
        if base is None:
            return ()
        in_force = self.failsafe.weights_in_force(table, base)
        return host_order(in_force, key, self.failsafe.avoided_revision(base, in_force, key))

    def revision_of(self, model: str, key: str, revision: str = "", *, preferred: str = "") -> str:
        """The revision that an attempt would go to now; while none has an endpoint, or the route sleeps, the one that
        the weights give; empty where there is none. The arguments are those of `pick`."""
        if revision:
            return revision
        if endpoint := self.pick(model, key, (), preferred=preferred):
            return endpoint.revision
        table, route = self.published.current, self.published.find(model)
        if table is None or route is None:
            return ""
        return assign_revision(self.failsafe.weights_in_force(table, route), key)

    def host_of(self, model: str, key: str) -> str:
        """The revision of an adapter's base to which an attempt would go now; empty for another route."""
        route = self.published.find(model)
        if route is None or not route.base:
            return ""
        endpoint = self.pick(model, key, ())
        return endpoint.base_revision if endpoint else ""

    def without_spare(self, model: str, risked: Collection[str]) -> Collection[str]:
        """Endpoints of a model whose end would leave their revision with none that serves: see `Spares.without`."""
        self._drain()
        table, route = self.published.current, self.published.find(model)
        return self.spares.without(table, route, risked) if table and route else ()

    def load_of(self, model: str) -> tuple[int, int]:
        """Requests of this gateway in flight at the endpoints of a model, and how many endpoints there are."""
        table, route = self.published.current, self.published.find(model)
        if table is None or route is None:
            return 0, 0
        urls = {url for backend in route.backends for url in table.urls(route, backend.revision)}
        return sum(map(self.in_flight.at, urls)), len(urls)

    def mirror(
        self, endpoint: RouteEndpoint, request_id: str, headers: Mapping[str, str]
    ) -> tuple[Route, MirrorRoute, GenerationSamples] | None:
        """The mirror route of a request that `endpoint` serves, and the generation that it counts in; usually None.

        While the failsafe is active nothing is mirrored: that something is wrong with a revision is known already.
        """
        route = self.published.find(endpoint.route)
        if route is None or not route.mirror_routes or self.failsafe.is_active(route):
            return None
        one = choose_mirror(route, endpoint.revision, request_id, headers)
        generation = self.first_attempts.generation(route)
        return (route, one, generation) if one and generation else None

    def mirrors(self, endpoint: RouteEndpoint, one: MirrorRoute) -> bool:
        """Whether a mirror route is still published."""
        route = self.published.find(endpoint.route)
        return route is not None and any((m.name, m.revision) == (one.name, one.revision) for m in route.mirror_routes)

    # -- requests and attempts

    def enter(self, model: str) -> RouteActivity:
        """A request for a model arrives; `activity.leave` ends it."""
        route = self.published.find(model)
        return self.activity.enter(route.deployment if route else "")

    def begin_retry(self, route: Route | None) -> bool:
        """A retry or fallback for a route begins, if its budget has room; `retry_budgets.leave` ends it."""
        requests = self.activity.running(route.deployment) if route and route.retry_budget else 0
        if self.retry_budgets.take(route, requests):
            return True
        table = self.published.current
        self.metrics.retry_overflow(table.id_of(route) if table and route else "")
        return False

    def request_wake(self, model: str) -> None:
        """A request still waits for a model: wakes its route if it sleeps."""
        if route := self.published.find(model):
            self.activity.request_wake(route.deployment)

    def ended(self, model: str, code: int, outcome: str) -> None:
        """A client's request is over: counts it as refused by its route if it ended with 5xx.

        The outcomes `drained` and `client_error` are no evidence about the route.
        """
        if code >= 500 and outcome not in ("drained", "client_error") and (route := self.published.find(model)):
            self._services.refused(route.name, outcome)

    def usage_implausible(self, model: str, reported: int, possible: int) -> None:
        """A server of a model reported so many tokens for a request that can have caused `possible` ones."""
        if route := self.published.find(model):
            self._usage_reports.implausible(route.name, reported, possible)

    def start_attempt(
        self,
        endpoint: RouteEndpoint,
        *,
        first: bool,
        recorder: OutcomeRecorder | None = None,
        client: str = "",
        tenant: str = "",
        prompt: PromptBlocks | None = None,
        begun: "_native.Begun | None" = None,
    ) -> Attempt:
        """An attempt begins. `begun`: the fast lane began it."""
        counts = self.in_flight.add(endpoint, first=first, tenant=tenant)
        prefill = None
        if prompt is not None:
            prefill = (begun.take_prefill() if begun else None) or self.prefixes.begin(prompt, endpoint.url)
            self.metrics.prompt_sent(endpoint.model, endpoint.revision, prompt.size - prefill.size, prefill.size)
        return Attempt(
            self, endpoint, counts, first=first, recorder=recorder, client=client, tenant=tenant, prefill=prefill
        )

    def attempt_began(self, endpoint: RouteEndpoint, client: str) -> AttemptResult | None:
        self._services.answered(endpoint.route)
        route = self._route_of(endpoint)
        return self.failsafe.attempt_began(route, endpoint, client) if route else None

    def attempt_failed(self, endpoint: RouteEndpoint, result: AttemptResult | None, client: str) -> None:
        self._drain()  # a failure is judged by what came before it, in both lanes
        if route := self._route_of(endpoint):
            self.failsafe.attempt_failed(route, endpoint, result, client)

    def hangs(self, endpoint: RouteEndpoint) -> None:
        """An endpoint began no response in time."""
        self.ejection.failed(endpoint, 0, self.published.urls(endpoint.model, endpoint.revision))

    def attempt_over(self, endpoint: RouteEndpoint, counts: RequestCounts, tenant: str) -> None:
        self.in_flight.remove(endpoint, counts, tenant=tenant)

    def now(self) -> float:
        """Seconds of the clock that outcome recorders use."""
        return self._clock()

    def _route_of(self, endpoint: RouteEndpoint) -> Route | None:
        return self.published.current.routes.get(endpoint.route) if self.published.current else None

    # -- report

    def report(self) -> dict[str, RouteReport]:
        """`routes` of `/internal/routes`; the shape is in docs/contracts.md."""
        self._drain()
        table, busy = self.published.current or RouteTable(), self.in_flight.busy_revisions()
        in_lane = self.in_flight.of_lane()
        return {
            name: self._report_route(table, route, busy.get(name, []), in_lane) for name, route in table.routes.items()
        }

    def _report_route(
        self, table: RouteTable, route: Route, busy: list[str], in_lane: Mapping[tuple[str, str], int]
    ) -> RouteReport:
        revisions = {}
        weights = {backend.revision: backend.weight for backend in route.backends}
        for revision in dict.fromkeys([*table.revisions(route), *busy]):
            counts, urls = self.in_flight.of_revision(route.name, revision), table.urls(route, revision)
            inflight = counts.inflight + in_lane.get((route.name, revision), 0)
            revisions[revision] = RevisionReport(
                inflight,
                weights.get(revision, 0),
                len(urls),
                self.in_flight.by_address(urls) if inflight else {},
                counts.requests,
                counts.failures,
            )
        return RouteReport(
            route.uid,
            route.generation,
            route.digest,
            revisions,
            self.failsafe.report(route),
            self.activity.report(route.name),
            self._services.report(route.name),
            self._usage_reports.report(route.name),
            self.first_attempts.samples.report(route, self._clock()),
            self.objectives.report(route),
            self._lane.recounter.differing(route.name) if self._lane else (),
            self.accuracy.report(route),
            self.key_problems(namespace_of(route.name), route.external),
        )
