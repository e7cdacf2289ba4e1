"""Refusals, limits, what is served, and the admin port."""

import asyncio
from typing import Any

import pytest

from testkit.until import until_async
from tests.support.report import route_reports

from .harness import Gateway, drop, echo, gateway, streaming, upstream


async def refusal(gate: Gateway, body: Any, **options: Any) -> tuple[int, str]:
    async with await gate.post(body, **options) as answer:
        error = (await answer.json())["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert answer.headers["X-Request-Id"]
        return answer.status, error["code"]


async def raw(gate: Gateway, *parts: bytes) -> bytes:
    """Head of the answer to bytes that no client would send."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(gate.url.rsplit(":", 1)[1]))
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        async with asyncio.timeout(10):
            return await reader.readuntil(b"\r\n\r\n")
    finally:
        await drop(writer)


async def test_a_request_before_the_first_table_waits_for_it() -> None:
    """Seen: a gateway was killed, and its successor got a request before it had listed the routes."""
    async with upstream(echo) as server, gateway(hold_timeout_s=30.0) as gate:
        waiting = asyncio.create_task(gate.post({"model": "chat"}))
        await until_async(lambda: gate.edge.running == 1)
        gate.route(("rev", 100, [server.url]))
        async with await waiting as answer:
            assert answer.status == 200
        assert gate.outcomes() == {"ok": 1}


async def test_a_byte_order_mark_before_a_body_is_skipped() -> None:
    """Servers of other kinds might refuse it: the body goes on without."""
    async with upstream(echo) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        async with await gate.post(b'\xef\xbb\xbf{"model": "chat"}') as answer:
            assert answer.status == 200
        assert server.bodies[-1] == b'{"model": "chat"}'


async def test_refusals_have_openai_shape() -> None:
    async with upstream(echo) as server, gateway(max_body_bytes=1000) as gate:
        assert await refusal(gate, {"model": "chat"}) == (503, "not_ready")
        gate.route(("rev", 100, [server.url]))
        assert await refusal(gate, b"{") == (400, "invalid_json")
        assert await refusal(gate, b'{"model": 1}') == (400, "invalid_type")
        assert await refusal(gate, {}) == (400, "missing_required_parameter")
        assert await refusal(gate, {"model": "nope"}) == (404, "model_not_found")
        assert await refusal(gate, {"model": "chat", "x": "y" * 1000}) == (413, "request_too_large")
        assert await refusal(gate, {"model": "chat"}, headers={"Content-Encoding": "gzip"}) == (
            415,
            "unsupported_encoding",
        )
        assert await refusal(gate, {}, path="/v1/nothing") == (404, "unknown_url")
        assert await refusal(gate, {}, path="/v1/models") == (405, "method_not_allowed")
        assert gate.outcomes() == {"no_endpoint": 1, "client_error": 8}
        assert not server.seen


async def test_wrong_method_gets_405_with_allow() -> None:
    async with gateway() as gate:
        for path, allowed in (("/v1/models", "GET, HEAD"), ("/v1/models/x", "GET, HEAD"), ("/v1/embeddings", "POST")):
            async with gate.client.put(gate.url + path) as answer:
                assert (answer.status, answer.headers["Allow"]) == (405, allowed)
                assert (await answer.json())["error"]["code"] == "method_not_allowed"
        assert gate.outcomes() == {"client_error": 3}


async def test_unknown_models_make_no_labels() -> None:
    async with gateway() as gate:
        gate.route(("rev", 100, []))
        for n in range(5):
            assert (await refusal(gate, {"model": f"m{n}"}))[0] == 404
        assert b'model="m1"' not in gate.metrics.render() and b'model="unknown"' in gate.metrics.render()


async def test_huge_chunked_body_is_cut_off() -> None:
    async with upstream(echo) as server, gateway(max_body_bytes=100_000) as gate:
        gate.route(("rev", 100, [server.url]))
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        response = await raw(gate, head, *[b"10000\r\n" + b"x" * 65536 + b"\r\n"] * 4)
        assert response.startswith(b"HTTP/1.1 413") and b"Connection: close" in response
        assert gate.outcomes() == {"client_error": 1} and gate.budget.used_bytes == 0


async def test_buffered_bytes_are_bounded_together() -> None:
    async with upstream(echo) as server, gateway(memory_budget_bytes=1000) as gate:
        gate.route(("rev", 100, [server.url]))
        assert await refusal(gate, {"model": "chat", "x": "y" * 2000}) == (429, "overloaded")
        async with await gate.post() as answer:
            assert answer.status == 200


async def test_slow_body_times_out() -> None:
    async with gateway(body_timeout_s=0.2) as gate:
        response = await raw(gate, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")
        assert response.startswith(b"HTTP/1.1 408")


async def test_inflight_bound() -> None:
    async with upstream(streaming(100, 0.05)) as server, gateway(max_inflight=4) as gate:
        gate.route(("rev", 100, [server.url]))
        running = [await gate.post(), await gate.post()]
        async with await gate.post() as answer:
            assert answer.status == 429 and answer.headers["Retry-After"] == "1"
            assert (await answer.json())["error"]["type"] == "rate_limit_error"
        for one in running:
            one.close()
        await until_async(lambda: gate.edge.running == 0)
        assert gate.outcomes() == {"refused": 1, "client_closed": 2}


_COMPLETIONS = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (_COMPLETIONS + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (_COMPLETIONS + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}", 400),
        (_COMPLETIONS + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}", 400),
        (_COMPLETIONS + b"X-Big: " + b"y" * 20000 + b"\r\n\r\n", 431),
        (_COMPLETIONS + b"A: b\r\n" * 500 + b"\r\n", 400),
        (b"POST /v1/" + b"y" * 20000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (b"\x16\x03\x01 nonsense\r\n\r\n", 400),
    ],
)
async def test_ambiguous_or_oversized_heads_reach_no_pod(head: bytes, status: int) -> None:
    async with upstream(echo) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        response = await raw(gate, head)
        # HTTP/1.0: the connection ends with the answer.
        assert response.startswith(b"HTTP/1.0 %d " % status) and b"Content-Type: application/json" in response
        assert b"X-Request-Id" in response
        assert gate.outcomes() == {"client_error": 1}
        assert not server.seen


async def test_missing_or_incomplete_heads_close_the_connection() -> None:
    async with gateway(keepalive_timeout_s=0.2) as gate:
        gate.route(("rev", 100, []))
        address = ("127.0.0.1", int(gate.url.rsplit(":", 1)[1]))
        whole = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
        for start in (b"", _COMPLETIONS, whole + whole[:20]):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(start)
            async with asyncio.timeout(10):
                response = await reader.read()
            assert response.count(b"HTTP/1.1 200") == start.count(whole)
            await drop(writer)


async def test_models() -> None:
    async with upstream(echo) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]), model="org/chat")
        async with gate.client.get(gate.url + "/v1/models") as answer:
            listed = await answer.json()
        entry = {"id": "org/chat", "object": "model", "created": 1767225600, "owned_by": "slipway", "ready": True}
        assert listed == {"object": "list", "data": [entry]}
        async with gate.client.get(gate.url + "/v1/models/org/chat") as answer:
            assert await answer.json() == entry
        async with gate.client.get(gate.url + "/v1/models/none") as answer:
            assert answer.status == 404
        gate.route(("rev", 100, []), model="org/chat")
        async with gate.client.get(gate.url + "/v1/models/org/chat") as answer:
            assert (await answer.json())["ready"] is False


async def test_bug_is_a_500_with_a_count(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async with gateway() as gate:
        gate.route(("rev", 100, []))
        monkeypatch.setattr(gate.balancer, "enter", lambda model: 1 / 0)
        assert await refusal(gate, {"model": "chat"}) == (500, "internal_error")
        assert gate.outcomes() == {"internal": 1}
        assert "ZeroDivisionError" in caplog.text


# -- admin


async def test_probes() -> None:
    async with gateway() as gate:

        async def status(path: str) -> tuple[int, str]:
            async with gate.client.get(gate.admin_url + path) as answer:
                return answer.status, await answer.text()

        assert (await status("/healthz"))[0] == 200
        code, text = await status("/readyz")
        assert code == 503 and "the test" in text
        gate.route(("rev", 100, []))
        assert (await status("/readyz"))[0] == 200
        gate.edge.draining = True
        assert (await status("/readyz"))[0] == 503 and (await status("/healthz"))[0] == 200
        async with gate.client.get(gate.url + "/readyz") as answer:
            assert answer.status == 404  # never on the public port


async def test_routes_report_is_the_contract() -> None:
    async with upstream(streaming(100, 0.05)) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]), ("old", 0, []))
        running = await gate.post()
        async with gate.client.get(gate.admin_url + "/internal/routes") as answer:
            report = await answer.json()
        revisions = {
            "rev": {
                "weight": 100,
                "endpoints": 1,
                "inflight": 1,
                "pods": {"127.0.0.1": 1},
                "requests": 1,
                "failures": 0,
            },
            "old": {"weight": 0, "endpoints": 0, "inflight": 0, "pods": {}, "requests": 0, "failures": 0},
        }
        failsafe = {"cut_off": "", "reason": "", "expired": False}
        (sample,) = report["routes"]["default/chat"].pop("samples")
        activity = report["routes"]["default/chat"].pop("activity")
        assert (activity["held"], activity["last_request_s"], activity["known_s"] >= 0) == (0, 0.0, True)
        assert (sample["generation"], sample["weights"]) == (1, {"rev": 100, "old": 0})
        assert set(report.pop("bounds")) == {"ttft", "itl", "e2e"}
        service = {"answered": 1, "refused": 0, "last": "", "unserved_s": None}
        route = {
            "uid": "uid",
            "generation": 1,
            "digest": "",
            "revisions": revisions,
            "failsafe": failsafe,
            "service": service,
            "implausible_usage": None,
            "objectives": None,
            "recounts_differ": [],
            "key_problems": [],
            "accuracy": None,
        }
        assert report.pop("table") == {"restored": False, "age_s": 0.0}
        assert report.pop("inflight") == 1
        assert report == {"incarnation": "incarnation", "draining": False, "routes": {"default/chat": route}}
        # A revision that left the table is reported while streams still run on it.
        gate.route(("new", 100, []))
        assert route_reports(gate.balancer)["default/chat"]["revisions"]["rev"]["inflight"] == 1
        running.close()
        await until_async(lambda: "rev" not in route_reports(gate.balancer)["default/chat"]["revisions"])


async def test_metrics() -> None:
    async with upstream(echo) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        (await gate.post()).close()
        async with gate.client.get(gate.admin_url + "/metrics") as answer:
            text = await answer.text()
        for line in (
            'slipway_gateway_requests_total{code="200",model="chat",outcome="ok",revision="rev"} 1.0',
            'slipway_gateway_inflight{model="chat",revision="rev"} 0.0',
            'slipway_gateway_ttft_seconds_count{model="chat",revision="rev"} 1.0',
            'slipway_gateway_request_seconds_count{model="chat",revision="rev"} 1.0',
            'slipway_gateway_route_generation{route="default/chat"} 1.0',
            'slipway_gateway_build_info{version="test"} 1.0',
        ):
            assert line in text


async def test_old_revisions_leave_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway_gateway.telemetry.metrics._MAX_PAIRS", 2)
    async with upstream(echo) as server, gateway() as gate:
        for revision in ("r1", "r2", "r3"):
            gate.route((revision, 100, [server.url]))
            (await gate.post()).close()
        text = gate.metrics.render().decode()
        assert 'revision="r1"' not in text and 'revision="r2"' in text and 'revision="r3"' in text
