"""Joins kept responses with the requests: a look-up before the limits, one computation, a replay."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web
from msgspec.structs import replace
from multidict import istr

from slipway_contracts.headers import RESUME, TENANT
from slipway_contracts.route_table import ResponseCache

from ..balancing.load_balancer import LoadBalancer
from ..forwarding.stand_ins import ResponseCollector, with_writer
from ..limits.budget import MemoryBudget
from ..quotas.usage import Usage
from ..routing.table import Route, base_revision
from ..telemetry.metrics import GatewayMetrics, RequestRecord
from ..upstream.exchange import UpstreamRequest
from ..wire import errors
from .capture import ResponseCapture
from .digests import written
from .directives import Directives, directives_of
from .embeddings import MAX_RESPONSE_BYTES, Computed, body_of, entries_of, merged, read_computed
from .entry import Entry
from .flights import Flight, Flights
from .lane_copies import CopiedRequest, LaneCopies
from .replay import HIT, Replay
from .request_key import CanonicalRequest, canonical, entry_key, scope_of
from .store import EntryStore, MemoryStore

if TYPE_CHECKING:
    from ..fast_lane.lane import FastLane

MISS, BYPASS = "miss", "bypass"
PARTIAL = "partial"  # some embeddings were kept
JOINED = "joined"  # a hit that waited for an equal request

# What a byte of a request for embeddings, and each of its inputs, take at most while these are kept apart.
_BYTES_PER_BYTE, _INPUT_BYTES = 12, 192
_CACHE_CONTROL = istr("Cache-Control")

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
    base_revision: str = ""  # of an adapter: what its base would run
    key: bytes = b""

    @property
    def stores(self) -> bool:
        return bool(self.key) and not self.directives.no_store

    def key_of(self, revision: str) -> bytes:
        """The key of the same request's response by another revision. Baseline pods run the same as their revision."""
        assert self.canonical is not None
        if self.key and revision == self.revision:
            return self.key
        return entry_key(self.scope, self.route.name, self.route.uid, base_revision(revision), self.canonical.digest)

    def item_keys(self, revision: str) -> list[bytes]:
        """The keys of all inputs of a request for embeddings."""
        assert self.canonical is not None
        about = (self.scope, self.route.name, self.route.uid, base_revision(revision))
        return [entry_key(*about, digest) for digest in self.canonical.items]

    def most_bytes(self, most_bytes: int) -> int:
        """The most of the response that is captured. `most_bytes`: of one entry."""
        if not self.stores:
            return 0
        return MAX_RESPONSE_BYTES if self.canonical is not None and self.canonical.items else most_bytes


class KeptParts(msgspec.Struct, frozen=True):
    """Embeddings of some inputs of a request, in the order of all; None for those that are not kept."""

    entries: list[Entry | None]


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
        self.copies: LaneCopies | None = None  # in the fast lane
        metrics.cache_bytes.set_function(lambda: self.store.size_bytes + (self.copies.size_bytes if self.copies else 0))

    def join(self, lane: "FastLane", copies_bytes: int, budget: MemoryBudget, clock: Callable[[], float]) -> None:
        """The fast lane answers with copies of what this process keeps. Must come before the first table.

        `copies_bytes`: of those of the store, what copies may take. `clock`: of the store and of the lane. A cache that
        gateways share has no copies.
        """
        if isinstance(self.store, MemoryStore) and self._most_bytes and copies_bytes:
            self.store.leave(copies_bytes)
            self.copies = LaneCopies(lane.native, self.store, copies_bytes, budget, clock, lane.serves)
            lane.copy_by(self.copies)

    def call_of(self, request: web.Request, outgoing: UpstreamRequest, record: RequestRecord) -> CachedCall | None:
        """What a request may get from a cache; None where its route has none.

        Its tenant is the one that servers know. Requests without any are those of one tenant.
        """
        route = self._balancer.published.find(outgoing.whose)
        # The public name of a ModelRoute is in the bytes of a response.
        named = "" if outgoing.adapter is None else outgoing.adapter.model
        kept = route is not None and route.cache is not None and outgoing.responds_as == named
        if route is None or route.cache is None or not kept or not self._most_bytes or outgoing.method != "POST":
            return None
        if outgoing.is_turn:  # it is stored
            return None
        tenant = outgoing.headers.get(TENANT, "")
        scope = scope_of(tenant, is_shared=bool(route.cache.shared))
        directives = directives_of(request.headers.getall(_CACHE_CONTROL, ()))
        call = CachedCall(route.cache, route, scope, tenant or outgoing.client, directives)
        if _is_personal(outgoing) or record.begun is not None:  # the fast lane sends what no cache may have
            return call
        strips_usage = outgoing.meter is not None and outgoing.meter.strips_usage
        found = canonical(outgoing.path_qs, outgoing.headers, outgoing.body, strips_usage=strips_usage)
        revision = self._balancer.revision_of(
            outgoing.whose, outgoing.key, outgoing.revision, preferred=outgoing.preferred
        )
        host = self._balancer.host_of(outgoing.whose, outgoing.key)
        if found is None or not revision:
            return call
        size_bytes = _BYTES_PER_BYTE * len(outgoing.body) + _INPUT_BYTES * len(found.items)
        if found.items and outgoing.account.grow(size_bytes):
            return call  # there is no room for its inputs, one by one
        scope = f"{scope} base {host}" if route.base else scope
        call = replace(call, canonical=found, revision=revision, base_revision=host, scope=scope)
        return replace(call, key=call.key_of(revision))

    async def find(self, call: CachedCall, outgoing: UpstreamRequest) -> Entry | KeptParts | None:
        """The kept response to a request, which then takes no tokens from limits, or parts of it.

        Raises:
            RequestError: there is none, and the client wants no other one (504).
        """
        entry = await self._kept(call, outgoing) if call.key else None
        if not isinstance(entry, Entry) and call.directives.only_if_cached:
            raise errors.not_cached()
        if isinstance(entry, Entry):
            self._offer(call, entry, outgoing)  # before anything is awaited: it is kept still
        if isinstance(entry, Entry) and outgoing.meter is not None:
            outgoing.meter.hit(entry.revision, entry.usage or Usage())
        return entry

    async def serve(
        self,
        call: CachedCall,
        found: Entry | KeptParts | None,
        request: web.Request,
        outgoing: UpstreamRequest,
        record: RequestRecord,
    ) -> web.StreamResponse:
        """The response to a request: a copy of what `find` found, or one that is computed. Raises RequestError."""
        if isinstance(found, KeptParts):
            return await self._complete(call, found, request, outgoing, record)
        if found is not None:
            return await self._copy(found, HIT, request, outgoing, record)
        joins = call.stores and not call.directives.no_cache and self.flights.of(call.key) is not None
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
        capture = self._capture(call, outgoing, record.cache)
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
            if capture.entry is not None and self._is_current(call):
                await self._keep(call, capture.entry)

    def _land(self, call: CachedCall, flight: Flight, capture: ResponseCapture) -> None:
        """Gives a response to those that wait for it, if their revision computed it."""
        entry = capture.entry
        if entry is not None and call.key_of(entry.revision) == call.key and self._is_current(call):
            flight.entry = entry
        flight.is_unkept = capture.is_whole and flight.entry is None

    async def _complete(
        self, call: CachedCall, kept: KeptParts, request: web.Request, outgoing: UpstreamRequest, record: RequestRecord
    ) -> web.StreamResponse:
        """The response to a request for embeddings of which some are kept: the model computes the others alone."""
        assert call.canonical is not None
        record.cache = PARTIAL
        inputs = [one for one, entry in zip(call.canonical.inputs, kept.entries, strict=True) if entry is None]
        collector, capture = ResponseCollector(MAX_RESPONSE_BYTES), self._capture(call, outgoing, PARTIAL)
        collector.account = outgoing.account
        missing = replace(outgoing, body=body_of(call.canonical.fields, inputs), capture=capture)
        await self._forward(with_writer(request, collector), missing, record)
        entry, computed = capture.entry, None
        if collector.ended and collector.status != 200:
            self._metrics.cached(record.model, record.revision, MISS)
            return await self._replay.pass_on(collector, request, record)
        if entry is not None and call.key_of(entry.revision) == call.key and self._is_current(call):
            computed = read_computed(entry.body, len(inputs))
        found = merged(kept.entries, computed) if computed is not None else None
        if entry is None or computed is None or found is None:
            # No response, or one of another revision, to whose embeddings these may not be added.
            return await self._compute(call, request, outgoing, record)
        self._metrics.cached(record.model, entry.revision, PARTIAL, Usage(found[1].cached_tokens))
        whole = replace(entry, body=found[0], usage=found[1])
        response = await self._replay.send(whole, 0.0, request, outgoing, record, shown=PARTIAL)
        await self._keep_items(call, entry, computed, inputs)
        return response

    def _is_current(self, call: CachedCall) -> bool:
        """Whether the route is that of the same object still: another one of its name may have answered."""
        route = self._balancer.published.find(call.route.name)
        return route is not None and route.uid == call.route.uid

    def _capture(self, call: CachedCall, outgoing: UpstreamRequest, shown: str) -> ResponseCapture:
        streams = call.canonical is not None and call.canonical.stream
        most_bytes = call.most_bytes(self._most_bytes)
        base = call.base_revision
        return ResponseCapture(outgoing.path, most_bytes, outgoing.account, shown, streams=streams, base_revision=base)

    async def _keep(self, call: CachedCall, entry: Entry) -> None:
        assert call.canonical is not None
        if not call.canonical.items:
            await self.store.put({call.key_of(entry.revision): entry}, call.owner, call.rule.ttl_seconds)
        elif (computed := read_computed(entry.body, len(call.canonical.inputs))) is not None:
            await self._keep_items(call, entry, computed, call.canonical.inputs)

    async def _keep_items(self, call: CachedCall, entry: Entry, computed: Computed, inputs: Sequence[Any]) -> None:
        assert call.canonical is not None
        keys = dict(zip(map(written, call.canonical.inputs), call.item_keys(entry.revision), strict=True))
        entries = zip(inputs, entries_of(entry, computed, inputs), strict=True)
        found = {keys[written(one)]: part for one, part in entries if part.size_bytes <= self._most_bytes}
        await self.store.put(found, call.owner, call.rule.ttl_seconds)

    async def _kept(self, call: CachedCall, outgoing: UpstreamRequest) -> Entry | KeptParts | None:
        if call.directives.no_store or call.directives.no_cache:
            return None
        assert call.canonical is not None
        keys = call.item_keys(call.revision) if call.canonical.items else [call.key]
        found = [entry if self._fits(call, entry) else None for entry in await self.store.get(keys)]
        if not call.canonical.items:
            return found[0]
        kept = [entry for entry in found if entry is not None]
        size_bytes = sum(len(entry.body) for entry in kept)
        if not kept or size_bytes > MAX_RESPONSE_BYTES or outgoing.account.grow(size_bytes):
            return None
        if len(kept) < len(found):
            return KeptParts(found)
        if (whole := merged(kept, None)) is None:
            return None
        return replace(min(kept, key=lambda entry: entry.stored_s), body=whole[0], usage=Usage(whole[1].input_tokens))

    def _fits(self, call: CachedCall, entry: Entry | None) -> bool:
        """Whether an entry is not too old: the owner of the route may have shortened its time since."""
        if entry is None:
            return False
        age_s = self._age_s(entry)
        return age_s < call.rule.ttl_seconds and call.directives.takes(age_s)

    def _offer(self, call: CachedCall, entry: Entry, outgoing: UpstreamRequest) -> None:
        """The fast lane may answer requests of the same bytes with an entry."""
        if self.copies is None or call.canonical is None or call.route.base:
            return
        keys = call.item_keys(call.revision) if call.canonical.items else [call.key]
        route, path, headers = call.route, outgoing.path_qs, outgoing.headers
        request = CopiedRequest(call.scope, route.name, route.uid, path, headers, outgoing.body, call.revision)
        self.copies.offer(request, keys, call.owner, entry)

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
