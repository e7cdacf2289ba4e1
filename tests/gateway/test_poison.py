"""A request that was in flight at two engine crashes goes to no third pod (safety 1, the gateway's half)."""

import asyncio

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway_gateway.forwarding import crashes
from slipway_gateway.forwarding.poison import DEATH as WEIGHT
from slipway_gateway.forwarding.poison import MAX_SUSPECTS, REMEMBERED_S, Suspect, Suspects
from testkit.until import until_async

from .harness import Gateway, Handler, echo, fixed_response_upstream, gateway, raw_upstream, refused_url, upstream
from .test_proxy import MARKED_HEAD, chunk, marked

POISON = b'{"model":"chat","temperature":1e-45,"secret":"word"}'
CRASHED = b'{"error":{"message":"The engine stopped.","type":"server_error","code":"engine_crashed"}}'

pytestmark = [pytest.mark.attack_class(18), pytest.mark.finding(1)]


def crashing(body: bytes = POISON) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        if await request.read() == body:
            return web.Response(status=503, body=CRASHED, content_type="application/json")
        return web.json_response({"choices": []})

    return answer


async def code(gate: Gateway, body: bytes, **headers: str) -> tuple[int, str]:
    async with await gate.post(body, headers=headers) as answer:
        answer_body = await answer.json()
        return answer.status, (answer_body.get("error") or {}).get("code", "")


def total(gate: Gateway, name: str) -> float:
    found = [s.value for family in gate.metrics.registry.collect() for s in family.samples if s.name == name]
    return sum(found)


async def test_poison_request_reaches_no_third_pod_and_its_log_has_no_content(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with upstream(crashing()) as a, upstream(crashing()) as b, upstream(crashing()) as c, gateway() as gate:
        gate.route(("rev", 100, [a.url, b.url, c.url]))
        assert await code(gate, POISON, **{"X-Request-Id": "req-1"}) == (422, "request_crashed_engine")
        assert sorted(len(server.bodies) for server in (a, b, c)) == [0, 1, 1]
        (record,) = [r for r in caplog.records if r.name == "slipway_gateway.forwarding.crashes"]
        named = vars(record)
        assert (named["request_id"], named["model"], named["revision"]) == ("req-1", "chat", "rev")
        assert len(named["digest"]) == 32 and "secret" not in str(named)
        assert gate.outcomes() == {"poison": 1}
        assert total(gate, "slipway_gateway_poison_total") == 1
        assert total(gate, "slipway_gateway_engine_crashes_total") == 2


async def test_a_resent_poison_request_reaches_no_pod_and_others_do() -> None:
    """Safety 1: `can be sent again`. Only the same bytes of the same client are refused."""
    async with upstream(crashing()) as a, upstream(crashing()) as b, gateway() as gate:
        gate.route(("rev", 100, [a.url, b.url]))
        for _ in range(3):
            assert (await code(gate, POISON))[0] == 422
        assert len(a.bodies) + len(b.bodies) == 2
        for server in (a, b):  # until it answers again, an endpoint that crashed counts as no spare
            gate.route(("rev", 100, [server.url]))
            assert (await code(gate, POISON.replace(b"word", b"wort"))) == (200, "")
        gate.route(("rev", 100, [a.url, b.url]))
        another = await code(gate, POISON, Authorization="Bearer another-client")
        assert another[0] == 422 and len(a.bodies) + len(b.bodies) == 6, "another client has a count of its own"


async def test_a_crash_and_a_resent_body_count_together() -> None:
    """One pod only: the client gets 503 once, and its second try crashes the second engine."""
    crashes = 0

    async def once_per_request(request: web.Request) -> web.StreamResponse:
        nonlocal crashes
        crashes += 1
        return web.Response(status=503, body=CRASHED, content_type="application/json")

    async with upstream(once_per_request) as server, gateway(max_attempts=1, hold_timeout_s=0.05) as gate:
        gate.route(("rev", 100, [server.url]))
        assert await code(gate, POISON) == (503, "engine_crashed")
        assert await code(gate, POISON) == (422, "request_crashed_engine")
        assert await code(gate, POISON) == (422, "request_crashed_engine")
        assert crashes == 2


async def test_request_is_refused_after_two_resets_before_the_first_byte() -> None:
    async with raw_upstream() as one, upstream(echo) as good, gateway() as gate:
        gate.route(("rev", 100, [one]), ("good", 0, [good.url]))
        assert await code(gate, b'{"model":"chat"}') == (200, "")
    async with raw_upstream() as one, raw_upstream() as two, raw_upstream() as three, gateway() as gate:
        gate.route(("rev", 100, [one, two, three]))
        assert await code(gate, b'{"model":"chat"}') == (422, "request_crashed_engine")
        assert total(gate, "slipway_gateway_engine_crashes_total") == 2
        assert await code(gate, b'{"model":"chat"}') == (422, "request_crashed_engine"), "sent again it goes nowhere"
        assert total(gate, "slipway_gateway_engine_crashes_total") == 2


async def test_an_only_endpoint_that_comes_back_gets_a_suspect_once_more() -> None:
    async with raw_upstream() as one, gateway() as gate:
        gate.route(("rev", 100, [one]))
        assert await code(gate, POISON) == (422, "request_crashed_engine")
        assert total(gate, "slipway_gateway_engine_crashes_total") == 2


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 20_000 + b"\r\nContent-Length: 2\r\n\r\n{}",
        b"\x00\x01garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n{}",
    ],
)
async def test_a_live_server_whose_response_is_no_http_is_no_crash(response: bytes) -> None:
    """Seen: one overlong header gave 422, and then the same bytes were refused for a healthy endpoint."""
    async with fixed_response_upstream(response) as bad, upstream(echo) as good, gateway() as gate:
        gate.route(("rev", 100, [bad]))
        assert await code(gate, POISON) == (502, "bad_response")
        assert total(gate, "slipway_gateway_engine_crashes_total") == 0
        assert gate.outcomes() == {"upstream_error": 1}
        gate.route(("rev", 100, [good.url]))
        assert (await code(gate, POISON))[0] == 200
        gate.route(("rev", 100, [bad, good.url]))
        assert (await code(gate, POISON))[0] == 200, "it is tried elsewhere"


async def test_a_pod_that_is_killed_while_it_leaves_is_no_crash() -> None:
    """Zero failed requests when pods are killed stays true: what is listed no more counts for nothing."""
    released = asyncio.Event()

    async def dies(request: web.Request) -> web.StreamResponse:
        await released.wait()
        assert request.transport
        request.transport.abort()
        return web.Response()

    async with upstream(dies) as one, upstream(dies) as two, upstream(echo) as good, gateway() as gate:
        gate.route(("rev", 100, [one.url, two.url]))
        asking = asyncio.create_task(gate.post(b'{"model":"chat"}'))
        await until_async(lambda: one.bodies or two.bodies)
        gate.route(("rev", 100, [good.url]))
        released.set()
        async with await asking as answer:
            assert answer.status == 200
        assert total(gate, "slipway_gateway_engine_crashes_total") == 0


async def test_connections_that_are_refused_are_no_crashes() -> None:
    async with gateway() as gate:
        gate.route(("rev", 100, [refused_url(), refused_url()]))
        assert await code(gate, POISON) == (502, "upstream_unreachable")
        assert total(gate, "slipway_gateway_engine_crashes_total") == 0


@pytest.mark.parametrize("comment", [b": engine_crashed\n\n", b": engine_crashed\n"])
async def test_stream_with_two_crash_comments_is_resumed_once(comment: bytes) -> None:
    async with (
        raw_upstream(MARKED_HEAD, marked(1), chunk(comment)) as one,
        raw_upstream(MARKED_HEAD, marked(2), chunk(comment)) as two,
        upstream(crashing()) as third,
        gateway() as gate,
    ):
        gate.route(("rev", 100, [one]))
        answer = await gate.post(b'{"model":"chat","stream":true}')
        await answer.content.readline()
        gate.route(("rev", 100, [two]))
        received = await answer.read()
        assert b"request_crashed_engine" in received and received.endswith(b"data: [DONE]\n\n")
        assert b": engine_crashed" not in received, "comments of servers to gateways reach no client"
        assert b".2.00000002." in received, "it was taken up once"
        assert not third.bodies and gate.outcomes() == {"poison": 1}


async def test_streams_of_bystanders_outlive_what_kills_two_pods() -> None:
    """Those that go on elsewhere are not blamed when the suspect that is on trial there ends that server too."""
    suspects, now = Suspects(lambda: 0.0), "http://a"
    culprit, bystanders = Suspect("k", "/", b"p"), [Suspect("k", "/", b"%d" % n) for n in range(20)]
    for one in (culprit, *bystanders):
        assert suspects.blame(one, now, WEIGHT) == WEIGHT
    # All go on at b; the culprit is on trial there when it dies.
    suspects.begin("http://b")
    assert {suspects.blame(one, "http://b", WEIGHT) for one in bystanders[:10]} == {WEIGHT}
    assert suspects.blame(culprit, "http://b", WEIGHT, on_trial=True) == 2 * WEIGHT
    suspects.end("http://b")
    assert {suspects.blame(one, "http://b", WEIGHT) for one in bystanders[10:]} == {WEIGHT}


def test_the_same_bytes_sent_twice_at_a_time_are_blamed_once_for_one_death() -> None:
    now = [0.0]
    suspects = Suspects(lambda: now[0])
    twins = [Suspect("k", "/", b"same") for _ in range(2)]
    assert [suspects.blame(one, "http://a", WEIGHT) for one in twins] == [WEIGHT, WEIGHT]
    again = suspects.blame(twins[0], "http://a", WEIGHT, sent_s=0.1, reported=True)
    assert again == 2 * WEIGHT, "it was sent again, and the server reported that the next engine died"


def test_a_server_that_breaks_each_connection_is_no_second_death_of_what_it_got() -> None:
    """Bytes that a client often sends are not poison because one of several servers is broken."""
    now = [0.0]
    suspects = Suspects(lambda: now[0])
    one = Suspect("k", "/", b"ping")
    for now[0] in (0.0, 0.1, 1.9):
        assert suspects.blame(one, "http://a", WEIGHT, on_trial=now[0] > 0) == WEIGHT
    now[0] = 4.0
    sent_before = {"sent_s": 1.5}  # the gateway was busy, and sees late that this broke too
    assert suspects.blame(one, "http://a", WEIGHT, on_trial=True, **sent_before) == WEIGHT
    assert suspects.blame(one, "http://a", WEIGHT, on_trial=True, sent_s=2.5) == 2 * WEIGHT, "it may have been up again"


def test_each_completed_response_takes_a_third_of_a_crash_from_the_count() -> None:
    suspects = Suspects(lambda: 0.0)
    popular = Suspect("k", "/", b"popular")
    suspects.completed(popular)
    assert suspects.blame(popular, "http://a", WEIGHT) == WEIGHT
    suspects.completed(Suspect("k", "/", b"another"))
    counts = []
    for _ in range(WEIGHT + 1):
        suspects.completed(popular)
        counts.append(suspects.blamed(popular))
    assert counts == [*range(WEIGHT - 1, -1, -1), 0]
    assert not suspects._crashes and not any(suspects._keys.values())


async def test_bytes_that_many_requests_send_outlive_pods_that_are_killed() -> None:
    """Seen: ten rollouts under load with kills; the load had six prompts, and all of them were refused for minutes."""
    popular = b'{"model":"chat"}'
    async with upstream(crashing(popular)) as dead, upstream(echo) as good, gateway() as gate:
        for _ in range(4):
            gate.route(("rev", 100, [dead.url]), ("good", 0, [good.url]))
            assert (await code(gate, popular))[0] == 200
            gate.route(("rev", 100, [good.url]))
            for _ in range(WEIGHT):
                assert (await code(gate, popular))[0] == 200
        assert len(dead.bodies) == 4 and gate.outcomes() == {"ok": 4 * (WEIGHT + 1)}


async def test_suspects_are_tried_one_at_a_time() -> None:
    """The innocent ones get their answers though the culprit kills the second server as well."""
    first_round = asyncio.Event()
    working: set[bytes] = set()

    async def serve(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if len(server.bodies) <= 6:
            if len(server.bodies) == 6:
                first_round.set()
            await first_round.wait()
            return web.Response(status=503, body=CRASHED, content_type="application/json")
        working.add(body)
        assert len(working) == 1, "suspects are alone at an endpoint"
        await asyncio.sleep(0.02)
        working.discard(body)
        if body == POISON:
            return web.Response(status=503, body=CRASHED, content_type="application/json")
        return web.json_response({"choices": []})

    async with upstream(serve) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        bodies = [b'{"model":"chat","n":%d}' % n for n in range(5)]
        codes = await asyncio.gather(*(code(gate, body) for body in (*bodies, POISON)))
    assert codes == [(200, "")] * 5 + [(422, "request_crashed_engine")]


async def test_waiting_for_a_trial_takes_no_time_from_waiting_for_an_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both times ended together: a suspect was refused as the first of them was over, before it had looked again."""
    monkeypatch.setattr(crashes, "_TRIAL_WAIT_S", 2.0)
    both, goes_on = asyncio.Event(), asyncio.Event()

    async def serve(request: web.Request) -> web.StreamResponse:
        await request.read()
        if len(first.bodies) <= 2:
            if len(first.bodies) == 2:
                both.set()
            await both.wait()
            return web.Response(status=503, body=CRASHED, content_type="application/json")
        await goes_on.wait()
        return web.json_response({"choices": []})

    async with upstream(serve) as first, upstream(crashing()) as second, gateway(hold_timeout_s=2.0) as gate:
        gate.route(("rev", 100, [first.url]))
        bodies = [b'{"model":"chat","n":%d}' % n for n in range(2)]
        sent = [asyncio.create_task(code(gate, body)) for body in bodies]
        await until_async(lambda: len(first.bodies) == 3, "one is on trial, the other waits")
        gate.route(("rev", 100, []))
        await asyncio.sleep(2.2)  # a busy machine has two seconds more
        gate.route(("rev", 100, [second.url]))
        await until_async(lambda: len(second.bodies) == 1, "the other is served")
        goes_on.set()
        assert await asyncio.gather(*sent) == [(200, "")] * 2


@settings(max_examples=3, deadline=None)
@given(st.integers(1, 40))
def test_remembered_requests_are_bounded_in_number_and_time(count: int) -> None:
    now = [0.0]
    suspects = Suspects(lambda: now[0])
    for n in range(MAX_SUSPECTS + count):
        suspects.blame(Suspect("k", "/", b"%d" % n), "u", WEIGHT)
    assert len(suspects._crashes) == MAX_SUSPECTS == sum(suspects._keys.values())
    assert suspects.blamed(Suspect("k", "/", b"0")) == 0
    assert suspects.blamed(Suspect("k", "/", b"%d" % MAX_SUSPECTS)) == WEIGHT
    now[0] = REMEMBERED_S
    assert suspects.blamed(Suspect("k", "/", b"%d" % MAX_SUSPECTS)) == 0 and not suspects._crashes
