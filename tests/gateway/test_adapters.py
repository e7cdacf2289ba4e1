"""Adapters in the route table: which pods serve which revision, what requests say, and what pods may report."""

import asyncio
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from slipway_contracts.adapters import ADAPTERS_PATH, MAX_REPORT_BYTES, AdapterReport, AdapterState
from slipway_contracts.guards import GuardSpec
from slipway_contracts.route_table import Backend
from slipway_gateway.balancing.held_adapters import DISTRUST_S, POLL_S, SOON_S, HeldAdapterReports
from slipway_gateway.balancing.in_flight import InFlight
from slipway_gateway.routing.adapters import HeldAdapters, held, model_of, with_adapters
from slipway_gateway.routing.router import RouteEndpoint, host_order, pick, pick_in_revision
from slipway_gateway.routing.table import Problem, RevisionEndpoints, Route, RouteTable, build, parse_adapter
from slipway_gateway.telemetry.metrics import GatewayMetrics
from slipway_gateway.upstream import adapter_reports
from slipway_gateway.upstream.adapter_reports import AdapterReports
from slipway_gateway.upstream.adapters import AdapterCall
from slipway_gateway.wire import inference

ONE, TWO, THREE = (f"http://10.0.0.{number}:8000" for number in (1, 2, 3))
BASE = Route("team/chat", "b", "chat", salt="b", backends=(Backend("v2", 50), Backend("v1", 50)))
ADAPTER = Route(
    "team/support.adapter",
    "a",
    "support",
    salt="a",
    backends=(Backend("r2", 20), Backend("r1", 80)),
    base="team/chat",
    digest="d1",
)
BOTH: HeldAdapters = frozenset({("support", "r1"), ("support", "r2")})


def table_of(*routes: Route, ready: bool = True) -> RouteTable:
    pods = [RevisionEndpoints("team/chat", "v1", (ONE,)), RevisionEndpoints("team/chat", "v2", (TWO,), ready=ready)]
    return build(routes or (BASE, ADAPTER), pods)


class First:
    def pick(self, urls: Any, key: str) -> str:
        return str(urls[0])


def test_pods_of_the_base_are_endpoints_of_what_they_report() -> None:
    found = with_adapters(table_of(), {ONE: BOTH, TWO: frozenset({("support", "r1"), ("other", "r2")})})
    assert found.endpoints["team/support.adapter", "r1"] == (ONE, TWO)
    assert found.endpoints["team/support.adapter", "r2"] == (ONE,)
    assert found.models["support"].base == "team/chat" and found.hosts == {
        ONE: ("team/chat", "v1"),
        TWO: ("team/chat", "v2"),
    }
    unready = with_adapters(table_of(ready=False), {ONE: BOTH, TWO: BOTH})
    assert unready.pods(unready.models["support"], "r1") == ([ONE], [TWO])


def test_a_report_of_another_deployments_pod_counts_for_nothing() -> None:
    other = Route("team/other", "o", "other", backends=(Backend("v1", 100),))
    pods = [RevisionEndpoints("team/other", "v1", (THREE,)), RevisionEndpoints("team/chat", "v1", (ONE,))]
    found = with_adapters(build([BASE, other, ADAPTER], pods), {THREE: BOTH})
    assert not found.ready(found.models["support"])


def test_a_report_of_many_revisions_adds_few() -> None:
    many = frozenset(("support", f"x{number}") for number in range(400)) | BOTH
    found = with_adapters(table_of(), {ONE: many})
    assert len(found.revisions(found.models["support"])) == 10 and found.urls(found.models["support"], "r2") == (ONE,)


def test_an_adapter_sleeps_while_its_base_does() -> None:
    found = with_adapters(table_of(replace(BASE, asleep=True, wake_s=7, hold_s=9.0), ADAPTER), {ONE: BOTH})
    adapter = found.models["support"]
    assert (adapter.asleep, adapter.wake_s, adapter.hold_s) == (True, 7, 9.0)
    assert found.routes["team/support.adapter"] is adapter


def test_an_adapter_has_the_guards_and_the_affinity_of_its_base() -> None:
    guard = GuardSpec(name="cards", stages=("Input",))
    base = replace(BASE, guards=(guard,), prefix_affinity=True)
    found = with_adapters(table_of(base, ADAPTER), {ONE: BOTH}).models["support"]
    assert found.guards == (guard,) and found.prefix_affinity


def test_the_revision_of_the_adapter_is_chosen_first_then_that_of_the_base_by_its_own_split() -> None:
    found = with_adapters(table_of(), {ONE: BOTH, TWO: BOTH})
    adapter, counts = found.models["support"], Counter[tuple[str, str]]()
    for number in range(4000):
        key = f"user:{number}"
        hosts = host_order(BASE, key)
        endpoint = pick(found, adapter, key, First(), hosts=hosts)
        assert endpoint and endpoint == pick(found, adapter, key, First(), hosts=hosts)
        counts[endpoint.revision, endpoint.base_revision] += 1
        assert endpoint.computed_by == f"{endpoint.revision}+{endpoint.base_revision}"
    shares = {key: count / 4000 for key, count in counts.items()}
    for (revision, base), share in shares.items():
        assert share == pytest.approx({"r1": 0.8, "r2": 0.2}[revision] * 0.5, abs=0.03), (revision, base)
    assert len(shares) == 4
    only = pick_in_revision(found, adapter, "r1", "k", First(), hosts=["v9"])
    assert only, "a base without the pods of its order serves by any"


def test_in_flight_requests_of_an_adapter_keep_the_pods_revision() -> None:
    counts = InFlight(GatewayMetrics("0"))
    endpoint = RouteEndpoint("team/support.adapter", "support", "r1", ONE, "team/chat", "v1")
    begun = counts.add(endpoint, first=True)
    assert (
        counts.of_revision("team/chat", "v1").inflight == 1 == counts.of_revision("team/support.adapter", "r1").inflight
    )
    assert counts.of_revision("team/chat", "v1").requests == 0, "they are no evidence about the base"
    counts.remove(endpoint, begun)
    assert counts.of_revision("team/chat", "v1").inflight == 0


def adapter_object(**status: Any) -> dict[str, Any]:
    metadata = {"namespace": "team", "name": "support", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    spec = {"deploymentRef": {"name": "chat"}, "model": {"name": "helper", "uri": "file:///x"}}
    return {"metadata": metadata, "spec": spec, "status": status}


def test_a_model_adapter_is_a_route_with_a_name_of_its_own() -> None:
    known = parse_adapter(adapter_object())
    assert isinstance(known, Route)
    assert (known.name, known.model, known.base, known.deployment) == (
        *("team/support.adapter", "helper", "team/chat"),
        "team/chat",
    )
    traffic = {"generation": 3, "model": "helper", "backends": [{"revision": "r1", "weight": 100}], "base": "other"}
    routed = parse_adapter(adapter_object(traffic=traffic))
    assert isinstance(routed, Route) and routed.base == "team/other" and routed.digest
    broken = adapter_object()
    broken["spec"] = {"deploymentRef": {"name": 7}}
    assert isinstance(parse_adapter(broken), Problem)


@pytest.mark.parametrize(
    ("engine", "wanted"), [("", "support@r1"), ("vllm", "support@r1"), ("sglang", "base:support@r1")]
)
def test_engines_know_a_revision_by_a_name_of_its_own(engine: str, wanted: str) -> None:
    call = AdapterCall("support")
    body = call.body(b'{"prompt": "\\"model\\": 1", "model": "support", "n": 1}', "r1", engine)
    assert msgspec.json.decode(body) == {"prompt": '"model": 1', "model": wanted, "n": 1}
    twice = call.body(b'{"model": "a", "model": "support"}', "r1", engine)
    assert msgspec.json.decode(twice)["model"] == wanted, "the last one counts, for servers too"
    path = AdapterCall("support", inference.generate("support"), in_body=False)
    assert path.body(b"{}", "r1", engine) == b"{}"
    assert path.path_qs("/api/v1/models/support/generate?a=1", "r1", engine).startswith(f"/api/v1/models/{wanted}/")
    assert model_of("support", "r1", engine) == wanted


# As vLLM, SGLang and slipway-server write it.
REFUSALS = (
    ("vllm", 404, b'{"error":{"message":"The model `support@r1` does not exist.","type":"NotFoundError","code":404}}'),
    ("sglang", 400, b'{"message":"Got LoRA adapter that has never been loaded: support@r1","type":"BadRequest"}'),
    ("slipway", 404, b'{"error":{"message":"The model support@r1 does not exist","code":"model_not_found"}}'),
)


@pytest.mark.parametrize(("engine", "status", "body"), REFUSALS, ids=[engine for engine, *_ in REFUSALS])
def test_a_pod_that_does_not_know_an_adapter_differs_from_a_bad_request(engine: str, status: int, body: bytes) -> None:
    call = AdapterCall("support")
    assert call.is_refused(status, body, "r1", engine)
    assert not call.is_refused(status, body, "r2", engine) and not call.is_refused(500, body, "r1", engine)
    assert not call.is_refused(404, b'{"detail":"Not Found"}', "r1", engine)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_pods_are_read_at_once_when_something_changes_and_else_from_time_to_time() -> None:
    clock, woken = Clock(), list[int]()
    reports = HeldAdapterReports(clock)
    reports.wake = lambda: woken.append(1)
    reports.follow(table_of())
    assert woken and sorted(reports.take_due()) == [ONE, TWO] and reports.take_due() == []
    assert reports.wait_s() == POLL_S
    reports.follow(table_of())
    assert reports.take_due() == [], "nothing changed"
    reports.follow(table_of(BASE, replace(ADAPTER, digest="d2")))
    assert sorted(reports.take_due()) == [ONE, TWO]
    clock.now_s += SOON_S
    reports.version_reported(ONE, 1.0)
    reports.version_reported(THREE, 1.0)
    assert reports.take_due() == [ONE]
    reports.version_reported(ONE, 1.0)
    assert reports.take_due() == []
    reports.version_reported(ONE, 2.0)
    reports.refused(ONE, "support", "r1")
    assert reports.take_due() == [] and reports.wait_s() == pytest.approx(SOON_S), "responses set no pace of their own"
    clock.now_s += POLL_S
    assert sorted(reports.take_due()) == [ONE, TWO]


def test_what_a_pod_refused_is_believed_again_after_a_moment() -> None:
    clock = Clock()
    reports = HeldAdapterReports(clock)
    reports.follow(table_of())
    reports.take_due()
    reports.reported(ONE, BOTH)
    clock.now_s += SOON_S
    assert reports.changed
    reports.changed = False
    reports.refused(ONE, "support", "r2")
    assert reports.changed and reports.by_url[ONE] == {("support", "r1")} and reports.take_due() == [ONE]
    reports.reported(ONE, BOTH)
    assert reports.by_url[ONE] == {("support", "r1")}, "its loader may not have looked yet"
    clock.now_s += DISTRUST_S + 0.1
    reports.reported(ONE, BOTH)
    assert reports.by_url[ONE] == BOTH
    reports.reported(THREE, BOTH)
    assert THREE not in reports.by_url
    reports.follow(build([BASE], []))
    assert not reports.by_url


def test_what_is_not_loaded_is_not_held() -> None:
    states = ("waiting", "fetching", "loading", "loaded", "failed")
    report = AdapterReport(tuple(AdapterState(state, "r1", state) for state in states))  # type: ignore[arg-type]
    assert held(report) == {("loaded", "r1")}


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (b'{"adapters":[{"name":"support","revision":"r1","state":"loaded"}]}', "ok"),
        (b'{"adapters":[{"name":"support","revision":"../r1","state":"loaded"}]}', "wrong"),
        (b'{"adapters":[{"name":"support","revision":"r1","state":"mine"}]}', "wrong"),
        (b"[" * 100_000, "wrong"),
        (b" " * (MAX_REPORT_BYTES + 1), "wrong"),
        (msgspec.json.encode({"adapters": [{"name": "a", "revision": "r", "state": "loaded"}] * 513}), "wrong"),
        (None, "unreachable"),
    ],
)
async def test_reports_of_strangers_are_bounded(
    answer: bytes | None, result: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(_: web.Request) -> web.Response:
        if answer is None:
            await asyncio.sleep(60)
        return web.Response(body=answer)

    app = web.Application()
    app.router.add_get(ADAPTERS_PATH, serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setattr(adapter_reports, "ADAPTERS_PORT", runner.addresses[0][1])
    monkeypatch.setattr(adapter_reports, "_LIMITS", aiohttp.ClientTimeout(total=0.3))
    reports, counted, published = HeldAdapterReports(), list[str](), list[int]()
    pod = "http://127.0.0.1:8000"
    reports.follow(build([BASE, ADAPTER], [RevisionEndpoints("team/chat", "v1", (pod,))]))
    try:
        async with aiohttp.ClientSession() as session:
            await AdapterReports(session, reports, lambda: published.append(1), counted.append).read_due()
    finally:
        await runner.cleanup()
    assert counted == [result] and len(published) == (result == "ok")
    assert reports.by_url.get(pod, frozenset()) == ({("support", "r1")} if result == "ok" else set())


async def test_pods_that_are_silent_take_no_others_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[str] = Counter()

    async def serve(request: web.Request) -> web.Response:
        host = str(request.url.host)
        seen[host] += 1
        if host != "127.0.1.1":
            await asyncio.sleep(60)
        return web.Response(body=b'{"adapters":[{"name":"support","revision":"r1","state":"loaded"}]}')

    app = web.Application()
    app.router.add_get(ADAPTERS_PATH, serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", 0).start()
    monkeypatch.setattr(adapter_reports, "ADAPTERS_PORT", runner.addresses[0][1])
    monkeypatch.setattr(adapter_reports, "_LIMITS", aiohttp.ClientTimeout(total=0.2))
    monkeypatch.setattr(adapter_reports, "ROUND_S", 0.5)
    clock, pod, took_s = Clock(), "http://127.0.1.1:8000", list[float]()
    silent = tuple(f"http://127.0.2.{number}:8000" for number in range(1, 101))
    pods = [RevisionEndpoints("team/chat", "v1", (*silent, pod))]
    reports = HeldAdapterReports(clock)
    try:
        async with aiohttp.ClientSession() as session:
            reader = AdapterReports(session, reports, lambda: None, lambda _: None)
            for _ in range(4):
                reports.follow(build([BASE, ADAPTER], pods))
                began_s = time.monotonic()
                await reader.read_due()
                took_s.append(time.monotonic() - began_s)
                clock.now_s += POLL_S
    finally:
        await runner.cleanup()
    assert max(took_s) < 1.2, "100 silent pods need 1.4 s, 16 at a time"
    assert reports.by_url.get(pod) and seen["127.0.1.1"] >= 2


def test_a_table_of_many_adapters_is_made_in_a_moment() -> None:
    adapters = [
        replace(ADAPTER, name=f"team/a{number}.adapter", uid=f"{number}", model=f"a{number}") for number in range(256)
    ]
    pods = [f"http://10.1.0.{number}:8000" for number in range(20)]
    everything = frozenset((f"a{number}", revision) for number in range(256) for revision in ("r1", "r2"))
    table = build([BASE, *adapters], [RevisionEndpoints("team/chat", "v1", tuple(pods))])
    reports = Counted.fromkeys(pods, everything)
    Counted.reads = 0
    assert len(with_adapters(table, reports).endpoints) == 513
    assert Counted.reads <= len(pods), "each report is read once, not once for each adapter"


class Counted(dict[str, HeldAdapters]):
    reads = 0

    def get(self, key: str, default: Any = None) -> Any:
        Counted.reads += 1
        return super().get(key, default)
