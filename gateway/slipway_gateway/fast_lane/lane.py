"""The fast lane as the rest of the gateway uses it: its table is published here, and its counts come in here.

Each lane counts the requests that it ends, so that each one is counted once. `drain` adds what the fast lane counted to
the counters of Python, which alone are reported; it is called before anything that reads them. What both lanes need at
every request they share: sessions of the judge, places in flight, and the load of endpoints.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from aiohttp.http import SERVER_SOFTWARE
from yarl import URL

from slipway_plane import NATIVE

from ..identity.tenants import TenantTable
from ..judging.outcome import E2E
from ..judging.samples import BOUNDS
from ..judging.units import SharedUnits
from ..ledger.shared_spending import SharedSpending
from ..quotas.policy import Budget, Policy
from ..quotas.shared import SharedQuotas
from ..quotas.tenant import Limits, Share
from ..routing.table import Route, RouteTable
from ..settings import GatewaySettings
from ..sharing.counters import SharedCounters
from ..sharing.lane_calls import LaneCalls
from ..telemetry.metrics import TIME_BUCKETS, TTFT_BUCKETS, GatewayMetrics
from ..wire.inference import ROUTED_PATHS
from .recount import Recounter
from .table import compile_table
from .tenants import compile_tenants

if TYPE_CHECKING:
    from slipway_plane import _native

# After it a request that has not come whole, or has no response, is Python's: so nothing that lasts is missing in what
# Python reports of requests in progress.
PATIENCE_S = 1.0
RECOUNT_ONE_IN = 100
MAX_RECOUNTS = 32  # that wait at the same time
# Longer responses are not one write.
MAX_RESPONSE_BYTES = 64 << 10
MAX_HEAD_BYTES = 16 << 10
# Of the memory for requests, what the lane may hold beside it.
MEMORY_PART = 8
# Responses of other shapes than a completion, an embedding or a prediction.
_NEVER_PLAIN = frozenset({"/v1/responses"})


class Tenants(NamedTuple):
    """The tenants by which requests are authenticated, and this gateway's share of limits and budgets.

    `table` None: no request has an identity.
    """

    table: TenantTable | None
    share: Share


class Charging(Protocol):
    """What tenants may use here, and where the lane's charges go: `serving.admission.Admission`."""

    def part(self, policy: Policy) -> tuple[Limits, Budget]:
        """This gateway's part of limits and budget now."""

    def counts_together(self, policy: Policy) -> bool:
        """Whether requests of a tenant with this policy are counted with other gateways."""

    def may_spend(self, tenant: str, budget: Budget) -> bool:
        """Whether something is left of a budget that gateways spend together, as far as that is known here."""

    @property
    def counters(self) -> SharedCounters | None:
        """Where limits are counted with other gateways; None: they are not."""

    def gather(self, one: "_native.TenantCharge") -> None:
        """Takes what requests of one tenant came to."""


class Copies(Protocol):
    """Copies of kept responses in the lane: `caching.lane_copies.LaneCopies`."""

    def used(self, digests: Sequence[bytes]) -> None:
        """Requests got these copies."""

    def differs(self, one: "_native.Recount", path: str, headers: Mapping[str, str], tenant: str) -> bool:
        """Whether a request got another response than Python would give it, as far as that is known still."""


class FastLane:
    """Made before the first table and the first connection.

    `tenants`: by which requests are authenticated now, None while they are not known; it is looked at when
    `tenants_changed`, and from time to time.
    `trace_share`: of requests, which have spans and so are Python's; None: there are no spans. `traces_per_s`: at most
    so many of them a second.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        metrics: GatewayMetrics,
        *,
        budget_bytes: int,
        max_sessions: int,
        max_prefix_blocks: int,
        logs: bool,
        trace_share: float | None,
        traces_per_s: int,
        tenants: Callable[[], Tenants | None],
        charging: Charging,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert NATIVE is not None
        self._tenants_of, self._charging, self._metrics, self._clock = tenants, charging, metrics, clock
        self._tenants: Tenants | None = None  # as the lane has them, and how often they were published
        self._identified = 0
        self.is_draining = self.is_open = False
        self.tables = 0  # how many were published, of routes and of tenants
        self.in_flight: _native.Places = NATIVE.Places(settings.max_inflight, settings.max_client_percentage)
        quotas, spending = NATIVE.Quotas(), NATIVE.Spending()
        self.quotas, self.spending = SharedQuotas(quotas), SharedSpending(spending)
        self.prefixes: _native.PrefixRouting = NATIVE.PrefixRouting(max_prefix_blocks)
        self._sessions: _native.Sessions = NATIVE.Sessions(max_sessions)
        self.paths = frozenset(ROUTED_PATHS) - _NEVER_PLAIN
        self._max_body_bytes = min(settings.plane_max_body_bytes, settings.max_body_bytes)
        self.native: _native.Lane = NATIVE.Lane(
            paths=sorted(self.paths),
            max_body_bytes=self._max_body_bytes,
            logs=logs,
            trace_below=None if trace_share is None else round(trace_share * 16**8),
            traces_per_s=traces_per_s,
            in_flight=self.in_flight,
            quotas=quotas,
            spending=spending,
            prefixes=self.prefixes,
            max_bytes=budget_bytes // MEMORY_PART,
            now_s=clock(),
            **_same_for_all(settings),
        )
        self._calls = LaneCalls(charging.counters, charging.may_spend, self.native.answer)
        self._is_doubted = self._has_table = False  # doubted: a recount differed, so the judge gets Python's counts
        self.on_doubt: Callable[[], None] = lambda: None  # what else the data plane does is Python's from then on
        self.recounter = Recounter(settings, metrics, self._doubt, self._table_of)
        self.recount = self.recounter.look
        self.copies: Copies | None = None  # of kept responses; None: the lane has none
        self._follow: Callable[[_native.LaneCounts], None] = lambda counts: None
        metrics.of_lane(self.drain, self._running, lambda: self.native.held_bytes)

    # -- what is shared

    def units(self, weights: Mapping[str, int], begun_s: float) -> SharedUnits:
        """Sessions of a generation, which both lanes count."""
        assert NATIVE is not None
        return SharedUnits(NATIVE.Units(self._sessions, weights, begun_s))

    def generation(self, units: SharedUnits, *, keeps_open: bool) -> "_native.Generation":
        """Where the lane counts for the judge."""
        assert NATIVE is not None
        counted: _native.Generation = NATIVE.Generation(units.native, BOUNDS[E2E], keeps_open)
        return counted

    def serves(self, path: str, size_bytes: int) -> bool:
        """Whether a request to this path with a body of this size may be plain."""
        in_path = path.startswith(("/v2/models/", "/v1/models/"))
        return (in_path or path in self.paths) and size_bytes <= self._max_body_bytes

    def copy_by(self, copies: "Copies") -> None:
        """The lane has copies of the responses that the gateway keeps. Must come before the first table."""
        self.copies, self.recounter.copies = copies, copies

    # -- tables, and whether the lane serves

    def publish(
        self,
        table: RouteTable | None,
        state_of: Callable[[Route], tuple[Any, bool, float | None]],
        loads: Mapping[str, int],
        loads_of_tenants: Mapping[str, Mapping[str, int]],
    ) -> None:
        """Replaces the table of the lane. When it returns, no further request is routed by the former one.

        `state_of`: where a plain route is counted for the judge, whether its failsafe acts, and for how many seconds
        its weights are valid. `loads`: Python's requests in flight by URL, and by tenant and URL.
        """
        assert NATIVE is not None
        made = []
        for one in compile_table(table, host_of, has_copies=self.copies is not None):
            route = table.routes.get(one.name) if table else None
            generation, is_paused, valid_for_s = state_of(route) if route and not one.reason else (None, False, None)
            fields = {name: getattr(one, name) for name in one.__slots__}
            made.append(NATIVE.LaneRoute(**fields, generation=generation, is_paused=is_paused, valid_for_s=valid_for_s))
        self.native.publish(made)
        for url, count in loads.items():
            self.native.count_python(url, count)
        for tenant, counts in loads_of_tenants.items():
            for url, count in counts.items():
                self.native.count_python_of(url, tenant, count)
        self._has_table = table is not None
        self.tables += 1
        self.tenants_changed()

    def tenants_changed(self) -> None:
        """Whether requests need an identity may have changed, and by which tenants, keys, limits or parts of them."""
        tenants, former = self._tenants_of(), self._tenants
        if not (tenants and former and tenants.table is former.table and tenants.share == former.share):
            self._identify_by(tenants)
        reason = "draining" if self.is_draining else "" if self._has_table else "table"
        reason = reason or ("recount" if self._is_doubted else "tenants" if tenants is None else "")
        self.is_open = not reason
        self.native.open(reason)

    def _identify_by(self, tenants: Tenants | None) -> None:
        assert NATIVE is not None
        if tenants is self._tenants:
            return  # they are still not known
        self._tenants = tenants
        self._identified += 1
        self.tables += 1
        if tenants is None:
            return
        listed, pepper = None, b""
        if (table := tenants.table) is not None:
            charging, pepper = self._charging, table.pepper
            compiled = compile_tenants(table, charging.part, charging.counts_together)
            listed = [NATIVE.LaneTenant(**fields) for fields in compiled]
        self.native.identify_by(listed, pepper, self._identified)

    def _table_of(self, publication: int) -> TenantTable | None:
        """The tenants of a publication; None: others are published by now."""
        return self._tenants.table if self._tenants and publication == self._identified else None

    def count_together(
        self,
        calls: Sequence["_native.Call"],
        settlements: Sequence["_native.Settlement"],
        take_more: Callable[[], None],
    ) -> None:
        """Has requests counted with other gateways, and ends those that were. `take_more`: called after answers."""
        self._calls.take_more = take_more
        self._calls.settle(settlements)  # which gives back what others may take
        self._calls.take(calls, self._policy_of)

    def _policy_of(self, name: str) -> Policy | None:
        table = self._tenants.table if self._tenants else None
        tenant = table.tenants.get(name) if table else None
        return tenant.policy if tenant else None

    def _doubt(self) -> None:
        self._is_doubted = True
        self.on_doubt()
        self.tenants_changed()

    def drains(self) -> None:
        """From now on all requests are Python's, which announces the end of their connections."""
        self.is_draining = True
        self.tenants_changed()

    # -- counts

    def follow(self, follow: Callable[["_native.LaneCounts"], None]) -> None:
        """`follow`: gets the counts of each `drain`."""
        self._follow = follow

    def drain(self) -> None:
        """Adds what the lane has counted to Python's counters."""
        counts = self.native.take()
        for one in counts.revisions:
            self._metrics.served_in_lane(one)
        for model, reason, times in counts.hand_overs:
            self._metrics.handed_over(model or "unknown", reason, times)
        for charge in counts.charges:
            self._charging.gather(charge)
        if self.copies is not None and counts.used_copies:
            self.copies.used(counts.used_copies)
        self._follow(counts)

    def _running(self) -> dict[tuple[str, str], int]:
        """Requests in flight in the lane by model and revision."""
        found: dict[tuple[str, str], int] = {}
        for _, model, revision, count in self.native.running():
            found[model, revision] = found.get((model, revision), 0) + count
        return found

    # -- requests whose engine died

    def blame(self, keys: Collection[tuple[str, str, int]]) -> None:
        """Requests with these clients, paths and lengths are Python's: an engine may have died of them."""
        self.native.blame({key for key in keys if key[1].isascii()})

    def answered(self, client: str, path: str, body: bytes) -> bool:
        """Whether the lane relayed a whole response to the same bytes of the same client."""
        return path.isascii() and self.native.answered(client, path, body)


def host_of(url: str) -> str:
    """The `Host` of a request to an endpoint, as aiohttp's client writes it."""
    return URL(url, encoded=True).host_port_subcomponent or ""


def _same_for_all(settings: GatewaySettings) -> dict[str, Any]:
    """What the lane does and does not with any request."""
    return {
        "max_head_bytes": MAX_HEAD_BYTES,
        "max_response_bytes": MAX_RESPONSE_BYTES,
        "sticky_by": settings.sticky_by,
        "tenant_by": settings.tenant_by,
        "tenant_salt": settings.tenant_salt.get_secret_value(),
        "shares_by_key": "key" in settings.share_by,
        "priority_limit": settings.priority_limit,
        "connect_timeout_s": settings.connect_timeout_s,
        "stall_timeout_s": settings.stall_timeout_s,
        "patience_s": PATIENCE_S,
        "server": SERVER_SOFTWARE,
        "seconds_bounds": TIME_BUCKETS,
        "ttft_bounds": TTFT_BUCKETS,
        "log_below": round(settings.access_log_sample * 16**8),
        "recount_one_in": RECOUNT_ONE_IN,
        "max_recounts": MAX_RECOUNTS,
        "percentage": settings.max_client_percentage,
    }
