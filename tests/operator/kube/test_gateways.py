"""Requests to gateways over real sockets; their addresses come from EndpointSlices."""

import asyncio

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from slipway_contracts.gateway_report import ImplausibleUsage
from slipway_operator.kube.reading.gateways import CACHE_S, GRACE_S, Answer, Gateways, endpoints
from slipway_operator.model.cluster.observed import Gateway
from tests.support.report import as_report

ROUTES = {
    "incarnation": "b1",
    "draining": False,
    "routes": {
        "default/chat": {
            "uid": "u1",
            "generation": 41,
            "revisions": {"rev1": {"endpoints": 1, "inflight": 3, "requests": 9, "failures": 0}},
        }
    },
}


def slice_of(*entries, port=8001, kind="IPv4", port_name="admin"):
    return {"addressType": kind, "ports": [{"name": port_name, "port": port}], "endpoints": list(entries)}


def entry(address="127.0.0.1", name=None, **conditions):
    found = {"addresses": [address], "conditions": conditions}
    return found | ({"targetRef": {"name": name}} if name else {})


def test_a_gateway_with_a_port_for_it_is_read_by_tls_and_one_without_by_http():
    ports = [{"name": "admin", "port": 8001}, {"name": "internal", "port": 8002}]
    new = {"addressType": "IPv4", "ports": ports, "endpoints": [entry("10.0.0.1", "new")]}
    old = slice_of(entry("10.0.0.2", "old"))
    urls = [endpoint.url for endpoint in endpoints([new, old], tls=True)]
    assert urls == ["https://10-0-0-1.gateway.slipway.internal:8002", "http://10.0.0.2:8001"]
    assert [endpoint.url for endpoint in endpoints([new])] == ["http://10.0.0.1:8001"]
    six = {"addressType": "IPv6", "ports": ports, "endpoints": [entry("fd00::7", "six")]}
    (found,) = endpoints([six], tls=True)
    assert found.url == "https://fd00-0000-0000-0000-0000-0000-0000-0007.gateway.slipway.internal:8002"


class Slices:
    """Stands for the client: the gateways need one list of it."""

    def __init__(self, *slices):
        self.slices, self.lists = list(slices), 0

    async def list(self, resource, namespace, selector="", cached=False):
        assert (namespace, selector) == ("slipway", "kubernetes.io/service-name=admin-service")
        self.lists += 1
        return self.slices


@pytest.fixture
async def session():
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def gateway():
    async def answer(request):
        gateway.seen.append((request.method, request.headers.get("Authorization")))
        if request.method == "POST" and gateway.post_status != 200:
            return web.Response(status=gateway.post_status)
        gateway.requests += 1
        return gateway.reply()

    application = web.Application()
    application.router.add_route("*", "/internal/routes", answer)
    gateway = TestServer(application)
    gateway.requests, gateway.reply = 0, lambda: web.json_response(ROUTES)
    gateway.seen, gateway.post_status = [], 200
    async with gateway:
        yield gateway


def gateways(session, *slices, clock=lambda: 0.0):
    return Gateways(Slices(*slices), session, "slipway", "admin-service", clock)


async def ask(session, *slices):
    return [answer.about("default", "chat", "u1") for answer in await gateways(session, *slices).answers()]


@pytest.mark.parametrize(
    ("pods", "expected"),
    [({"10.0.0.7": 2, "::1": 1 << 40}, {"10.0.0.7": 2, "::1": 1 << 20}), ({"10.0.0.7": -3}, {"10.0.0.7": 0}), ({}, {})],
)
async def test_requests_of_each_pod_are_read_within_bounds(pods, expected):
    revisions = {"rev1": {"inflight": 3, "pods": pods}, "old": {"inflight": 1}}
    routes = as_report({"default/chat": {"uid": "u1", "generation": 41, "revisions": revisions}})
    assert Answer("gw", True, True, routes).about("default", "chat", "u1").at_pods == {"rev1": expected}


@pytest.mark.parametrize("pods", [["10.0.0.7"], {"10.0.0.7": "many"}, {"10.0.0.7": {}}, 3])
async def test_malformed_requests_of_pods_are_no_response(pods):
    revisions = {"rev1": {"inflight": 3, "pods": pods}}
    routes = as_report({"default/chat": {"uid": "u1", "generation": 41, "revisions": revisions}})
    assert not Answer("gw", True, True, routes).about("default", "chat", "u1").reachable


async def test_generation_and_inflight_come_from_the_gateway(session, gateway):
    assert await ask(session, slice_of(entry(name="gw-1", ready=True), port=gateway.port)) == [
        Gateway(
            "gw-1",
            ready=True,
            reachable=True,
            generation=41,
            inflight={"rev1": 3},
            incarnation="b1",
            weights={"rev1": 0},
        )
    ]


@pytest.mark.finding(19)
@pytest.mark.attack_class(2)
async def test_operator_reads_by_post_with_its_token(session, gateway):
    """Safety 19: only the operator renews a gateway's failsafe."""
    slices = Slices(slice_of(entry(name="gw-1", ready=True), port=gateway.port))
    asking = Gateways(slices, session, "slipway", "admin-service", lambda: 0.0, token=lambda: "secret")
    assert (await asking.answers())[0].reachable
    assert gateway.seen == [("POST", "Bearer secret")]


@pytest.mark.parametrize("status", [401, 403, 405])
async def test_gateway_that_refuses_the_post_is_read_by_get(session, gateway, status, caplog):
    gateway.post_status = status
    (found,) = await ask(session, slice_of(entry(name="gw-1", ready=True), port=gateway.port))
    assert found.reachable and found.generation == 41
    assert gateway.seen == [("POST", None), ("GET", None)]
    assert ("does not take the operator's token" in caplog.text) == (status != 405)


async def test_measurements_of_a_gateway_are_read_within_bounds():
    """A generation without room for the next, and a digest of any length: neither gets into the status."""
    route = dict(ROUTES["routes"]["default/chat"], generation=1 << 70, digest="f" * 1000)
    route["service"] = {"answered": 1, "refused": 2, "last": "x" * 1000, "unserved_s": 3.5}
    found = Answer("gw", True, True, as_report({"default/chat": route})).about("default", "chat", "u1")
    assert found.generation < 1 << 62 and found.digest == "f" * 64
    assert (found.service.answered, found.service.refused, found.service.unserved_s) == (1, 2, 3.5)
    assert len(found.service.last) == 64
    odd = Answer("gw", True, True, as_report({"default/chat": route | {"service": {"unserved_s": "long"}}}))
    assert not odd.about("default", "chat", "u1").reachable


@pytest.mark.finding("F3")
async def test_counts_of_a_gateway_fit_a_status():
    """A number above 2^63 in the status made the API server refuse all of it."""
    route = dict(ROUTES["routes"]["default/chat"], activity={"held": 10**400, "known_s": 1e300})
    route["revisions"] = {"rev1": {"inflight": 10**400, "weight": -5}}
    route["implausible_usage"] = {"reported": 10**400, "possible": 7}
    answer = Answer("gw", True, True, as_report({"default/chat": route}))
    found = answer.about("default", "chat", "u1")
    assert (found.inflight, found.weights, found.held) == ({"rev1": 1 << 53}, {"rev1": 0}, 1 << 53)
    assert found.implausible_usage == ImplausibleUsage(1 << 53, 7)
    assert found.known_s == 1e9
    assert answer.inflight("default", "chat", "u1") == answer.held("default", "chat", "u1") == 1 << 53
    for odd in ({"implausible_usage": 7}, {"implausible_usage": {"reported": "x"}}, {"activity": {"known_s": 10**400}}):
        assert (
            not Answer("gw", True, True, as_report({"default/chat": route | odd}))
            .about("default", "chat", "u1")
            .reachable
        )


async def test_a_leaving_gateway_still_counts(session, gateway):
    leaving = entry(name="gw-1", ready=False, serving=True, terminating=True)
    (found,) = await ask(session, slice_of(leaving, port=gateway.port))
    assert (found.ready, found.reachable, found.inflight) == (False, True, {"rev1": 3})


async def test_a_route_of_a_former_namesake_is_none():
    answer = Answer("gw", True, True, as_report(ROUTES["routes"]))
    assert answer.about("default", "chat", "u2") == Gateway("gw", True, True)
    assert answer.about("default", "other", "u1") == Gateway("gw", True, True)


@pytest.mark.parametrize(
    "reply",
    [
        lambda: web.Response(status=500),
        lambda: web.Response(text="hello"),
        lambda: web.json_response([1]),
        lambda: web.json_response({}),
    ],
    ids=["error", "text", "list", "no routes"],
)
async def test_nonsense_counts_as_no_answer(session, gateway, reply):
    gateway.reply = reply
    (found,) = await ask(session, slice_of(entry(name="gw-1", ready=True), port=gateway.port))
    assert not found.reachable


async def test_a_ready_gateway_that_is_not_there_is_unreachable(session):
    (found,) = await ask(session, slice_of(entry(name="gw-1", ready=True), port=unused_port()))
    assert (found.ready, found.reachable) == (True, False)


async def test_gateway_that_never_started_delays_nothing(session):
    """A crash-looping gateway has an address and no listener: no request is in it."""
    assert await ask(session, slice_of(entry(name="gw-1", ready=False), port=unused_port())) == []


async def test_requests_of_a_killed_gateway_count_until_the_grace_period_ends(session, gateway):
    now = [0.0]
    known = gateways(session, slice_of(entry(name="gw-1", ready=True), port=gateway.port), clock=lambda: now[0])

    async def inflight():
        now[0] += 1.0
        return [answer.about("default", "chat", "u1").inflight.get("rev1") for answer in await known.answers()]

    assert await inflight() == [3]
    # The same pod with a new process: its requests in progress add to those that clients send again.
    gateway.reply = lambda: web.json_response(ROUTES | {"incarnation": "b2", "routes": {}})
    assert await inflight() == [None, 3]
    now[0] += GRACE_S
    assert await inflight() == [None]


async def test_gateway_that_drained_leaves_no_requests_behind(session, gateway):
    now = [0.0]
    idle = {"default/chat": {"uid": "u1", "generation": 41, "revisions": {"rev1": {"inflight": 0}}}}
    gateway.reply = lambda: web.json_response(ROUTES | {"routes": idle})
    known = gateways(session, slice_of(entry(name="gw-1", ready=True), port=gateway.port), clock=lambda: now[0])
    await known.answers()
    known._client.slices.clear()
    now[0] += 1.0
    (left,) = await known.answers()
    assert left.about("default", "chat", "u1").inflight == {"rev1": 0} and not left.ready


async def test_concurrent_reconciles_share_one_request_until_the_cache_expires(session, gateway):
    now = [0.0]
    known = gateways(session, slice_of(entry(ready=True), port=gateway.port), clock=lambda: now[0])
    await asyncio.gather(*(known.answers() for _ in range(100)))
    assert gateway.requests == 1
    now[0] += CACHE_S
    await known.answers()
    assert gateway.requests == 2


def test_endpoints_read_every_kind_of_slice():
    found = endpoints(
        [
            slice_of(entry("10.0.0.1", "gw-b"), entry("10.0.0.2", "gw-a", ready=False)),
            slice_of(entry("10.0.0.2", "gw-a", ready=True)),
            slice_of(entry("fd00::1", "gw-c", ready=None), kind="IPv6"),
            slice_of(entry("10.0.0.9", "other"), port_name="http"),
            {"addressType": "IPv4", "ports": None, "endpoints": None},
        ]
    )
    assert [(endpoint.name, endpoint.url, endpoint.ready) for endpoint in found] == [
        ("gw-a", "http://10.0.0.2:8001", True),
        ("gw-b", "http://10.0.0.1:8001", True),
        ("gw-c", "http://[fd00::1]:8001", True),
    ]
