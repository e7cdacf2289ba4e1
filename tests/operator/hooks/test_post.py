"""One POST over real sockets: signed, bounded, and to nowhere that it must not reach."""

import asyncio
import hashlib
import hmac
import http
import json
import re
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import unused_port

from slipway_operator.hooks.post import Poster, signature
from slipway_operator.outbound.addresses import EgressPolicy
from slipway_operator.outbound.dialer import Dialer

ROOT = Path(__file__).resolve().parents[3]
NOW = 1_795_000_000.9


def poster_with(key_file=None):
    return Poster(Dialer(EgressPolicy(loopback=True), "hooks"), key_file, lambda: NOW)


@pytest.fixture
def poster():
    return poster_with()


async def post(poster, receiver, body=b"{}", key="k/1", timeout_s=5.0):
    return await poster.post(str(receiver.make_url("/gate")), body, key, timeout_s)


def answering(status, text="", **headers):
    async def reply(request):
        return web.Response(status=status, text=text, headers=headers)

    return reply


async def test_status_200_is_an_approval(poster, receiver):
    assert (await post(poster, receiver, b'{"a":1}', "u/r/1/0/gate/1")).message == "200 OK"
    ((headers, body),) = receiver.got
    assert (headers["Idempotency-Key"], headers["Content-Type"], body) == (
        "u/r/1/0/gate/1",
        "application/json",
        b'{"a":1}',
    )
    assert "X-Slipway-Signature" not in headers


@pytest.mark.parametrize(
    ("status", "ok", "again"),
    [
        *((status, True, False) for status in (200, 202, 299)),
        *((status, False, False) for status in (304, 400, 403, 404)),
        *((status, False, True) for status in (408, 425, 429, 500, 503)),
    ],
)
async def test_what_a_status_means(poster, receiver, status, ok, again):
    receiver.reply = answering(status)
    reply = await post(poster, receiver)
    assert (reply.ok, reply.again) == (ok, again)
    assert reply.message.startswith(str(status))


async def test_no_cookie_is_kept(poster, receiver):
    receiver.reply = answering(200, **{"Set-Cookie": "session=1"})
    await post(poster, receiver)
    await post(poster, receiver)
    assert "Cookie" not in receiver.got[1][0]


async def test_a_redirect_is_not_followed(poster, receiver):
    receiver.reply = answering(307, Location=str(receiver.make_url("/elsewhere")))
    reply = await post(poster, receiver)
    assert reply.message == "307 Temporary Redirect: redirects are not followed; write the final URL"
    assert len(receiver.got) == 1


@pytest.mark.finding(17)
@pytest.mark.attack_class(8)
@pytest.mark.parametrize("status", [200, 403, 500])
async def test_response_body_is_never_shown(poster, receiver, status):
    """Safety 17: the first line of the body, and the reason phrase, were in the status and in Events."""
    receiver.reply = answering(status, "s3cret\nsecond line")
    first = (await post(poster, receiver)).message

    async def named(request):
        return web.Response(status=status, reason="s3cret", headers={"X-Secret": "s3cret"})

    receiver.reply = named
    assert first == (await post(poster, receiver)).message == f"{status} {http.HTTPStatus(status).phrase}"


async def test_an_endless_body_is_not_read(poster, receiver):
    written = []

    async def reply(request):
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            try:
                await response.write(b"x" * 65536)
            except (ConnectionError, asyncio.CancelledError):
                return response
            written.append(65536)

    receiver.reply = reply
    assert (await post(poster, receiver)).message == "200 OK"
    assert sum(written) < 50_000_000, "the connection is closed, not drained"


async def test_a_body_that_is_no_text_harms_nothing(poster, receiver):
    async def reply(request):
        return web.Response(body=b"\xff\xfe\x00", headers={"Content-Encoding": "gzip"})

    receiver.reply = reply
    assert (await post(poster, receiver)).ok


async def test_a_hook_that_hangs_is_left_after_its_time(poster, receiver):
    released = asyncio.Event()

    async def reply(request):
        await released.wait()
        return web.Response()

    receiver.reply = reply
    answer = await post(poster, receiver, timeout_s=0.05)
    released.set()
    assert (answer.outcome, answer.message, answer.again) == ("timeout", "no answer within 0.05 s", True)


async def test_a_body_that_hangs_holds_up_nothing(poster, receiver):
    released = asyncio.Event()

    async def reply(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"o")
        await released.wait()
        return response

    receiver.reply = reply
    answer = await post(poster, receiver)
    released.set()
    assert answer.ok


async def test_refused_connection(poster):
    reply = await poster.post(f"http://127.0.0.1:{unused_port()}/", b"", "k", 5)
    assert (reply.outcome, reply.again) == ("error", True)
    assert "Connect" in reply.message or "refused" in reply.message


async def test_a_host_that_does_not_exist(poster):
    reply = await poster.post("http://no-such-host.invalid/", b"", "k", 20)
    assert reply.outcome in ("error", "timeout")
    assert reply.again


@pytest.mark.parametrize("url", ["ftp://host/x", "file:///etc/passwd", "gate"])
async def test_other_schemes_are_refused(poster, url):
    reply = await poster.post(url, b"", "k", 5)
    assert (reply.outcome, reply.message) == ("blocked", "the URL must start with http:// or https://")


async def test_the_signature_verifies_as_documented(receiver, tmp_path):
    """Runs the example of docs/hooks.md on a received request."""
    (tmp_path / "key").write_text("s3cret\n")
    await post(poster_with(tmp_path / "key"), receiver, json.dumps({"name": "chat"}).encode())
    ((headers, body),) = receiver.got
    assert headers["X-Slipway-Signature"] == signature(b"s3cret", 1_795_000_000, body)
    example = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "hooks.md").read_text(), re.DOTALL)
    assert example
    documented: dict = {}
    exec(example[1], documented)
    verify = documented["is_genuine"]
    header = headers["X-Slipway-Signature"]
    assert verify(b"s3cret", header, body, now=1_795_000_010)
    assert not verify(b"s3cret", header, body + b" ", now=1_795_000_010)
    assert not verify(b"other", header, body, now=1_795_000_010)
    assert not verify(b"s3cret", header, body, now=1_795_000_000 + 301), "too old"
    assert not verify(b"s3cret", header.replace("t=1", "t=2"), body, now=2_795_000_000)


async def test_a_new_key_is_used_without_a_restart(receiver, tmp_path):
    key = tmp_path / "key"
    poster = poster_with(key)
    for secret in ("one", "two"):
        key.write_text(secret)
        await post(poster, receiver)
    expected = [hmac.new(s, b"1795000000.{}", hashlib.sha256).hexdigest() for s in (b"one", b"two")]
    assert [headers["X-Slipway-Signature"].partition("v1=")[2] for headers, _ in receiver.got] == expected


@pytest.mark.parametrize(
    ("content", "message"), [(None, "the signing key cannot be read: No such file"), ("\n", "the signing key is empty")]
)
async def test_nothing_is_sent_when_the_signing_key_is_unusable(receiver, tmp_path, content, message):
    if content is not None:
        (tmp_path / "key").write_text(content)
    reply = await post(poster_with(tmp_path / "key"), receiver)
    assert (reply.outcome, reply.again) == ("error", True)
    assert reply.message.startswith(message)
    assert receiver.got == []
