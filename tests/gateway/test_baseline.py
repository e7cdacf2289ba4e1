"""Baseline pods of stable: a revision of their own in counts, and further endpoints of stable for retries."""

import contextlib
from dataclasses import replace

import pytest
from aiohttp import web

from slipway_contracts.route_table import Backend, MirrorRoute
from slipway_gateway.balancing.endpoint_picker import LeastLoad
from slipway_gateway.balancing.failsafe import fall_back_to_stable
from slipway_gateway.routing.router import order_backends, pick
from slipway_gateway.routing.table import Route, RouteTable, equivalent_revisions
from testkit.until import until_async

from .harness import gateway, table, upstream
from .test_mirror import GREEDY, compared, next_user, results, saying
from .test_proxy import STREAM

BACKENDS = (Backend("c", 20), Backend("s", 60), Backend("s-baseline", 20))
MARKED = b": 1.00000001 7,1\ndata: {}\n\n"
ROUTE = Route("default/chat", "u", "chat", salt="salt", backends=BACKENDS, replicas=4)


def key_of(revision: str) -> str:
    """A key that the split gives this revision."""
    return next(key for n in range(1000) if order_backends(ROUTE, key := f"k{n}")[0].revision == revision)


def test_revision_and_its_baseline_are_equivalent() -> None:
    assert (equivalent_revisions("s"), equivalent_revisions("s-baseline")) == (("s", "s-baseline"), ("s-baseline", "s"))


@pytest.mark.parametrize(
    ("own", "then"),
    [("s-baseline", ["s", "c"]), ("s", ["s-baseline", "c"]), ("c", ["s", "s-baseline"])],
)
def test_equivalent_backends_come_before_another_version(own: str, then: list[str]) -> None:
    assert [one.revision for one in order_backends(ROUTE, key_of(own))] == [own, *then]


def test_a_request_is_counted_where_it_was_answered() -> None:
    """Another revision's pod is no attempt of the baseline's."""
    shown = table(1, ("c", 20, ["http://c"]), ("s", 60, ["http://s"]), ("s-baseline", 20, []))
    found = pick(shown, ROUTE, key_of("s-baseline"), LeastLoad())
    assert found and (found.revision, found.url) == ("s", "http://s")


@pytest.mark.parametrize(("ready", "after"), [(4, (0, 100, 0)), (3, (20, 80, 0)), (0, (20, 60, 20))])
def test_weights_that_expire_go_back_to_stable_and_not_to_its_baseline(ready: int, after: tuple[int, ...]) -> None:
    assert tuple(one.weight for one in fall_back_to_stable(ROUTE, ready).backends) == after


@pytest.mark.parametrize("begun", ["s", "s-baseline"])
async def test_stream_resumes_only_at_an_equivalent_revision(begun: str) -> None:
    """Its pod dies after an event; a client that lost it comes back."""

    async def answer(request: web.Request) -> web.StreamResponse:
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Slipway-Stream": STREAM})
        await out.prepare(request)
        await out.write(b"data: [DONE]\n\n" if "X-Slipway-Resume" in request.headers else MARKED)
        if "X-Slipway-Resume" not in request.headers and request.transport:
            request.transport.close()
        return out

    _, twin = equivalent_revisions(begun)
    async with contextlib.AsyncExitStack() as stack:
        # Of the equivalent revision two: a stream whose pod died goes to no last one.
        canary, pod, *others = [await stack.enter_async_context(upstream(answer)) for _ in range(4)]
        urls = [other.url for other in others]
        gate = await stack.enter_async_context(gateway())
        gate.route(("c", 0, [canary.url]), (begun, 100, [pod.url]), (twin, 0, urls))
        async with await gate.post() as reply:
            received = await reply.read()
        assert received.endswith(b"data: [DONE]\n\n") and sum(len(other.seen) for other in others) == 1
        name = received.split(b"\n")[0].removeprefix(b"id: ").decode()
        gate.route(("c", 100, [canary.url]), (twin, 0, urls))
        async with await gate.post(headers={"Last-Event-ID": name}) as reply:
            assert reply.status == 200 and (await reply.read()).endswith(b"data: [DONE]\n\n")
        assert (sum(len(other.seen) for other in others), len(canary.seen)) == (2, 0)


@pytest.mark.parametrize("answering", ["s", "s-baseline"])
async def test_floor_comes_from_another_pod_of_an_equivalent_revision(answering: str) -> None:
    """Stable has one pod: its baseline gives the second answer, and the other way round."""
    async with contextlib.AsyncExitStack() as stack:
        words = ("other", "stable", "stable")
        canary, pod, twin = [await stack.enter_async_context(upstream(saying(word))) for word in words]
        gate = await stack.enter_async_context(gateway(mirror_compare_percentage=100))
        gate.balancer.publish(both(canary.url, pod.url, twin.url))
        user = next_user(gate, pod.url if answering == "s" else twin.url)
        async with await gate.post(GREEDY | {"user": user}, "/v1/completions") as reply:
            assert reply.headers["X-Slipway-Revision"] == answering
        await until_async(lambda: results(gate))
        assert results(gate) == {"compared": 1} and compared(gate) == {"pairs": 1, "canary_only": 1}


def both(canary: str, pod: str, twin: str) -> RouteTable:
    """All that stable and its baseline answer is mirrored."""
    shown = table(1, ("c", 0, [canary]), ("s", 50, [pod]), ("s-baseline", 50, [twin]))
    (route,) = shown.routes.values()
    route = replace(route, mirror_routes=(MirrorRoute("m", "c", 100),))
    return RouteTable({route.name: route}, {route.model: route}, shown.endpoints)
