"""Which pods are scraped how often, which of their answers count, and the sums over gateways."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from devcluster.ports import reserve_port
from slipway_contracts.route_table import Backend, Traffic
from slipway_contracts.twin_shadow import TwinShadow
from slipway_operator.api.v1alpha1.status import RevisionStatus, Status
from slipway_operator.kube.errors import Unavailable
from slipway_operator.kube.reading.gateways import Answer
from slipway_operator.metrics_api import sampler as room
from slipway_operator.metrics_api.sampler import IN_USE_S, MetricsSampler, followed, inflight
from slipway_operator.metrics_api.series import Followed, PodTarget, Unknown
from slipway_operator.model.cluster.observed import Autoscaler, Observed, Pod, Workload
from slipway_operator.turns import Turns
from tests.support.report import as_report

CHAT = ("default", "chat")
PAGE = "vllm:num_requests_waiting 3\nvllm:num_requests_running 1\nvllm:generation_tokens_total 5\n"
START = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class KnownGateways:
    """Gateways with fixed answers."""

    def __init__(self, *answers: Answer, failure: Exception | None = None) -> None:
        self._answers, self.failure = answers, failure

    async def answers(self) -> tuple[Answer, ...]:
        if self.failure:
            raise self.failure
        return self._answers


def gateway(count: object = 3, *, name: str = "gw-1", uid: str = "u1", **fields: Any) -> Answer:
    routes = {"default/chat": {"uid": uid, "generation": 1, "revisions": {"r1": {"inflight": count}}}}
    parsed = as_report(fields.pop("routes", routes))
    return Answer(**{"name": name, "ready": True, "reachable": True, "routes": parsed, **fields})


def pods(*names: str, scaled: bool = True) -> Followed:
    return Followed("u1", tuple(PodTarget(name, "127.0.0.1", "r1") for name in names), 1, scaled)


@pytest.fixture
async def pod(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A pod whose page is `pod.page`, unless it is a response."""

    async def answer(_: web.Request) -> web.StreamResponse:
        pod.requests += 1
        pod.scrapes.put_nowait(None)
        return pod.page() if callable(pod.page) else web.Response(text=pod.page)

    application = web.Application()
    application.router.add_get("/metrics", answer)
    pod: Any = TestServer(application)
    pod.page, pod.requests, pod.scrapes = PAGE, 0, asyncio.Queue()
    async with pod:
        monkeypatch.setattr(room, "PORT", pod.port)
        yield pod


@pytest.fixture
async def session() -> Any:
    async with aiohttp.ClientSession() as session:
        yield session


async def sampled(session: aiohttp.ClientSession, *names: str) -> MetricsSampler:
    sampler = MetricsSampler(KnownGateways(gateway()), session, Clock())
    sampler.follow(CHAT, pods(*names))
    await sampler.sample([CHAT])
    return sampler


def number(sampler: MetricsSampler, metric: str) -> float:
    series = sampler.series(CHAT)
    assert series
    return series.number(f"slipway_{metric}", sampler.clock()).value


async def test_pods_and_gateways_are_sampled(session: Any, pod: Any) -> None:
    sampler = await sampled(session, "a", "b")
    assert (number(sampler, "queue_depth"), number(sampler, "in_flight"), pod.requests) == (6, 3, 2)


def redirect() -> web.Response:
    return web.Response(status=302, headers={"Location": "http://127.0.0.1:1/metrics"})


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (lambda: web.Response(status=503), "/metrics answers 503"),
        (redirect, "/metrics answers 302"),
        ("", "vllm:num_requests_waiting is missing"),
        ("x" * (room.LARGEST_BYTES + 1), "/metrics has more than"),
    ],
    ids=["unavailable", "redirect", "empty", "huge"],
)
async def test_malformed_page_makes_the_metric_unknown_with_the_reason(
    session: Any, pod: Any, page: Any, message: str
) -> None:
    pod.page = page
    sampler = await sampled(session, "a")
    with pytest.raises(Unknown, match=message):
        number(sampler, "queue_depth")


async def test_unreachable_pod_makes_the_metric_unknown_with_the_reason(session: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(room, "PORT", reserve_port())
    sampler = await sampled(session, "a")
    with pytest.raises(Unknown, match="/metrics cannot be read: ClientConnectorError"):
        number(sampler, "queue_depth")


async def test_new_pod_is_scraped_at_once(session: Any, pod: Any) -> None:
    sampler = MetricsSampler(KnownGateways(gateway()), session)
    running = asyncio.create_task(sampler.run())
    try:
        await asyncio.sleep(0)  # it waits now
        sampler.follow(CHAT, pods("a"))
        await asyncio.wait_for(pod.scrapes.get(), 5)
        sampler.follow(CHAT, pods("a", "b"))
        for _ in range(2):
            await asyncio.wait_for(pod.scrapes.get(), 5)
    finally:
        running.cancel()


async def test_without_an_autoscaler_pods_are_scraped_only_on_request(session: Any) -> None:
    clock = Clock()
    sampler = MetricsSampler(KnownGateways(), session, clock)
    sampler.follow(CHAT, pods("a", scaled=False))
    assert (sampler._is_wanted(CHAT), sampler._new) == (False, set())
    sampler.series(CHAT)
    assert (sampler._is_wanted(CHAT), sampler._new) == (True, {CHAT})
    clock.seconds += IN_USE_S + 1
    assert not sampler._is_wanted(CHAT)


async def test_pods_without_an_autoscaler_are_scraped_as_far_as_the_bound_allows(session: Any) -> None:
    sampler = MetricsSampler(KnownGateways(), session, Clock(), beside=3)
    sampler.follow(("default", "scaled"), pods("a", "b"))
    for name, count in (("c", 2), ("b", 2), ("a", 1)):
        sampler.follow(("default", name), pods(*(f"{name}-{number}" for number in range(count)), scaled=False))
    assert sampler.wanted() == [("default", "scaled"), ("default", "a"), ("default", "b")]


@pytest.mark.finding("F8")
async def test_of_pods_beside_each_namespace_gets_some(session: Any) -> None:
    """The namespace whose name is first had all of them, and one large ModelDeployment ended the list."""
    sampler = MetricsSampler(KnownGateways(), session, Clock(), beside=4)
    sampler.follow(("a", "0-large"), pods(*map(str, range(9)), scaled=False))
    for key in (("a", "1"), ("a", "2"), ("a", "3"), ("b", "1"), ("c", "1")):
        sampler.follow(key, pods("p", scaled=False))
    assert sampler.wanted() == [("b", "1"), ("c", "1"), ("a", "1"), ("a", "2")]


@pytest.mark.finding("F8")
async def test_pods_that_hang_in_one_namespace_delay_no_readings_of_another(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sample waited for all pods: a thousand that hung took half a minute, after which numbers are unknown."""
    release = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        if request.host.startswith("127.0.0.2"):
            await release.wait()
        return web.Response(text=PAGE)

    application = web.Application()
    application.router.add_get("/metrics", answer)
    server = TestServer(application, host="0.0.0.0")  # both addresses
    monkeypatch.setattr(room, "PERIOD_S", 1.0)
    async with server:
        monkeypatch.setattr(room, "PORT", server.port)
        sampler = MetricsSampler(KnownGateways(gateway()), session)
        hung = tuple(PodTarget(f"p{number}", "127.0.0.2", "r1") for number in range(300))
        sampler.follow(("hog", "chat"), Followed("u1", hung, 300, scaled=True))
        sampler.follow(CHAT, pods("a"))
        for _ in range(2):
            await asyncio.wait_for(sampler.sample([("hog", "chat"), CHAT]), 10 * room.PERIOD_S)
            assert sampler.pages(CHAT)[0].problem == ""
        release.set()


async def test_pods_that_a_sample_did_not_reach_are_first_in_the_next(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "PERIOD_S", 0.2)
    clock = Clock()
    sampler = MetricsSampler(KnownGateways(), session, clock)
    sampler._turns = Turns(2)  # one for a namespace that is alone
    polled: list[str] = []

    async def hang(pod: PodTarget) -> str:
        polled.append(pod.name)
        await asyncio.Event().wait()
        return ""

    monkeypatch.setattr(sampler, "_read", hang)
    sampler.follow(CHAT, pods("a", "b", "c"))
    for _ in range(4):
        clock.seconds += 10
        await sampler.sample([CHAT])
    assert polled == ["a", "b", "c", "a"]


async def test_a_page_that_begins_or_ceases_to_be_readable_causes_one_reconcile(session: Any, pod: Any) -> None:
    changes: list[Any] = []
    clock = Clock()
    sampler = MetricsSampler(KnownGateways(gateway()), session, clock, changed=changes.append)
    sampler.follow(CHAT, pods("a"))
    for page, after in ((PAGE, 1), (PAGE, 1), ("", 2), ("", 2), (lambda: web.Response(status=503), 2)):
        pod.page = page
        clock.seconds += 10
        await sampler.sample([CHAT])
        assert len(changes) == after
    clock.seconds += 31
    await sampler.sample([CHAT])
    assert len(changes) == 3, "it has not been read for 30 s"
    assert [page.problem for page in sampler.pages(CHAT)] == ["/metrics answers 503"]
    sampler.follow(CHAT, pods("a", scaled=False))
    pod.page = PAGE
    await sampler.sample([CHAT])
    assert len(changes) == 3, "nothing needs it any more"


async def test_recreated_deployment_starts_empty_and_deleted_ones_are_forgotten(session: Any, pod: Any) -> None:
    sampler = await sampled(session, "a")
    sampler.follow(CHAT, Followed("u2", pods("a").pods, 1, True))
    with pytest.raises(Unknown):
        number(sampler, "queue_depth")
    sampler.forget(CHAT)
    assert (sampler.series(CHAT), sampler.known(), sampler._new, sampler._read_at) == (None, [], set(), {})


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([gateway(3), gateway(4, name="gw-2")], 7),
        ([gateway(3), gateway(4, name="leaving", ready=False)], 7),
        ([gateway(3), gateway(4, name="dead", ready=False, gone=True)], 3),
        ([gateway(0)], 0),
        ([gateway(3), gateway(uid="former", name="gw-2")], 3),
        ([gateway(3), gateway("odd", name="gw-2")], 3),
        ([], "no gateway is ready"),
        ([gateway(4, ready=False)], "no gateway is ready"),
        ([gateway(3), gateway(name="gw-2", reachable=False)], "gateway gw-2 does not answer"),
        ([gateway(uid="former")], "no gateway has a route to it yet"),
    ],
)
def test_in_flight_over_all_gateways(answers: list[Answer], expected: int | str) -> None:
    assert inflight(answers, CHAT, "u1") == expected


async def test_requests_held_at_gateways_count_in_the_queue_depth(session: Any) -> None:
    """Only those of this ModelDeployment count, at gateways that still exist and report the number."""
    waiting = {"uid": "u1", "generation": 1, "revisions": {}, "activity": {"held": 2}}
    answers = (
        gateway(0, routes={"default/chat": waiting}),
        gateway(0, name="gw-2", routes={"default/chat": waiting | {"uid": "u0"}}),
        gateway(0, name="gw-3", routes={"default/chat": waiting}, gone=True, ready=False),
        gateway(0, name="gw-4"),
        gateway(0, name="gw-5", routes={"default/chat": waiting | {"activity": "none"}}),
    )
    made = MetricsSampler(KnownGateways(*answers), session, Clock())
    made.follow(CHAT, Followed("u1", (), 0, scaled=True, asleep=True))
    await made.sample([CHAT])
    assert number(made, "queue_depth") == 2


async def test_gateways_that_cannot_be_found_are_no_zero(session: Any, pod: Any) -> None:
    sampler = MetricsSampler(KnownGateways(failure=Unavailable("away")), session, Clock())
    sampler.follow(CHAT, pods("a"))
    await sampler.sample([CHAT])
    with pytest.raises(Unknown, match="the gateways cannot be found: away"):
        number(sampler, "in_flight")


def test_ready_pods_of_live_revisions_are_followed() -> None:
    def workload(name: str) -> Workload:
        ready = Pod(f"{name}-1", START, True, 0, "10.0.0.1")
        return Workload(
            name, 3, 3, 1, pods=(ready, Pod(f"{name}-2", START, False, 0, "10.0.0.2"), Pod(f"{name}-3", START, True))
        )

    observed = Observed(workloads={name: workload(name) for name in ("stable", "canary", "old")})
    status = Status(stable_revision="stable", canary_revision="canary", replicas=2)
    seen = followed({"metadata": {"uid": "u1"}, "spec": {}}, status, observed)
    assert [pod.name for pod in seen.pods] == ["stable-1", "canary-1"]
    assert (seen.replicas, seen.scaled, seen.live) == (2, False, ("stable", "canary", "stable-baseline"))
    assert seen.copies == ()
    backends = (Backend("canary", 0), Backend("stable", 100))
    traffic = Traffic(1, "chat", "", backends, twin_shadow=TwinShadow("canary", "stable", 25, 10))
    shadowed = followed({"metadata": {"uid": "u1"}, "spec": {}}, replace(status, traffic=traffic), observed)
    assert shadowed.copies == ("canary", "stable-baseline"), "copies are no demand"
    first = Status(revisions=(RevisionStatus("canary", "canary", 1, 1, 100),))
    assert [pod.name for pod in followed({"metadata": {"uid": "u1"}, "spec": {}}, first, observed).pods] == ["canary-1"]
    theirs = Observed(autoscalers=(Autoscaler("hpa", False, True, START),))
    assert followed({"metadata": {"uid": "u1"}, "spec": {}}, status, theirs).scaled
    assert followed({"metadata": {"uid": "u1"}, "spec": {"autoscaling": {}}}, status, observed).scaled
