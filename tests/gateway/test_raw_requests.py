"""Bytes that no client library sends: odd paths, hosts and heads reach the right handler or none; nothing leaks."""

import asyncio
import json

import pytest

from .harness import Gateway, drop, echo, fixed_response_upstream, gateway, until_quiet, upstream

BODY = b'{"model":"chat"}'


async def ask(gate: Gateway, head: bytes, body: bytes = BODY, *, admin: bool = False) -> tuple[int, bytes]:
    """Status and all that comes until the connection is quiet or closed."""
    url = gate.admin_url if admin else gate.url
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    try:
        writer.write(head + body)
        response = await until_quiet(reader)
        return int(response[9:12] or 0), response
    finally:
        await drop(writer)


def post(target: bytes, *lines: bytes, host: bytes = b"Host: x", length: int = len(BODY)) -> bytes:
    wanted = [b"POST %s HTTP/1.1" % target, host, b"Content-Length: %d" % length, *lines]
    return b"\r\n".join(line for line in wanted if line) + b"\r\n\r\n"


@pytest.mark.attack_class(10)
@pytest.mark.parametrize(
    "target",
    [
        b"//v1/completions",
        b"/v1//completions",
        b"/v1/completions;x=1",
        b"/v1/completions/",
        b"/v1/completions/..;/internal/routes",
        b"/v1/%2e%2e/internal/routes",
        b"/v1/../internal/routes",
        b"/v1/completions/../../internal/routes",
        b"/%2e/internal/routes",
        b"/internal/routes",
        b"/metrics",
        b"/readyz",
        b"/v1%2Fcompletions",
        b"/V1/completions",
        b"/v1/completions%00",
        b"/v1/completions%20",
        b"*",
    ],
)
async def test_path_outside_the_api_reaches_no_pod_and_no_admin_page(target: bytes) -> None:
    async with upstream(echo) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        status, response = await ask(gate, post(target))
        if status == 200:
            # A path that only looks different: the pod sees what the client wrote, and it is one of the API.
            assert server.seen[0].rel_url.raw_path_qs.encode() == target and b"/v1/completions" in target
        else:
            assert status in (400, 404, 405) and not server.bodies
        assert b"incarnation" not in response and b"slipway_gateway_" not in response
        assert sum(gate.outcomes().values()) == 1


@pytest.mark.attack_class(8, 10)
@pytest.mark.parametrize(
    "target",
    [
        b"http://169.254.169.254/v1/completions",
        b"http://evil.example:1/v1/completions",
        b"http://user:pass@127.0.0.1:1/v1/completions",
        b"http://[::1]:1/v1/completions",
    ],
)
async def test_an_absolute_form_chooses_no_host(target: bytes) -> None:
    async with upstream(echo) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        status, _ = await ask(gate, post(target))
        assert status in (200, 400, 404)
        for seen in server.seen:
            assert seen.rel_url.raw_path_qs == "/v1/completions", "no host of the client's crosses"
            assert seen.headers["Host"] == server.url.removeprefix("http://")


@pytest.mark.attack_class(8, 9, 10)
@pytest.mark.parametrize(
    "line",
    [
        b"Host: 169.254.169.254",
        b"X-Forwarded-Host: evil.example",
        b"X-Original-URL: /internal/routes",
        b"X-Rewrite-URL: /internal/routes",
        b"X-HTTP-Method-Override: GET",
        b"X-Slipway-Revision: other",
        b"X-Slipway-Tenant: " + b"f" * 32,
        b"X-Slipway-Shadow: 1",
        b"X-Slipway-Resume: 1f-674f0000-" + b"a" * 32 + b".1.00000001",
        b"X-Slipway-Resume-Bytes: 5",
        b"X-Slipway-Returns: 1",
        b"X-Slipway-Priority-Limit: -1000",
    ],
)
async def test_no_header_of_a_client_is_an_address_or_state_of_ours(line: bytes) -> None:
    name, _, value = line.decode().partition(": ")
    async with upstream(echo) as server, upstream(echo) as other, gateway() as gate:
        gate.route(("rev", 100, [server.url]), ("other", 0, [other.url]))
        head = post(b"/v1/completions", host=line) if name == "Host" else post(b"/v1/completions", line)
        status, response = await ask(gate, head)
        assert status == 200 and not other.bodies
        (seen,) = server.seen
        assert seen.method == "POST" and seen.rel_url.raw_path_qs == "/v1/completions"
        assert seen.headers["Host"] == server.url.removeprefix("http://")
        if name.startswith("X-Slipway"):
            assert value not in seen.headers.getall(name, [])
            assert b"X-Slipway-Revision: rev\r\n" in response


@pytest.mark.attack_class(9)
async def test_a_request_id_is_opaque_and_no_key_of_shared_state() -> None:
    """Two clients with one id get their own answers at the same time."""
    async with upstream(echo) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        bodies = [b'{"model":"chat","n":%d}' % n for n in range(8)]
        heads = [post(b"/v1/completions", b"X-Request-Id: same", length=len(body)) for body in bodies]
        found = await asyncio.gather(*(ask(gate, head, body) for head, body in zip(heads, bodies, strict=True)))
        for (_, response), body in zip(found, bodies, strict=True):
            assert json.loads(response.partition(b"\r\n\r\n")[2])["body"] == body.decode()
        status, response = await ask(gate, post(b"/v1/completions", b"X-Request-Id: ../../etc/passwd\x01"))
        assert b"passwd" not in response and status in (200, 400)


@pytest.mark.attack_class(10)
@pytest.mark.parametrize(
    "head",
    [
        post(b"/v1/completions", b"Host: y"),
        post(b"/v1/completions", host=b"Host : x"),
        post(b"/v1/completions", b" folded: 1"),
        post(b"/v1/completions", b"X-A\x00: 1"),
        post(b"/v1/completions", b"X-A: a\x00b"),
        post(b"/v1/completions", b"Transfer-Encoding : chunked"),
        post(b"/v1/comp letions"),
        b"POST /v1/completions\r\n\r\n",
        b"POST /v1/completions HTTP/9.9\r\nHost: x\r\n\r\n",
        b"POST\t/v1/completions\tHTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
async def test_malformed_and_doubled_heads_are_refused_or_harmless(head: bytes) -> None:
    async with upstream(echo) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        status, response = await ask(gate, head)
        assert status in (200, 400, 404, 405) or not response
        assert len(server.bodies) <= 1 and set(server.bodies) <= {BODY}, (
            "one request at most, with the body that was sent"
        )
        assert b"Traceback" not in response and b"aiohttp." not in response


@pytest.mark.attack_class(20)
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b"[" * 50_000, 400),
        (b'{"model":' + b"[" * 5000, 400),
        (b'{"model":"no/such"}', 404),
        (b'{"model":"' + b"x" * 5000 + b'"}', 404),
        (b'{"model":1}', 400),
    ],
)
async def test_error_bodies_contain_no_internal_details(body: bytes, status: int) -> None:
    async with upstream(echo) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        found, response = await ask(gate, post(b"/v1/completions", length=len(body)), body)
        assert found == status and len(response) < 1500
        error = json.loads(response.partition(b"\r\n\r\n")[2])["error"]
        assert set(error) == {"message", "type", "param", "code"}
        for secret in (server.url.encode(), b"127.0.0.1", b"Traceback", b"slipway_gateway", b".py", b"0x7"):
            assert secret not in response


@pytest.mark.attack_class(20)
async def test_an_unreachable_pod_is_not_named() -> None:
    async with gateway() as gate:
        gate.route(("rev", 100, ["http://127.0.0.1:1"]))
        status, response = await ask(gate, post(b"/v1/completions"))
        assert status == 0 or b"127.0.0.1" not in response
        async with await gate.post() as answer:
            assert answer.status == 502 and "127.0.0.1" not in await answer.text()


@pytest.mark.attack_class(10, 20)
@pytest.mark.parametrize("target", [b"/v1/completions", b"/v1/models", b"/no/such/path"])
async def test_an_expectation_of_any_bytes_is_refused_in_words(target: bytes) -> None:
    """Found by fuzzing: bytes that are no text in Expect were answered 500."""
    async with gateway() as gate:
        status, response = await ask(gate, post(target, b"Expect: 100-continP\xffe"))
        assert status == 417 and b"expectation_failed" in response
        assert sum(gate.outcomes().values()) == 1


@pytest.mark.attack_class(15, 20)
@pytest.mark.parametrize("target", [b"/%0A", b"/v1/%0Ax", b"/v1/models/%0A", b"/api/v1/models/%0A/generate"])
async def test_a_path_with_a_line_break_is_refused_and_counted(target: bytes) -> None:
    """Seen: a pattern of `.` does not match it, so aiohttp answered 404 in its own words, in no counter."""
    async with gateway() as gate:
        gate.route(("rev", 100, ["http://127.0.0.1:1"]))
        status, response = await ask(gate, post(target))
        assert status == 404 and b'"error"' in response
        assert sum(gate.outcomes().values()) == 1


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhello",
        b"HTTP/1.1 999 Odd\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 600 Odd\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 099 Odd\r\nContent-Length: 2\r\n\r\n{}",
    ],
)
async def test_a_status_outside_of_200_to_599_never_reaches_a_client(response: bytes) -> None:
    async with fixed_response_upstream(response) as url, gateway() as gate:
        gate.route(("rev", 100, [url]))
        async with await gate.post() as answer:
            assert answer.status == 502 and (await answer.json())["error"]["code"] == "bad_response"
        assert gate.outcomes() == {"upstream_error": 1}


async def test_responses_of_100_before_the_final_one_are_passed_over() -> None:
    response = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    )
    async with fixed_response_upstream(response) as url, gateway() as gate:
        gate.route(("rev", 100, [url]))
        async with await gate.post() as answer:
            assert (answer.status, await answer.read()) == (200, b"{}")
