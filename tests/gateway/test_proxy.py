"""Forwarding over real sockets: retries, streams, cancels, limits; each request counted once."""

import asyncio
import json
import socket
import sys
import time

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from slipway_gateway.routing.split import tag
from testkit.until import until_async
from tests.support.report import route_reports

from .harness import (
    Gateway,
    Handler,
    answering,
    drop,
    echo,
    gateway,
    raw_upstream,
    refused_url,
    streaming,
    upstream,
)

SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


# -- passing through


async def test_bytes_and_headers_pass_unchanged() -> None:
    body = b'{ "model" : "chat",  "x": 1.0e0, "user":"\\u00e9" }'
    async with upstream(echo) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        sent = {"Content-Type": "application/json", "Connection": "close, X-Hop", "X-Hop": "1", "X-Request-Id": "abc"}
        async with gate.client.post(
            URL(f"{gate.url}/v1/completions?a=%2F&b", encoded=True), data=body, headers=sent
        ) as answer:
            assert answer.status == 200
            assert answer.headers["X-Slipway-Revision"] == "rev"
            assert answer.headers["X-Request-Id"] == "abc"
        assert server.bodies == [body]
        assert server.seen[0].rel_url.raw_path_qs == "/v1/completions?a=%2F&b"
        seen = server.seen[0].headers
        assert seen["X-Request-Id"] == "abc" and seen["Content-Length"] == str(len(body))
        assert "X-Hop" not in seen and "Transfer-Encoding" not in seen
        assert gate.outcomes() == {"ok": 1}


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/embeddings",
        "/v1/generate",
        "/api/v1/generate",
        "/api/v1/embed",
        "/tokenize",
        "/detokenize",
        "/v1/rerank",
        "/rerank",
        "/v2/rerank",
        "/v1/score",
        "/score",
        "/classify",
    ],
)
async def test_every_endpoint_is_routed_by_body(path: str) -> None:
    async with upstream(echo) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        async with await gate.post(path=path) as answer:
            assert (await answer.json())["path"] == path


@pytest.mark.parametrize("by", [("key", "user"), ()])
async def test_servers_get_the_tenant(by: tuple[str, ...]) -> None:
    forged = {"x-slipway-tenant": "f" * 32}
    async with upstream(echo) as server, gateway(tenant_by=by, tenant_salt="s") as gate:
        gate.route(("rev", 100, [server.url]))
        for sent in ({"Authorization": "Bearer a"}, {"Authorization": "Bearer b"}, {"Authorization": "Bearer a"}, {}):
            async with await gate.post({"model": "chat"}, headers=forged | sent) as answer:
                assert answer.status == 200
        anna, bert, again, anonymous = (request.headers.getall("X-Slipway-Tenant", []) for request in server.seen)
        assert anna == again and anonymous == []
        assert (len(anna), anna == bert) == ((1, False) if by else (0, True))
        assert forged["x-slipway-tenant"] not in anna


async def test_model_from_the_path() -> None:
    async with upstream(echo) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]), model="org/chat")
        async with await gate.post({"prompt": "x"}, path="/api/v1/models/org/chat/generate") as answer:
            assert answer.status == 200
        async with await gate.post({"prompt": "x"}, path="/api/v1/models/other/generate") as answer:
            assert answer.status == 404


async def test_chunked_request_body_arrives_whole() -> None:
    async def parts():  # type: ignore[no-untyped-def]
        for part in (b'{"model":', b' "chat", "x": "', b"y" * 100_000, b'"}'):
            yield part

    async with upstream(echo) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        async with gate.client.post(f"{gate.url}/v1/completions", data=parts()) as answer:
            assert answer.status == 200
        assert len(server.bodies[0]) > 100_000 and server.seen[0].headers["Content-Length"]


async def test_compressed_answers_are_not_touched() -> None:
    async def compressed(request: web.Request) -> web.StreamResponse:
        assert request.headers["Accept-Encoding"] == "gzip"
        answer = web.json_response({"x": "y" * 5000})
        answer.enable_compression(web.ContentCoding.gzip)
        return answer

    async with upstream(compressed) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        async with await gate.post(headers={"Accept-Encoding": "gzip"}) as answer:
            assert answer.headers["Content-Encoding"] == "gzip"
            assert len((await answer.json())["x"]) == 5000


async def test_http_1_0_client_gets_a_stream() -> None:
    async with upstream(streaming(3)) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gate.url.rsplit(":", 1)[1]))
        body = b'{"model":"chat"}'
        writer.write(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        received = await reader.read()
        await drop(writer)
        assert b"chunked" not in received and received.endswith(b"data: [DONE]\n\n")


async def test_big_answer_streams_through() -> None:
    async def big(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"x" * (5 << 20), content_type="application/json")

    async with upstream(big) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        async with await gate.post() as answer:
            assert len(await answer.read()) == 5 << 20


# -- streams


async def test_stream_arrives_event_by_event() -> None:
    gap_s = 0.1
    async with upstream(streaming(5, gap_s)) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        async with await gate.post() as answer:
            times = [time.monotonic() async for line in answer.content if line.strip()]
        assert len(times) == 6
        assert times[-1] - times[0] > 3 * gap_s
        assert gate.outcomes() == {"ok": 1}


async def test_upstream_dies_mid_stream() -> None:
    async with (
        raw_upstream(SSE_HEAD, chunk(b'data: {"n": 0}\n\n'), chunk(b'data: {"n": 1')) as url,
        gateway() as gate,
    ):
        gate.route(("rev", 100, [url]))
        async with await gate.post() as answer:
            events = (await answer.read()).split(b"\n\n")
        assert events[0] == b'data: {"n": 0}'
        assert json.loads(events[1].removeprefix(b"data: "))["error"]["code"] == "upstream_died"
        assert events[2:] == [b"data: [DONE]", b""]
        assert gate.outcomes() == {"upstream_error": 1}
        assert route_reports(gate.balancer)["default/chat"]["revisions"]["rev"] == {
            "weight": 100,
            "endpoints": 1,
            "inflight": 0,
            "pods": {},
            "requests": 1,
            "failures": 1,
        }


STREAM = "1f-674f0000-" + "a" * 32
MARKED_HEAD = SSE_HEAD[:-2] + f"X-Slipway-Stream: {STREAM}\r\n\r\n".encode()


def marked(position: int) -> bytes:
    return chunk(b": %d.0000000%d 7,%d\ndata: {}\n\n" % (position, position, position))


async def test_stream_that_crashes_every_server_ends_soon() -> None:
    """Each gets one event out: what kills its server may come to one more, and no further."""
    served = 0

    async def die(request: web.Request) -> web.StreamResponse:
        nonlocal served
        served += 1
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Slipway-Stream": STREAM})
        await out.prepare(request)
        await out.write(b": %d.0000000%d 7,%d\ndata: {}\n\n" % (served, served, served))
        assert request.transport
        request.transport.close()
        return out

    async with upstream(die) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        async with await gate.post() as answer:
            *events, error, _, _ = (await answer.read()).split(b"\n\n")
        names = [b"rev.%s.%d.0000000%d.%s" % (STREAM.encode(), n, n, tag(server.url).encode()) for n in (1, 2)]
        assert events == [b"id: %s\ndata: {}" % name for name in names]
        assert b"request_crashed_engine" in error
        assert "X-Slipway-Stream" not in answer.headers
        assert [seen.headers.get("X-Slipway-Resume") for seen in server.seen] == [
            None,
            f"{STREAM}.1.00000001",
        ]
        assert server.bodies[1].removeprefix(server.bodies[0]) == b"7,1,"
        assert server.seen[1].headers["X-Slipway-Resume-Bytes"] == "4"
        assert gate.outcomes() == {"poison": 1} and gate.edge.running == 0
        (counts,) = route_reports(gate.balancer)["default/chat"]["revisions"].values()
        assert counts == {"weight": 100, "endpoints": 1, "inflight": 0, "pods": {}, "requests": 1, "failures": 1}


async def test_a_stream_waits_for_its_server_to_come_back() -> None:
    async def rest(request: web.Request) -> web.StreamResponse:
        if len(server.seen) == 1:
            return web.json_response({"error": {}}, status=503)
        headers = {"Content-Type": "text/event-stream", "X-Slipway-Stream": STREAM}
        return web.Response(body=b": 2.00000002 9\ndata: {}\n\ndata: [DONE]\n\n", headers=headers)

    async with raw_upstream(MARKED_HEAD, marked(1)) as url, upstream(rest) as server, gateway(max_held=0) as gate:
        gate.route(("rev", 100, [url]), ("other", 0, [server.url]))
        answer = await gate.post()
        await answer.content.readline()
        gate.route(("rev", 0, []), ("other", 100, [server.url]))
        await until_async(lambda: gate.held() == 1)
        # It counts as in flight meanwhile, so that the operator keeps what it waits for.
        assert route_reports(gate.balancer)["default/chat"]["revisions"]["rev"]["inflight"] == 1
        gate.route(("rev", 0, [server.url]))
        received = await answer.read()
        # Its id leads to where it comes from now.
        assert received.endswith(b".2.00000002.%s\ndata: {}\n\ndata: [DONE]\n\n" % tag(server.url).encode())
        assert len(server.seen) == 2 and gate.outcomes() == {"ok": 1}


async def test_server_with_another_stream_id_is_not_resumed() -> None:
    async with raw_upstream(MARKED_HEAD, marked(1)) as url, upstream(streaming(3)) as server, gateway() as gate:
        gate.route(("rev", 100, [url]))
        answer = await gate.post()
        await answer.content.readline()
        gate.route(("rev", 100, [server.url]))
        received = await answer.read()
        assert b"upstream_died" in received and b'"n"' not in received
        assert gate.outcomes() == {"upstream_error": 1}


async def test_a_client_that_comes_back_is_led_to_its_server_with_the_tokens_that_were_sent() -> None:
    went_on = asyncio.Event()

    async def begin(request: web.Request) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream", "X-Slipway-Stream": STREAM}
        out = web.StreamResponse(headers=headers)
        await out.prepare(request)
        if "X-Slipway-Resume" in request.headers:
            await out.write(b"data: [DONE]\n\n")
            return out
        for position in (1, 2, 3):
            await out.write(b": %d.0000000%d 7,%d\ndata: {}\n\n" % (position, position, position))
        await went_on.wait()
        return out

    async with upstream(begin) as first, upstream(begin) as second, gateway() as gate:
        gate.route(("rev", 100, [first.url, second.url]))
        answer = await gate.post()
        name = (await answer.content.readuntil(b"\n\n")).split(b"\n")[0].removeprefix(b"id: ").decode()
        await answer.content.readuntil(b".3.00000003.")  # what arrived is less than what was sent
        answer.close()
        await until_async(lambda: gate.outcomes() == {"client_closed": 1})
        (holder, other) = (first, second) if first.seen else (second, first)
        for body, tokens in ((None, b"7,1,7,2,7,3,"), ({"model": "chat", "prompt": "another"}, b"")):
            async with await gate.post(body, headers={"Last-Event-ID": name}) as answer:
                assert (await answer.read()).endswith(b"[DONE]\n\n")
            resumed = holder.seen[-1]
            assert resumed.headers["X-Slipway-Resume"] == f"{STREAM}.1.00000001"
            assert resumed.headers.get("X-Slipway-Resume-Bytes", "0") == str(len(tokens))
            assert holder.bodies[-1].endswith(b"}" + tokens) and resumed.headers["X-Slipway-Returns"] == "1"
        # It is led there first, and not at any price.
        gate.route(("rev", 100, [other.url]))
        async with await gate.post(headers={"Last-Event-ID": name}) as answer:
            assert answer.status == 200
        assert other.bodies[-1].endswith(b"}7,1,7,2,7,3,")
        read = gate.metrics.registry.get_sample_value
        assert read("slipway_gateway_returns_total", {"tokens": "known"}) == 2
        assert read("slipway_gateway_returns_total", {"tokens": "unknown"}) == 1
        assert read("slipway_gateway_remembered_bytes") == 256 + 12
        assert gate.outcomes() == {"client_closed": 1, "ok": 3}


async def test_a_client_that_hangs_up_after_the_last_event_has_its_whole_answer() -> None:
    """As the clients of OpenAI do, before the end of the answer is on its way."""
    ends = asyncio.Event()

    async def lingering(request: web.Request) -> web.StreamResponse:
        out = await streaming(3)(request)
        await ends.wait()
        return out

    async with upstream(lingering) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        answer = await gate.post()
        await answer.content.readuntil(b"[DONE]\n\n")
        answer.close()
        await until_async(lambda: gate.outcomes() != {})
        assert gate.outcomes() == {"ok": 1}
        ends.set()


async def test_a_client_that_leaves_ends_the_wait_for_a_server() -> None:
    async with raw_upstream(MARKED_HEAD, marked(1)) as url, gateway() as gate:
        gate.route(("rev", 100, [url]))
        answer = await gate.post()
        await answer.content.readline()
        gate.route(("rev", 100, []))
        await until_async(lambda: gate.held() == 1)
        answer.close()
        await until_async(lambda: gate.outcomes() == {"client_closed": 1})
        assert gate.edge.running == 0 and gate.held() == 0


async def test_connections_to_a_lost_node_die_by_silence() -> None:
    async with upstream(streaming(3, 0.05)) as server, gateway() as gate, gate.upstreams.post(server.url) as answer:
        assert answer.connection and answer.connection.transport
        opened = answer.connection.transport.get_extra_info("socket")
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if sys.platform == "linux":
            idle_s, gap_s, count = (
                opened.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
            assert idle_s + gap_s * count <= 30
            assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 30_000


async def test_stream_that_stops_is_ended_with_an_error() -> None:
    async with upstream(streaming(2, 30)) as server, gateway(idle_timeout_s=0.3) as gate:
        gate.route(("rev", 100, [server.url]))
        async with await gate.post() as answer:
            received = await answer.read()
        assert b'"code":"timeout"' in received and received.endswith(b"data: [DONE]\n\n")
        assert gate.outcomes() == {"timeout": 1}
        await until_async(lambda: server.cancelled == 1)


async def test_whole_answer_that_breaks_is_tried_elsewhere_then_refused() -> None:
    async with raw_upstream(JSON_HEAD, b'{"half":') as url, upstream(echo) as good, gateway() as gate:
        gate.route(("rev", 100, [url]), ("good", 0, [good.url]))
        async with await gate.post() as answer:
            assert answer.status == 200 and answer.headers["X-Slipway-Revision"] == "good"
        gate.route(("rev", 100, [url]))
        async with await gate.post({"model": "chat", "prompt": "another"}) as answer:
            assert answer.status == 422
            assert (await answer.json())["error"]["code"] == "request_crashed_engine"
        assert gate.outcomes() == {"poison": 1, "ok": 1}


async def test_big_answer_that_breaks_is_visibly_cut() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999999\r\n\r\n"
    async with raw_upstream(head, b"x" * (3 << 20)) as url, gateway() as gate:
        gate.route(("rev", 100, [url]))
        with pytest.raises(aiohttp.ClientError):
            async with await gate.post() as answer:
                await answer.read()
        assert gate.outcomes() == {"upstream_error": 1}


# -- cancel and back-pressure


async def test_disconnect_mid_stream_cancels_upstream() -> None:
    async with upstream(streaming(1000, 0.02)) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        answer = await gate.post()
        await answer.content.readline()
        answer.close()
        await until_async(lambda: server.cancelled == 1)
        await until_async(lambda: gate.outcomes() == {"client_closed": 1})
        assert gate.edge.running == 0
        assert route_reports(gate.balancer)["default/chat"]["revisions"]["rev"]["inflight"] == 0


async def test_disconnect_before_the_first_byte_cancels_upstream() -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    async with upstream(slow) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        asking = asyncio.create_task(gate.post())
        await until_async(lambda: server.bodies)
        asking.cancel()
        await until_async(lambda: server.cancelled == 1)
        await until_async(lambda: gate.outcomes() == {"client_closed": 1})


def firehose(sent: list[int]) -> Handler:
    async def spray(request: web.Request) -> web.StreamResponse:
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)
        event = b"data: " + b"x" * 65_500 + b"\n\n"
        for _ in range(4000):
            await out.write(event)
            sent.append(len(event))
        return out

    return spray


async def test_slow_client_holds_the_upstream_back() -> None:
    sent: list[int] = []
    async with upstream(firehose(sent)) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        reader, writer = await unread_request(gate)
        await reader.readline()
        before = -1
        while before != len(sent):
            before = len(sent)
            await asyncio.sleep(0.3)
        # Four socket buffers and a few chunks; without back-pressure all 262 MB would be here.
        assert sum(sent) < 40 << 20
        await drop(writer)
        await until_async(lambda: server.cancelled == 1)


async def test_client_that_never_reads_is_disconnected() -> None:
    async with upstream(firehose([])) as server, gateway(stall_timeout_s=0.5) as gate:
        gate.route(("rev", 100, [server.url]))
        _, writer = await unread_request(gate)
        await until_async(lambda: gate.outcomes() == {"client_closed": 1})
        await until_async(lambda: server.cancelled == 1)
        await drop(writer)


async def unread_request(gate: Gateway) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(gate.url.rsplit(":", 1)[1]), limit=65536)
    body = b'{"model":"chat"}'
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    return reader, writer


# -- retries


async def test_refused_connection_goes_to_the_next_endpoint() -> None:
    async with upstream(echo) as server, gateway() as gate:
        dead = refused_url()
        gate.route(("rev", 100, [dead, server.url]))
        for _ in range(20):
            async with await gate.post() as answer:
                assert answer.status == 200
        assert gate.outcomes() == {"ok": 20}
        revision = route_reports(gate.balancer)["default/chat"]["revisions"]["rev"]
        assert revision["requests"] == 20 and 0 < revision["failures"] < 20


@pytest.mark.parametrize("status", [429, 502, 503])
async def test_retried_statuses(status: int) -> None:
    async with upstream(answering(status)) as bad, upstream(echo) as good, gateway() as gate:
        gate.route(("c", 100, [bad.url]), ("s", 0, [good.url]))
        async with await gate.post() as answer:
            assert answer.status == 200 and answer.headers["X-Slipway-Revision"] == "s"
        assert bad.bodies == good.bodies
        failures = route_reports(gate.balancer)["default/chat"]["revisions"]["c"]["failures"]
        assert failures == (0 if status == 429 else 1)


@pytest.mark.parametrize("status", [400, 404, 422, 500, 501])
async def test_other_statuses_are_passed_on(status: int) -> None:
    async with upstream(answering(status)) as bad, upstream(echo) as good, gateway() as gate:
        gate.route(("c", 100, [bad.url]), ("s", 0, [good.url]))
        async with await gate.post() as answer:
            assert answer.status == status
            assert (await answer.json())["error"]["message"] == "refused by upstream"
        assert not good.seen
        assert gate.outcomes() == {"client_error" if status < 500 else "upstream_error": 1}


async def test_busy_everywhere_is_passed_on_at_once() -> None:
    async with upstream(answering(429, **{"Retry-After": "7"})) as busy, gateway(hold_timeout_s=30) as gate:
        gate.route(("rev", 100, [busy.url]))
        async with asyncio.timeout(20), await gate.post() as answer:
            assert answer.status == 429 and answer.headers["Retry-After"] == "7"
        assert len(busy.seen) == 1
        assert gate.outcomes() == {"refused": 1}


async def test_attempts_are_bounded() -> None:
    async with upstream(answering(503)) as bad, gateway(max_attempts=2, hold_timeout_s=10) as gate:
        gate.route(("rev", 100, [bad.url]))
        async with await gate.post() as answer:
            assert answer.status == 503
        assert len(bad.seen) == 2


async def test_server_that_restarts_is_waited_for() -> None:
    async with upstream(echo) as server, gateway(hold_timeout_s=10) as gate:
        gate.route(("rev", 100, [refused_url()]))
        asking = asyncio.create_task(gate.post())
        await asyncio.sleep(0.2)
        gate.route(("rev", 100, [server.url]))
        async with await asking as answer:
            assert answer.status == 200


async def test_unreachable_model() -> None:
    async with gateway() as gate:
        gate.route(("rev", 100, [refused_url()]))
        async with await gate.post() as answer:
            assert answer.status == 502 and answer.headers["Retry-After"]
            assert answer.headers["X-Slipway-Revision"] == "rev"
        assert gate.outcomes() == {"upstream_error": 1}


async def test_whole_request_timeout() -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    async with upstream(slow) as server, gateway(request_timeout_s=0.3) as gate:
        gate.route(("rev", 100, [server.url]))
        async with await gate.post() as answer:
            assert answer.status == 504 and (await answer.json())["error"]["code"] == "timeout"
        await until_async(lambda: server.cancelled == 1)
        assert gate.outcomes() == {"timeout": 1}


async def test_each_of_several_requests_has_the_whole_time() -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    async def took_s() -> float:
        began_s = time.monotonic()
        async with await gate.post() as answer:
            assert answer.status == 504
        return time.monotonic() - began_s

    async with upstream(slow) as server, gateway(request_timeout_s=0.3) as gate:
        gate.route(("rev", 100, [server.url]))
        first = asyncio.create_task(took_s())
        await asyncio.sleep(0.1)
        second = asyncio.create_task(took_s())
        # One timer serves them all: it looks at the second one when the first one is over, and begins again after both.
        assert min(await first, await second, await took_s()) >= 0.29
        assert gate.outcomes() == {"timeout": 3}


# -- routing


async def test_weights_hold_and_users_stick() -> None:
    async with upstream(echo) as canary, upstream(echo) as stable, gateway() as gate:
        gate.route(("c", 30, [canary.url]), ("s", 70, [stable.url]))

        async def revision_of(user: str) -> str:
            async with await gate.post({"model": "chat", "user": user}) as answer:
                return answer.headers["X-Slipway-Revision"]

        users = [f"user-{n}" for n in range(200)]
        first = [await revision_of(user) for user in users]
        assert 35 < first.count("c") < 85
        assert [await revision_of(user) for user in users] == first
        gate.route(("c", 60, [canary.url]), ("s", 40, [stable.url]))
        after = [await revision_of(user) for user in users]
        assert all(now == "c" for before, now in zip(first, after, strict=True) if before == "c")
        assert after.count("c") > first.count("c")


async def test_load_is_spread() -> None:
    async with upstream(streaming(5, 0.05)) as one, upstream(streaming(5, 0.05)) as two, gateway() as gate:
        gate.route(("rev", 100, [one.url, two.url]))
        answers = await asyncio.gather(*(gate.post({"model": "chat", "user": "same"}) for _ in range(20)))
        await asyncio.gather(*(answer.read() for answer in answers))
        assert len(one.seen) == len(two.seen) == 10


async def test_request_waits_for_an_endpoint() -> None:
    async with upstream(echo) as server, gateway(hold_timeout_s=10) as gate:
        gate.route(("rev", 100, []))
        asking = asyncio.create_task(gate.post())
        await asyncio.sleep(0.1)
        assert not asking.done()
        gate.route(("rev", 100, [server.url]))
        async with await asking as answer:
            assert answer.status == 200


async def test_no_endpoint_is_503_after_the_hold() -> None:
    async with gateway(hold_timeout_s=1.0, max_held=1) as gate:
        gate.route(("rev", 100, []))
        started = time.monotonic()
        async with await gate.post() as answer:
            assert answer.status == 503 and answer.headers["Retry-After"] == "5"
            assert (await answer.json())["error"]["code"] == "model_not_ready"
        assert time.monotonic() - started >= 1.0
        # With the one place taken the next one is refused at once.
        first = asyncio.create_task(gate.post())
        await until_async(lambda: gate.edge.running == 1)
        second = await gate.post()
        assert second.status == 503 and not first.done()
        (await first).close()
        second.close()
        assert gate.outcomes() == {"no_endpoint": 3}


async def test_concurrent_requests_all_end_counted() -> None:
    async with (
        upstream(streaming(3, 0.01)) as good,
        upstream(answering(503)) as bad,
        gateway(hold_timeout_s=10) as gate,
    ):
        gate.route(("c", 50, [bad.url]), ("s", 50, [good.url]))
        answers = await asyncio.gather(*(gate.post() for _ in range(200)))
        bodies = await asyncio.gather(*(answer.read() for answer in answers))
        assert all(body.endswith(b"[DONE]\n\n") for body in bodies)
        assert gate.outcomes() == {"ok": 200}
        assert (
            sum(revision["requests"] for revision in route_reports(gate.balancer)["default/chat"]["revisions"].values())
            == 200
        )
