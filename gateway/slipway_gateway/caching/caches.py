"""Joins kept responses with the requests: a look-up before the limits, one computation, a replay."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web
from msgspec.structs import replace

from slipway_contracts.headers import RESUME, TENANT
from slipway_contracts.route_table import ResponseCache

from ..balancing.load_balancer import LoadBalancer
from ..quotas.usage import Usage
from ..routing.table import Route, base_revision
from ..telemetry.metrics import GatewayMetrics, RequestRecord
from ..upstream.exchange import UpstreamRequest
from ..wire import errors
from .capture import ResponseCapture
from .directives import Directives, directives_of
from .entry import Entry
from .flights import Flight, Flights
from .replay import HIT, Replay
from .request_key import CanonicalRequest, canonical, entry_key
from .store import EntryStore

MISS, BYPASS = "miss", "bypass"
JOINED = "joined"  # a hit that waited for an equal request

Forward = Callable[[web.Request, UpstreamRequest, RequestRecord], Awaitable[web.StreamResponse]]


class CachedCall(msgspec.Struct, frozen=True):
    """A request to a route with a cache. `key`: of its response, of the revision that it would go to; empty: its
    response is not looked up, nor kept. `owner`: whose share its entry counts in. `stores`: whether it may be kept."""

    rule: ResponseCache
    route: Route
    scope: str
    owner: str
    directives: Directives
    canonical: CanonicalRequest | None = None
    revision: str = ""
    key: bytes = b""

    @property
    def stores(self) -> bool:
        return bool(self.key) and not self.directives.no_store

    def key_of(self, revision: str) -> bytes:
        """The key of the same request's response by another revision. Baseline pods run the same as their revision."""
        assert self.canonical is not None
        return entry_key(self.scope, self.route.name, self.route.uid, base_revision(revision), self.canonical.digest)


class ResponseCaches:
    """The kept responses of one gateway."""

    def __init__(
        self,
        store: EntryStore,
        balancer: LoadBalancer,
        metrics: GatewayMetrics,
        forward: Forward,
        *,
        most_bytes: int,
        stall_timeout_s: float,
        wait_timeout_s: float,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        """`forward`: computes the response to a request. `most_bytes`: of one response that is kept; 0: none is.

        `wait_timeout_s`: how long a request may wait for the response to an equal one.
        """
        self.store = store
        self._balancer, self._metrics, self._forward = balancer, metrics, forward
        self._most_bytes, self._wait_timeout_s = most_bytes, wait_timeout_s
        self._replay = Replay(stall_timeout_s)
        self._unix_time = unix_time
        self.flights = Flights()
        metrics.cache_bytes.set_function(lambda: self.store.size_bytes)

    def call_of(self, request: web.Request, outgoing: UpstreamRequest, record: RequestRecord) -> CachedCall | None:
        """What a request may get from a cache; None where its route has none.

        Its tenant is the one that servers know. Requests without any are those of one tenant.
        """
        route = self._balancer.published.find(outgoing.whose)
        if route is None or route.cache is None or not self._most_bytes or outgoing.method != "POST":
            return None
        if record.begun is not None:  # the fast lane has sent it already
            return None
        tenant = outgoing.headers.get(TENANT, "")
        scope = "shared" if route.cache.shared else f"tenant {tenant}"
        directives = directives_of(request.headers.getall("Cache-Control", ()))
        call = CachedCall(route.cache, route, scope, tenant or outgoing.client, directives)
        if _is_personal(outgoing):
            return call
        strips_usage = outgoing.meter is not None and outgoing.meter.strips_usage
        found = canonical(outgoing.path_qs, outgoing.headers, outgoing.body, strips_usage=strips_usage)
        revision = self._balancer.revision_of(
            outgoing.whose, outgoing.key, outgoing.revision, preferred=outgoing.preferred
        )
        if found is None or not revision:
            return call
        call = replace(call, canonical=found, revision=revision)
        return replace(call, key=call.key_of(revision))

    async def find(self, call: CachedCall, outgoing: UpstreamRequest) -> Entry | None:
        """The kept response to a request, which then takes no tokens from limits.

        Raises:
            RequestError: there is none, and the client wants no other one (504).
        """
        entry = await self._kept(call) if call.key else None
        if entry is None and call.directives.only_if_cached:
            raise errors.not_cached()
        if entry is not None and outgoing.meter is not None:
            outgoing.meter.hit(entry.revision, entry.usage or Usage())
        return entry

    async def serve(
        self,
        call: CachedCall,
        found: Entry | None,
        request: web.Request,
        outgoing: UpstreamRequest,
        record: RequestRecord,
    ) -> web.StreamResponse:
        """The response to a request: a copy of what `find` found, or one that is computed. Raises RequestError."""
        if found is not None:
            return await self._copy(found, HIT, request, outgoing, record)
        joins = call.stores and not call.directives.no_cache
        if joins and (entry := await self._awaited(call, record.owner)) is not None:
            if outgoing.meter is not None:
                outgoing.meter.hit(entry.revision, entry.usage or Usage())
            return await self._copy(entry, JOINED, request, outgoing, record)
        return await self._compute(call, request, outgoing, record)

    async def _awaited(self, call: CachedCall, owner: str) -> Entry | None:
        """The response to an equal request that is computed now; None where this one is to be computed.

        Raises:
            RequestError: it did not come in time (504).
        """
        try:
            async with asyncio.timeout(self._wait_timeout_s):
                while (flight := self.flights.of(call.key)) is not None:
                    with self.flights.waiting(owner) as has_place:
                        if not has_place:
                            return None
                        await flight.wait()
                    if (entry := flight.entry) is not None and call.directives.takes(self._age_s(entry)):
                        return entry
                    if flight.is_unkept:
                        return None
        except TimeoutError:
            raise errors.timed_out() from None
        return None

    async def _compute(
        self, call: CachedCall, request: web.Request, outgoing: UpstreamRequest, record: RequestRecord
    ) -> web.StreamResponse:
        """The response of the model, which is kept if it may be. Others wait for it unless one is computed already."""
        record.cache = MISS if call.key else BYPASS
        streams = call.canonical is not None and call.canonical.stream
        most_bytes = self._most_bytes if call.stores else 0
        capture = ResponseCapture(outgoing.path, most_bytes, outgoing.account, record.cache, streams=streams)
        outgoing = replace(outgoing, capture=capture)
        try:
            if not call.stores or self.flights.of(call.key) is not None:
                return await self._forward(request, outgoing, record)
            with self.flights.lead(call.key) as flight:
                response = await self._forward(request, outgoing, record)
                self._land(call, flight, capture)
                return response
        finally:
            self._metrics.cached(record.model, record.revision, record.cache)
            if capture.entry is not None:
                await self._keep(call, capture.entry)

    def _land(self, call: CachedCall, flight: Flight, capture: ResponseCapture) -> None:
        """Gives a response to those that wait for it, if their revision computed it."""
        entry = capture.entry
        if entry is not None and call.key_of(entry.revision) == call.key:
            flight.entry = entry
        flight.is_unkept = capture.is_whole and flight.entry is None

    async def _keep(self, call: CachedCall, entry: Entry) -> None:
        await self.store.put(call.key_of(entry.revision), call.owner, entry, call.rule.ttl_seconds)

    async def _kept(self, call: CachedCall) -> Entry | None:
        if call.directives.no_store or call.directives.no_cache:
            return None
        entry = await self.store.get(call.key)
        if entry is None:
            return None
        age_s = self._age_s(entry)
        # The owner of the route may have shortened its time since.
        return entry if age_s < call.rule.ttl_seconds and call.directives.takes(age_s) else None

    async def _copy(
        self, entry: Entry, result: str, request: web.Request, outgoing: UpstreamRequest, record: RequestRecord
    ) -> web.StreamResponse:
        usage, saved = entry.usage or Usage(), outgoing.meter.saved if outgoing.meter else None
        self._metrics.cached(record.model, entry.revision, result, usage, saved.cost_nano if saved else 0)
        record.trace.event("cache hit")
        if outgoing.is_sample:
            self._balancer.first_attempts.hit(outgoing.route, outgoing.key, outgoing.client)
        return await self._replay.send(entry, self._age_s(entry), request, outgoing, record)

    def _age_s(self, entry: Entry) -> float:
        return entry.age_s(self._unix_time())


def _is_personal(outgoing: UpstreamRequest) -> bool:
    """Whether the server knows who the client is, or the client continues a stream: its response is its own."""
    return RESUME in outgoing.headers or any(name in outgoing.headers for name in outgoing.forwarded)
