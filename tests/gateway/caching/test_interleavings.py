"""10,000 interleavings of rollouts, rollbacks, tenants and caches: never a response of another revision or tenant."""

import asyncio
import contextlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from multidict import CIMultiDict

from slipway_contracts.headers import TENANT
from slipway_contracts.route_table import Backend, ResponseCache
from slipway_gateway.balancing.load_balancer import LoadBalancer
from slipway_gateway.caching.caches import ResponseCaches
from slipway_gateway.caching.lane_copies import CopiedRequest, LaneCopies
from slipway_gateway.caching.store import MemoryStore
from slipway_gateway.fast_lane.lane import FastLane
from slipway_gateway.forwarding.stand_ins import ResponseCollector
from slipway_gateway.limits.budget import MemoryBudget
from slipway_gateway.routing.router import assign_revision
from slipway_gateway.routing.table import Route, base_revision
from slipway_gateway.settings import GatewaySettings
from slipway_gateway.telemetry.metrics import GatewayMetrics, RequestRecord
from slipway_gateway.upstream.exchange import UpstreamRequest, UpstreamResponse
from slipway_gateway.wire import errors
from slipway_plane import NATIVE, WHY_MISSING
from tests.gateway.harness import table

INTERLEAVINGS, STEPS = 10_000, 12
# As many steps in all. The lane has a copy for the third of equal requests at the earliest.
IN_LANE, STEPS_IN_LANE = 3_000, 40
QUESTIONS, TENANTS = ("q", "why"), ("", "a", "b")
REVISIONS = ("r1", "r2", "r1-baseline")
URLS = {name: f"http://127.0.0.1:{port}" for port, name in enumerate(REVISIONS, 8001)}


@dataclass
class World:
    """One gateway's cache, with the network in the place of which `forward` answers."""

    chance: random.Random
    balancer: LoadBalancer
    metrics: GatewayMetrics
    now_s: float = 1000.0
    generation: int = 0
    object: int = 0
    waiting: list["asyncio.Future[str]"] = field(default_factory=list)
    hits: int = 0
    joined: int = 0
    lane: Any = None  # a compiled lane with copies of what this cache keeps
    copied: int = 0

    def __post_init__(self) -> None:
        self.budget = MemoryBudget(1 << 20, 1 << 20, self.clock)
        # So small that entries leave, too.
        self.caches = ResponseCaches(
            MemoryStore(12_000 if self.lane is None else 24_000, self.budget, self.clock),
            self.balancer,
            self.metrics,
            self.forward,
            most_bytes=4096,
            stall_timeout_s=60,
            wait_timeout_s=60,
            unix_time=self.clock,
        )
        if self.lane is not None:
            # Of these, too.
            self.caches.join(self.lane, 12_000, self.budget, self.clock)

    def clock(self) -> float:
        return self.now_s

    @property
    def route(self) -> Route:
        found = self.balancer.published.find("chat")
        assert found is not None
        return found

    def publish(self) -> None:
        """A rollout, a rollback, a step of either, another object of the name, or another rule of its cache."""
        chance = self.chance
        self.generation += 1
        self.object += chance.random() < 0.15
        first, second = chance.sample(REVISIONS, 2)
        weight = chance.choice((0, 10, 50, 100))
        shares = ((first, weight), (second, 100 - weight))
        found = table(self.generation, *((name, share, [URLS[name]]) for name, share in shares))
        cache = ResponseCache(chance.choice((5, 60)), chance.choice((None, None, None, True)))
        route = replace(found.routes["default/chat"], uid=f"u{self.object}", cache=cache, salt=chance.choice("st"))
        assert all(isinstance(one, Backend) for one in route.backends)
        published = replace(found, routes={route.name: route}, models={"chat": route})
        self.balancer.publish(published)
        if self.lane is not None:
            self.lane.publish(published, lambda route: (None, False, None), {}, {})

    def look_in_lane(self, outgoing: UpstreamRequest, tenant: str) -> None:
        """What the lane would answer now is what Python's cache has for this request, as it is to be."""
        formats = [(name, value.encode()) for name, value in outgoing.headers.items() if name != TENANT]
        key, path, body = outgoing.key.encode(), outgoing.path_qs, outgoing.body
        found = self.lane.native.find_copy("chat", tenant, key, path, formats, body, self.now_s, self.now_s)
        if found is None:
            return
        route, store = self.route, self.caches.store
        request = cast("web.Request", SimpleNamespace(headers=CIMultiDict()))
        call = self.caches.call_of(request, outgoing, RequestRecord("0" * 32, "id", 0.0, owner=tenant))
        assert call is not None
        assert isinstance(store, MemoryStore)
        kept = store.look(call.key)
        assert kept is not None, "Python keeps it no longer"
        assert (kept[0].revision, kept[0].body, self.now_s - kept[0].stored_s) == found
        assert route.cache is not None
        assert found[2] < route.cache.ttl_seconds
        (choice,) = json.loads(found[1])["choices"]
        revision, of_tenant, uid, wanted = choice["message"]["content"]
        own = base_revision(assign_revision(route, outgoing.key))
        assert (revision, uid, wanted) == (own, route.uid, json.loads(body)["messages"])
        assert of_tenant == tenant or route.cache.shared
        self.copied += 1

    async def forward(
        self, request: web.Request, outgoing: UpstreamRequest, record: RequestRecord
    ) -> web.StreamResponse:
        """The response of the revision that has the weight when the request is sent."""
        # As `Retries`: the choice is made again, with the table of now.
        endpoint = self.balancer.pick(outgoing.whose, outgoing.key, ())
        assert endpoint is not None
        uid = self.route.uid
        end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.waiting.append(end)
        how = await end
        record.revision = endpoint.revision
        if how == "refused":
            raise errors.overloaded("no room")
        wanted = json.loads(outgoing.body)["messages"]
        about = [base_revision(endpoint.revision), outgoing.headers.get(TENANT, ""), uid, wanted]
        choice = {"index": 0, "message": {"content": about}, "finish_reason": None if how == "cut" else "stop"}
        body = json.dumps({"id": "chatcmpl-0123456789abcdef", "choices": [choice]}).encode()
        headers = CIMultiDict({"Content-Type": "application/json"})
        response = UpstreamResponse(endpoint, 500 if how == "failed" else 200, headers, body)
        assert outgoing.capture is not None
        outgoing.capture.begin(response, CIMultiDict())
        outgoing.capture.add(body)
        if how != "broken":
            outgoing.capture.end(None, self.now_s)
        record.end("ok", response.status)
        return web.Response(body=body, status=response.status)

    async def ask(self) -> None:
        """One request, whose response is that of its tenant and of the revision that it was assigned to."""
        chance, route = self.chance, self.route
        question, tenant, session = chance.choice(QUESTIONS), chance.choice(TENANTS), chance.choice("xyz")
        body = json.dumps({"model": "chat", "messages": question, "temperature": 0}).encode()
        headers = CIMultiDict({TENANT: tenant} if tenant else {})
        outgoing = UpstreamRequest("chat", session, "/v1/chat/completions", headers, body, route=route.name)
        collector = ResponseCollector(1 << 20)
        directive = chance.choice(("", "", "", "no-cache", "no-store", "max-age=3"))
        fields = CIMultiDict({"Cache-Control": directive} if directive else {})
        request = cast("web.Request", SimpleNamespace(headers=fields, writer=collector, transport=None))
        record = RequestRecord("0" * 32, "id", 0.0, owner=tenant)
        assigned, arrived_s = assign_revision(route, session), self.now_s
        if self.lane is not None:
            self.look_in_lane(outgoing, tenant)
        call = self.caches.call_of(request, outgoing, record)
        assert call is not None
        try:
            found = await self.caches.find(call, outgoing)
            await self.caches.serve(call, found, request, outgoing, record)
        except errors.RequestError:
            return
        if record.cache == "hit":
            assert directive not in ("no-cache", "no-store")
            age_s = int(collector.headers["Age"])
            assert age_s < route.cache.ttl_seconds if route.cache and found else True
            assert directive != "max-age=3" or age_s <= 3 + (self.now_s - arrived_s)
            (choice,) = json.loads(collector.parts[0])["choices"]
            revision, of_tenant, uid, wanted = choice["message"]["content"]
            assert (revision, uid, wanted) == (base_revision(assigned), route.uid, question)
            assert choice["finish_reason"] == "stop"
            assert of_tenant == tenant or (route.cache and route.cache.shared)
            self.hits += 1
            self.joined += found is None

    async def run(self) -> None:
        asking = list[asyncio.Task[None]]()
        self.publish()
        for _ in range(STEPS if self.lane is None else STEPS_IN_LANE):
            self._step(asking)
            for _ in range(self.chance.choice((0, 1, 3))):
                await asyncio.sleep(0)
        while any(not task.done() for task in asking):
            while self.waiting:
                self._answer(self.waiting.pop())
            await asyncio.sleep(0)
        for result in await asyncio.gather(*asking, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        assert not self.caches.flights.waits
        assert not self.caches.flights._flights

    def _step(self, asking: list["asyncio.Task[None]"]) -> None:
        chance = self.chance
        step = chance.random()
        if step < 0.2:
            self.publish()
        elif step < 0.65:
            asking.append(asyncio.create_task(self.ask()))
        elif step < 0.9 and self.waiting:
            self._answer(self.waiting.pop(chance.randrange(len(self.waiting))))
        elif step < 0.93 and asking:
            chance.choice(asking).cancel()
        elif step < 0.96:
            self.now_s += chance.choice((1, 4, 30))
        elif step < 0.97 and self.lane is not None:
            self.budget._caches[chance.randrange(2)][1](chance.choice((1, 1 << 30)))  # requests need the room
        elif step < 0.98 and self.caches.copies is not None:
            self.caches.copies.used(self.lane.native.take().used_copies)

    def _answer(self, end: "asyncio.Future[str]") -> None:
        how = self.chance.choice(("ok", "ok", "ok", "ok", "refused", "failed", "cut", "broken"))
        with contextlib.suppress(asyncio.InvalidStateError):  # its client left
            end.set_result(how)


async def test_never_a_response_of_another_revision_or_tenant() -> None:
    metrics = GatewayMetrics("test")
    balancer = LoadBalancer(metrics)
    hits = joined = 0
    for seed in range(INTERLEAVINGS):
        world = World(random.Random(seed), balancer, metrics, generation=2 * STEPS * seed)
        try:
            await world.run()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
        hits, joined = hits + world.hits, joined + world.joined
    assert hits > INTERLEAVINGS / 4
    assert joined > INTERLEAVINGS / 20


def compiled_lane() -> FastLane:
    """A lane that no connection comes to."""
    charging = cast(Any, SimpleNamespace(counters=None, may_spend=lambda tenant, budget: True))
    metrics = GatewayMetrics("test")
    return FastLane(
        GatewaySettings(), metrics, budget_bytes=1 << 20, max_sessions=1, max_prefix_blocks=1, logs=False,
        trace_share=None, traces_per_s=1, tenants=lambda: None, charging=charging,
    )  # fmt: skip


@pytest.mark.skipif(NATIVE is None, reason=WHY_MISSING)
async def test_never_a_response_in_the_lane_that_python_would_not_give() -> None:
    metrics, lane = GatewayMetrics("test"), compiled_lane()
    balancer = LoadBalancer(metrics)
    copied = 0
    for seed in range(IN_LANE):
        world = World(random.Random(seed), balancer, metrics, generation=2 * STEPS_IN_LANE * seed, lane=lane)
        try:
            await world.run()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
        copied += world.copied
        copies = world.caches.copies
        assert copies is not None
        assert lane.native.copied_bytes == copies.size_bytes == sum(one.size_bytes for one in copies._copies.values())
        assert {key for one in copies._copies.values() for key in one.keys} == set(copies._by_key)
    assert copied > IN_LANE / 4


@pytest.mark.skipif(NATIVE is None, reason=WHY_MISSING)
@pytest.mark.parametrize("lacking", ["scope", "uid", "revision", "body", "left"])
async def test_the_walk_finds_a_copy_that_should_not_be_there(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can fail: where the digest of a copy is that of another request, or a copy stays, it finds that."""
    metrics, lane = GatewayMetrics("test"), compiled_lane()
    balancer, offer = LoadBalancer(metrics), LaneCopies.offer
    others = {"scope": ("tenant ", "tenant a", "tenant b"), "uid": ("u0", "u1", "u2"), "revision": ("r1", "r2")}

    def wrong(self: LaneCopies, request: CopiedRequest, *rest: Any) -> None:
        """Offers a response to a further request, which differs in one part."""
        swapped = request.body.replace(b'"q"', b'"?"').replace(b'"why"', b'"q"').replace(b'"?"', b'"why"')
        values: Sequence[Any] = (swapped,) if lacking == "body" else others[lacking]
        offered = [request._replace(**{lacking: value}) for value in values]
        for one in offered:
            offer(self, one, *rest)

    if lacking == "left":
        monkeypatch.setattr(LaneCopies, "_left", lambda self, key: None)
    else:
        monkeypatch.setattr(LaneCopies, "offer", wrong)
    for seed in range(IN_LANE):
        try:
            await World(random.Random(seed), balancer, metrics, generation=2 * STEPS_IN_LANE * seed, lane=lane).run()
        except AssertionError:
            return
    raise AssertionError(f"a copy with another {lacking} goes unnoticed")


async def test_the_walk_finds_a_key_without_its_revision_or_tenant(monkeypatch: Any) -> None:
    """It can fail: with a key that lacks a part it finds a wrong response within moments."""
    from slipway_gateway.caching import caches

    real = caches.entry_key
    for lacking in (0, 2, 3):

        def broken(*parts: Any, lacking: int = lacking) -> bytes:
            return real(*("" if place == lacking else part for place, part in enumerate(parts)))

        monkeypatch.setattr(caches, "entry_key", broken)
        metrics = GatewayMetrics("test")
        balancer, found = LoadBalancer(metrics), False
        for seed in range(3000):
            try:
                await World(random.Random(seed), balancer, metrics, generation=2 * STEPS * seed).run()
            except AssertionError:
                found = True
                break
        assert found, f"part {lacking} of a key can be left out unnoticed"
