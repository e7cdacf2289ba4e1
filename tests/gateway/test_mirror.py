"""Shadow traffic through a real gateway: what clients see of it, what it costs, and what becomes of each copy."""

import asyncio
import contextlib
import inspect
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from slipway_contracts.route_table import HeaderMatch, MirrorRoute
from slipway_gateway.mirror.mirrored_request import MirroredRequest
from slipway_gateway.mirror.queue import MirrorQueue
from slipway_gateway.routing.table import RouteTable
from testkit.until import until_async
from tests.support.report import route_reports

from .harness import Gateway, Handler, Upstream, answering, gateway, table, upstream
from .test_proxy import JSON_HEAD, SSE_HEAD, chunk

GREEDY: dict[str, Any] = {"model": "chat", "temperature": 0}
PATH = "/v1/completions"
SECRET = b"canary's own words"
NAME = "slipway_gateway_mirror_total"


def mirroring(
    canary: list[str], stable: list[str], *, generation: int = 1, weight: int = 0, match: tuple[HeaderMatch, ...] = ()
) -> RouteTable:
    """All that stable answers is mirrored to canary."""
    shown = table(generation, ("c", weight, canary), ("s", 100 - weight, stable))
    (route,) = shown.routes.values()
    route = replace(route, mirror_routes=(MirrorRoute("m", "c", 100, match),))
    return RouteTable({route.name: route}, {route.model: route}, shown.endpoints)


def saying(text: str) -> Handler:
    """Whole or as a stream, by the field `stream`."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if not (await request.json()).get("stream"):
            return web.json_response({"choices": [{"index": 0, "text": text, "finish_reason": "stop"}]})
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)
        for letter in text:
            await out.write(b"data: %s\n\n" % json.dumps({"choices": [{"index": 0, "text": letter}]}).encode())
        await out.write(b"data: [DONE]\n\n")
        return out

    return answer


def silent(release: asyncio.Event | None = None) -> Handler:
    """Sends no response until it is released."""

    async def hang(request: web.Request) -> web.StreamResponse:
        await (release or asyncio.Event()).wait()
        return web.json_response({"choices": [{"text": "late"}]})

    return hang


async def endless(request: web.Request) -> web.StreamResponse:
    out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await out.prepare(request)
    while True:
        await out.write(b"data: " + SECRET * 100 + b"\n\n")
        await asyncio.sleep(0.001)


def results(gate: Gateway) -> dict[str, int]:
    """Mirrored requests by what they came to."""
    families = {family.name: family for family in gate.metrics.registry.collect()}
    samples = families[NAME.removesuffix("_total")].samples
    return {one.labels["result"]: int(one.value) for one in samples if one.name == NAME}


def compared(gate: Gateway, by: str = "text") -> dict[str, int]:
    """What was counted of comparisons, without what is nought."""
    found: dict[str, int] = {}
    for sample in route_reports(gate.balancer)["default/chat"]["samples"]:
        for name, count in sample["shadow"].get("c", {}).get(by, {}).items():
            found[name] = found.get(name, 0) + count
    return {name: count for name, count in found.items() if count}


async def ask(gate: Gateway, body: dict[str, Any] = GREEDY, path: str = PATH, **options: Any) -> bytes:
    async with await gate.post(body, path, **options) as answer:
        assert (answer.status, answer.headers["X-Slipway-Revision"]) == (200, "s")
        assert SECRET.decode() not in str(answer.headers)
        return await answer.read()


@contextlib.asynccontextmanager
async def shadowed(
    canary: Handler, *stable: Handler, **settings: Any
) -> AsyncIterator[tuple[Gateway, Upstream, list[Upstream]]]:
    """A gateway that mirrors all to a canary of one pod, with as many pods of stable as there are handlers."""
    async with contextlib.AsyncExitStack() as stack:
        tested = await stack.enter_async_context(upstream(canary))
        pods = [await stack.enter_async_context(upstream(handler)) for handler in stable or (saying("stable"),)]
        gate = await stack.enter_async_context(gateway(**({"mirror_compare_percentage": 100} | settings)))
        gate.balancer.publish(mirroring([tested.url], [pod.url for pod in pods]))
        yield gate, tested, pods


# -- what clients see


BROKEN = {
    "no-http": b"\x00\xff\x00 " + SECRET + b"\r\n\r\n",
    "breaks-off": SSE_HEAD + chunk(b"data: " + SECRET + b"\n\n"),
    "breaks-off-whole": JSON_HEAD + b"{" + SECRET,
    "drops": b"",
}
BAD: dict[str, Handler] = {
    "hangs": silent(),
    "fails": answering(500, Leak=SECRET.decode()),
    "other-words": saying(SECRET.decode()),
    "endless": endless,
}


@contextlib.asynccontextmanager
async def bad_canary(kind: str) -> AsyncIterator[str]:
    if kind in BAD:
        async with upstream(BAD[kind]) as server:
            yield server.url
        return

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(BROKEN[kind])
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", [*BROKEN, *BAD])
async def test_shadow_never_leaks(kind: str, stream: bool) -> None:
    body = GREEDY | {"stream": stream}
    async with upstream(saying("stable")) as pod, upstream(saying("stable")) as second, bad_canary(kind) as url:
        async with gateway() as plain:
            plain.route(("s", 100, [pod.url]))
            expected = await ask(plain, body)
        outcome = {"hangs": "timeout", "endless": "timeout", "other-words": "compared"}.get(kind, "failed")
        timeout_s = 0.3 if outcome == "timeout" else 30.0
        async with gateway(mirror_compare_percentage=100, mirror_timeout_s=timeout_s) as gate:
            gate.balancer.publish(mirroring([url], [pod.url, second.url]))
            for _ in range(3):
                assert await ask(gate, body) == expected
            await until_async(lambda: sum(results(gate).values()) == 3)
            assert results(gate) == {outcome: 3}
            assert gate.outcomes() == {"ok": 3}
            assert compared(gate) == ({"pairs": 3, "canary_only": 3} if outcome == "compared" else {})


async def test_client_has_its_response_before_the_mirrored_request_is_sent() -> None:
    async with shadowed(silent()) as (gate, canary, _):
        for n in range(5):
            await ask(gate)
            await until_async(lambda count=n + 1: len(canary.seen) == count)
        assert results(gate) == {} and gate.edge.running == 0
    # All that a client's request meets of it: none of these can wait.
    assert not any(
        map(
            inspect.iscoroutinefunction,
            (MirrorQueue.copy_of, MirroredRequest.add_part, MirrorQueue.offer, MirrorQueue.passed),
        )
    )


async def test_mirrored_request_is_marked_and_clients_cannot_set_the_mark() -> None:
    async with shadowed(saying("canary")) as (gate, canary, (pod,)):
        await ask(gate, GREEDY | {"user": "u"}, headers={"X-Slipway-Shadow": "1", "X-Request-Id": "r1"})
        await until_async(lambda: results(gate))
        (seen,), (own,) = canary.seen, pod.seen
        assert "X-Slipway-Shadow" not in own.headers
        assert (seen.headers["X-Slipway-Shadow"], seen.headers["X-Request-Id"]) == ("1", "r1")
        assert seen.headers["X-Slipway-Tenant"] != own.headers["X-Slipway-Tenant"]
        assert canary.bodies == pod.bodies


# -- what it changes


def visible(gate: Gateway) -> tuple[Any, dict[str, float]]:
    """All that is counted of clients' requests: the judge's counters and the metrics, but for times."""
    (shown,) = route_reports(gate.balancer).values()
    epochs = [
        {name: (side["requests"], side["events"]) for name, side in sample["revisions"].items()}
        for sample in shown["samples"]
    ]
    kept = ("_total", "_count", "inflight", "held_requests")
    lanes = ("fast_requests", "handovers")  # a route with a mirror is none for the fast lane
    metrics = {
        f"{one.name}{sorted(one.labels.items())}": one.value
        for family in gate.metrics.registry.collect()
        for one in family.samples
        if one.name.startswith("slipway_gateway") and one.name.endswith(kept)
        if not any(name in one.name for name in ("mirror", *lanes))
    }
    return (shown["revisions"], epochs), metrics


@pytest.mark.parametrize("canary", [saying("canary"), answering(500)])
async def test_no_counter_of_clients_knows_of_shadows(canary: Handler) -> None:
    seen = []
    for mirrored in (True, False):
        async with shadowed(canary, saying("stable"), saying("stable")) as (gate, tested, pods):
            if not mirrored:
                gate.route(("c", 0, [tested.url]), ("s", 100, [pod.url for pod in pods]))
            for n in range(6):
                await ask(gate, GREEDY | {"stream": n % 2 == 0, "user": str(n)})
                await until_async(lambda count=n + 1, on=mirrored: sum(results(gate).values()) == count * on)
            # A client may have its last byte before its request is counted.
            await until_async(lambda: gate.edge.running == 0)
            seen.append(visible(gate))
            assert len(tested.seen) >= 6 * mirrored
    assert seen[0] == seen[1]


async def test_requests_of_canary_and_failed_ones_are_not_mirrored() -> None:
    async with shadowed(saying("canary"), answering(400)) as (gate, canary, (pod,)):
        async with await gate.post(GREEDY, PATH) as answer:
            assert answer.status == 400
        gate.balancer.publish(mirroring([canary.url], [pod.url], generation=2, weight=100))
        async with await gate.post(GREEDY, PATH) as answer:
            assert answer.headers["X-Slipway-Revision"] == "c"
        assert len(canary.seen) == 1 and results(gate) == {}


async def test_only_requests_with_matching_headers_are_mirrored() -> None:
    async with shadowed(saying("canary")) as (gate, canary, (pod,)):
        testers = (HeaderMatch("x-team", exact="qa"),)
        gate.balancer.publish(mirroring([canary.url], [pod.url], generation=2, match=testers))
        await ask(gate)
        await ask(gate, headers={"X-Team": "qa"})
        await until_async(lambda: results(gate))
        assert results(gate) == {"compared": 1} and canary.seen[0].headers["X-Team"] == "qa"


# -- the lane


async def test_requests_beyond_the_queue_are_dropped_and_counted() -> None:
    release = asyncio.Event()
    async with shadowed(silent(release), mirror_max_inflight=1, mirror_max_queue=2) as (gate, canary, _):
        for _ in range(6):
            await ask(gate)
        await until_async(lambda: canary.seen)
        assert len(canary.seen) == 1 and results(gate) == {"queue_full": 3}
        release.set()
        await until_async(lambda: sum(results(gate).values()) == 6)
        assert results(gate) == {"queue_full": 3, "compared": 3}
        # Room was made again.
        await ask(gate)
        await until_async(lambda: sum(results(gate).values()) == 7)
        assert results(gate)["queue_full"] == 3


@pytest.mark.parametrize(
    ("settings", "sent"),
    [({"mirror_max_body_bytes": 100}, 200), ({"mirror_max_bytes": 100}, 200), ({"mirror_max_bytes": 100}, 60)],
)
async def test_large_bodies_are_dropped(settings: dict[str, int], sent: int) -> None:
    async with shadowed(saying("canary"), **settings) as (gate, canary, _):
        await ask(gate, GREEDY | {"prompt": "x" * sent})
        assert results(gate) == {"too_large": 1} and not canary.seen


async def test_nothing_is_mirrored_while_clients_wait() -> None:
    async with shadowed(saying("canary"), hold_timeout_s=5.0) as (gate, canary, (pod,)):
        shown = mirroring([canary.url], [pod.url])
        (route,) = shown.routes.values()
        other = replace(route, name="default/other", model="other", mirror_routes=())
        gate.balancer.publish(
            RouteTable({r.name: r for r in (route, other)}, {r.model: r for r in (route, other)}, shown.endpoints)
        )
        held = asyncio.create_task(gate.post({"model": "other"}))
        await until_async(gate.held)
        await ask(gate)
        assert results(gate) == {"busy": 1} and not canary.seen
        held.cancel()
        await until_async(lambda: not gate.held())
        await ask(gate)
        await until_async(lambda: results(gate).get("compared"))


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_canary_is_left_alone_for_a_while(status: int) -> None:
    async with shadowed(answering(status)) as (gate, canary, _):
        await ask(gate)
        await until_async(lambda: results(gate))
        await ask(gate)
        await until_async(lambda: sum(results(gate).values()) == 2)
        assert results(gate) == {"refused": 1, "busy": 1} and len(canary.seen) == 1


async def test_a_canary_without_pods_gets_nothing() -> None:
    async with shadowed(saying("canary")) as (gate, canary, (pod,)):
        gate.balancer.publish(mirroring([], [pod.url], generation=2))
        await ask(gate)
        await until_async(lambda: results(gate))
        assert results(gate) == {"no_endpoint": 1} and not canary.seen


async def test_waiting_copies_are_withdrawn_with_their_mirror_route() -> None:
    release = asyncio.Event()
    async with shadowed(silent(release), mirror_max_inflight=1) as (gate, canary, (pod,)):
        await ask(gate)
        await ask(gate)
        await until_async(lambda: canary.seen)
        gate.route(("c", 0, [canary.url]), ("s", 100, [pod.url]))
        release.set()
        await until_async(lambda: sum(results(gate).values()) == 2)
        assert results(gate) == {"compared": 1, "withdrawn": 1} and len(canary.seen) == 1


@pytest.mark.finding("F1")
async def test_a_long_request_whose_copy_ended_an_engine_is_not_mirrored_again() -> None:
    """Its client is served as before: stable answers it."""

    async def ends(request: web.Request) -> web.StreamResponse:
        assert request.transport
        request.transport.abort()
        return web.Response()

    long = GREEDY | {"prompt": "a" * 100_000}
    async with shadowed(ends) as (gate, canary, _):
        for n in range(3):
            await ask(gate, long)
            await until_async(lambda n=n: sum(results(gate).values()) == n + 1)
        assert results(gate) == {"failed": 1, "suspect": 2} and len(canary.seen) == 1


async def test_shutdown_cancels_all_copies() -> None:
    async with shadowed(silent(), mirror_max_inflight=1) as (gate, canary, _):
        await ask(gate)
        await ask(gate)
        await until_async(lambda: canary.seen)
        await gate.edge.stop_mirroring()
        assert results(gate) == {"cancelled": 2}
        await until_async(lambda: canary.cancelled)
        await ask(gate)
        assert results(gate) == {"cancelled": 2}, "nothing is mirrored any more"


async def test_copy_cancelled_before_its_start_is_counted() -> None:
    async with shadowed(silent()) as (gate, _, _):
        await ask(gate)
        await gate.edge.stop_mirroring()
        assert results(gate) == {"cancelled": 1}


async def test_nothing_is_mirrored_where_it_is_off() -> None:
    async with shadowed(saying("canary"), mirror_max_inflight=0) as (gate, canary, _):
        await ask(gate)
        assert results(gate) == {} and not canary.seen


# -- comparisons


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("canary", "second", "found"),
    [
        ("stable", "stable", {"pairs": 1}),
        ("other", "stable", {"pairs": 1, "canary_only": 1}),
        ("stable", "other", {"pairs": 1, "second_only": 1}),
        ("other", "another", {"pairs": 1, "both": 1}),
        ("other", None, {"no_floor": 1, "no_floor_differs": 1}),
        ("stable", None, {"no_floor": 1}),
        ("", "stable", {"pairs": 1, "canary_only": 1}),
    ],
)
async def test_an_answer_is_compared_with_stable_above_its_floor(
    canary: str, second: str | None, found: dict[str, int], stream: bool
) -> None:
    others = [] if second is None else [saying(second)]
    async with shadowed(saying(canary), saying("stable"), *others) as (gate, _, (pod, *_)):
        await ask(gate, GREEDY | {"stream": stream, "user": next_user(gate, pod.url)})
        await until_async(lambda: results(gate))
        assert results(gate) == {"compared": 1} and compared(gate) == found


def next_user(gate: Gateway, url: str) -> str:
    """A user whose requests go to this pod."""
    users = (str(n) for n in range(1000))
    return next(user for user in users if (to := gate.balancer.pick("chat", f"user:{user}", ())) and to.url == url)


async def test_failed_response_gives_no_comparison() -> None:
    async with shadowed(saying("canary"), saying("stable")) as (gate, canary, (pod,)), upstream(answering(500)) as bad:
        gate.balancer.publish(mirroring([canary.url], [pod.url, bad.url], generation=2))
        await ask(gate, GREEDY | {"user": next_user(gate, pod.url)})
        await until_async(lambda: results(gate))
        assert results(gate) == {"answered": 1} and compared(gate) == {}


async def test_random_sampling_sends_one_seed_to_all_three() -> None:
    async def drawn(request: web.Request) -> web.StreamResponse:
        seed = (await request.json()).get("seed", "by chance")
        return web.json_response({"choices": [{"text": f"drawn from {seed}"}]})

    async with shadowed(drawn, drawn, drawn) as (gate, canary, pods):
        await ask(gate, {"model": "chat", "temperature": 0.8})
        await until_async(lambda: results(gate))
        assert results(gate) == {"compared": 1} and compared(gate) == {"pairs": 1}
        shadows = [body for server in (canary, *pods) for body in server.bodies if b"seed" in body]
        assert len(shadows) == 3 and len(set(shadows)) == 1


async def test_responses_without_text_are_mirrored_and_not_compared() -> None:
    async with shadowed(saying("canary")) as (gate, canary, _):
        await ask(gate, {"model": "chat", "input": "x"}, path="/v1/embeddings")
        await until_async(lambda: results(gate))
        assert results(gate) == {"answered": 1} and compared(gate) == {} and len(canary.seen) == 1


async def test_a_share_is_compared_and_the_rest_is_load_alone() -> None:
    async with shadowed(saying("canary"), mirror_compare_percentage=0) as (gate, canary, _):
        await ask(gate)
        await until_async(lambda: results(gate))
        assert results(gate) == {"answered": 1} and len(canary.seen) == 1


def build_scoring_request(rank: int) -> Handler:
    """Answers; with `prompt_logprobs`, gives this rank to each token of the prompt."""
    answer = saying("one two")

    async def serve(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if "prompt_logprobs" not in body:
            return await answer(request)
        assert body["prompt"] == "Count: one two" and not body.get("stream")
        logprobs = [
            {"7": {"logprob": -1.0, "rank": rank, "decoded_token": text}} for text in ("Count: ", "one", " two")
        ]
        return web.json_response({"choices": [{"text": "!", "prompt_logprobs": [None, *logprobs]}]})

    return serve


@pytest.mark.parametrize(
    ("canary", "stable", "found"),
    [
        (1, 1, {"pairs": 1}),
        (2, 1, {"pairs": 1, "canary_only": 1}),
        (1, 3, {"pairs": 1, "second_only": 1}),
        (2, 2, {"pairs": 1, "both": 1}),
    ],
)
async def test_stables_answer_is_scored_by_both(canary: int, stable: int, found: dict[str, int]) -> None:
    async with shadowed(
        build_scoring_request(canary), build_scoring_request(stable), build_scoring_request(stable)
    ) as (gate, tested, _):
        await ask(gate, GREEDY | {"prompt": "Count: ", "stream": True})
        await until_async(lambda: results(gate))
        assert compared(gate, "tokens") == found and compared(gate) == {"pairs": 1}
        assert [request.headers["X-Slipway-Shadow"] for request in tested.seen] == ["1", "1"]
