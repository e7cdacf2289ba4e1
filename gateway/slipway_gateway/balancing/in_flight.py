"""Counts of requests in flight, by endpoint and by revision."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from slipway_process.network.host_names import shown

from ..routing.router import RouteEndpoint
from ..routing.table import RouteTable
from ..telemetry.metrics import GatewayMetrics
from .attempt import RequestCounts

if TYPE_CHECKING:
    from slipway_plane import _native


_NONE: Counter[str] = Counter()  # which no one changes


class InFlight:
    """Counts of one gateway. `by_url`: requests of clients in flight at each endpoint."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        self._by_url: Counter[str] = Counter()
        self._by_tenant: dict[str, Counter[str]] = {}  # of tenants with requests in flight, by URL
        self._by_revision: dict[tuple[str, str], RequestCounts] = {}
        self._lane: _native.Lane | None = None
        self._both: Mapping[str, int] = self._by_url

    @property
    def by_url(self) -> Mapping[str, int]:
        return self._both

    @property
    def by_url_here(self) -> Mapping[str, int]:
        """Those that Python has."""
        return self._by_url

    @property
    def by_tenant_here(self) -> Mapping[str, Mapping[str, int]]:
        """Those that Python has of each tenant, by URL."""
        return self._by_tenant

    def join(self, lane: "_native.Lane") -> None:
        """The fast lane has requests in flight too: each lane sees those of both."""
        self._lane, self._both = lane, _BothLanes(self._by_url, lane.at)

    def of_lane(self) -> dict[tuple[str, str], int]:
        """Requests in flight in the fast lane, by route and revision."""
        found: dict[tuple[str, str], int] = {}
        for route, _, revision, count in self._lane.running() if self._lane else ():
            found[route, revision] = found.get((route, revision), 0) + count
        return found

    def first_attempts(self, route: str, revision: str, count: int) -> None:
        """The fast lane made so many first attempts."""
        self._by_revision.setdefault((route, revision), RequestCounts()).requests += count

    def follow(self, table: RouteTable) -> None:
        """Forgets routes that are gone. Revisions of a live route keep their counts: the operator compares them."""
        for route, revision in list(self._by_revision):
            if route not in table.routes and not self._by_revision[route, revision].inflight:
                del self._by_revision[route, revision]

    def of_tenant(self, tenant: str) -> Mapping[str, int]:
        """Requests of one tenant in flight, by the URL of the endpoint; empty for "", which is no tenant."""
        here = self._by_tenant.get(tenant, _NONE)
        if self._lane is None or not tenant:
            return here
        return _BothLanes(here, partial(self._lane.of_tenant_at, tenant=tenant))

    def add(self, endpoint: RouteEndpoint, *, first: bool, tenant: str = "") -> RequestCounts:
        """Counts an attempt that begins; returns the counts of its revision, for `remove`.

        `first`: it is the first attempt of its request.
        """
        counts = self._by_revision.setdefault((endpoint.route, endpoint.revision), RequestCounts())
        counts.inflight += 1
        counts.requests += first
        if endpoint.base:  # the pod must not go while it serves an adapter
            self._of_base(endpoint).inflight += 1
        self._by_url[endpoint.url] += 1
        if tenant:
            own = self._by_tenant.get(tenant)
            if own is None:
                own = self._by_tenant[tenant] = Counter()
            own[endpoint.url] += 1
        self._show_lane(endpoint.url, tenant)
        self._metrics.inflight_changed(endpoint.model, endpoint.revision, 1)
        return counts

    def remove(self, endpoint: RouteEndpoint, counts: RequestCounts, *, tenant: str = "") -> None:
        """Counts that an attempt is over. `counts`: what `add` returned for it."""
        counts.inflight -= 1
        if endpoint.base:
            self._of_base(endpoint).inflight -= 1
        _decrement(self._by_url, endpoint.url)
        if tenant:
            _decrement(self._by_tenant[tenant], endpoint.url)
            if not self._by_tenant[tenant]:
                del self._by_tenant[tenant]
        self._show_lane(endpoint.url, tenant)
        self._metrics.inflight_changed(endpoint.model, endpoint.revision, -1)

    def _of_base(self, endpoint: RouteEndpoint) -> RequestCounts:
        return self._by_revision.setdefault((endpoint.base, endpoint.base_revision), RequestCounts())

    def _show_lane(self, url: str, tenant: str) -> None:
        """The fast lane gets what Python has at an endpoint."""
        if self._lane is None:
            return
        self._lane.count_python(url, self._by_url.get(url, 0))
        if tenant:
            self._lane.count_python_of(url, tenant, self._by_tenant.get(tenant, _NONE).get(url, 0))

    def at(self, url: str) -> int:
        """Requests of clients in flight at an endpoint."""
        return self._both.get(url, 0)

    def by_address(self, urls: Iterable[str]) -> dict[str, int]:
        """Requests of clients in flight by the IP address of the endpoint; endpoints without any are left out."""
        busy = {url: count for url in urls if (count := self._both.get(url, 0))}
        return {shown(urlsplit(url).hostname or url): count for url, count in busy.items()}

    def of_revision(self, route: str, revision: str) -> RequestCounts:
        return self._by_revision.get((route, revision), RequestCounts())

    def busy_revisions(self) -> Mapping[str, list[str]]:
        """Revisions with requests in flight, by route."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for (route, revision), counts in self._by_revision.items():
            if counts.inflight:
                found[route].append(revision)
        for route, revision in self.of_lane():
            if revision not in found[route]:
                found[route].append(revision)
        return found


class _BothLanes(Mapping[str, int]):
    """Requests in flight by URL, of both lanes. Iteration has those that Python has some at."""

    __slots__ = ("_here", "_in_lane")

    def __init__(self, here: Counter[str], in_lane: Callable[[str], int]) -> None:
        self._here, self._in_lane = here, in_lane

    def __getitem__(self, url: str) -> int:
        return self._here[url] + self._in_lane(url)

    def get(self, url: str, default: int = 0) -> int:  # type: ignore[override]
        return self._here[url] + self._in_lane(url)

    def __iter__(self) -> Iterator[str]:
        return iter(self._here)

    def __len__(self) -> int:
        return len(self._here)


def _decrement(counts: Counter[str], url: str) -> None:
    counts[url] -= 1
    if not counts[url]:
        del counts[url]
