"""One POST over real sockets: signed, bounded, and to nowhere that it must not reach."""

import asyncio
import hashlib
import hmac
import json
import re
import socket
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import unused_port

from slipway_operator.hooks.post import MESSAGE_LIMIT_CHARS, Poster, is_local, signature

ROOT = Path(__file__).resolve().parents[3]
NOW = 1_795_000_000.9


@pytest.fixture
async def poster():
    async with Poster(None, True, lambda: NOW) as poster:
        yield poster


async def post(poster, receiver, body=b"{}", key="k/1", timeout_s=5.0):
    return await poster.post(str(receiver.make_url("/gate")), body, key, timeout_s)


def answering(status, text="", **headers):
    async def reply(request):
        return web.Response(status=status, text=text, headers=headers)

    return reply


async def test_a_yes_with_its_words(poster, receiver):
    assert (await post(poster, receiver, b'{"a":1}', "u/r/1/0/gate/1")).message == "200 OK: fine"
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


async def test_an_endless_body_is_read_to_its_limit(poster, receiver):
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
    reply_got = await post(poster, receiver)
    assert reply_got.ok
    assert len(reply_got.message) == MESSAGE_LIMIT_CHARS
    assert reply_got.message.startswith("200 OK: xxx")
    assert sum(written) < 50_000_000, "the connection is closed, not drained"


async def test_the_message_is_the_first_line_and_printable(poster, receiver):
    receiver.reply = answering(403, "\n not\x1b[31m yet \r\nsecond line")
    assert (await post(poster, receiver)).message == "403 Forbidden: not [31m yet"


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


async def test_a_body_that_hangs_is_left_after_its_time(poster, receiver):
    released = asyncio.Event()

    async def reply(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"o")
        await released.wait()
        return response

    receiver.reply = reply
    answer = await post(poster, receiver, timeout_s=0.05)
    released.set()
    assert answer.outcome == "timeout"


async def test_nobody_listens(poster):
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


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"])
async def test_the_machine_itself_is_refused_by_whatever_name(receiver, host):
    async with Poster(None, False, lambda: NOW) as poster:
        reply = await poster.post(f"http://{host}:{receiver.port}/", b"", "k", 5)
    assert (reply.outcome, reply.again) == ("blocked", False), reply.message
    assert reply.message == "hooks may not call loopback, link-local or multicast addresses"
    assert receiver.got == []


@pytest.mark.parametrize(
    ("address", "local"),
    [
        *((address, True) for address in ("127.0.0.1", "127.8.9.1", "169.254.169.254", "0.0.0.0", "224.0.0.1")),
        *((address, True) for address in ("::1", "fe80::1%eth0", "::", "ff02::1", "::ffff:169.254.169.254")),
        # Services and pods of a cluster.
        *((address, False) for address in ("10.96.0.10", "192.168.1.2", "172.16.3.4", "fd00::1", "8.8.8.8")),
    ],
)
def test_which_addresses_are_local(address, local):
    assert is_local(address) is local


async def test_every_address_of_a_host_is_looked_at(receiver, monkeypatch):
    both = [
        {"hostname": "h", "host": host, "port": receiver.port, "family": family, "proto": 0, "flags": 0}
        for host, family in (("::1", socket.AF_INET6), ("127.0.0.1", socket.AF_INET))
    ]

    async def resolve(*_, **__):
        return both

    async with Poster(None, False, lambda: NOW) as poster:
        monkeypatch.setattr(poster._session.connector._resolver, "resolve", resolve)
        reply = await poster.post(f"http://both.tools.svc:{receiver.port}/", b"", "k", 5)
    assert reply.outcome == "blocked"


async def test_a_url_that_is_none_is_not_tried_again(poster):
    reply = await poster.post("http://2130706433/", b"", "k", 5)
    assert (reply.outcome, reply.again) == ("blocked", False)
    assert reply.message.startswith("the URL is not valid: ")


async def test_the_signature_verifies_as_documented(receiver, tmp_path):
    """The example of docs/hooks.md is run, on what really arrived."""
    (tmp_path / "key").write_text("s3cret\n")
    async with Poster(tmp_path / "key", True, lambda: NOW) as poster:
        await post(poster, receiver, json.dumps({"name": "chat"}).encode())
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
    async with Poster(key, True, lambda: NOW) as poster:
        for secret in ("one", "two"):
            key.write_text(secret)
            await post(poster, receiver)
    expected = [hmac.new(s, b"1795000000.{}", hashlib.sha256).hexdigest() for s in (b"one", b"two")]
    assert [headers["X-Slipway-Signature"].partition("v1=")[2] for headers, _ in receiver.got] == expected


@pytest.mark.parametrize(
    ("content", "says"), [(None, "the signing key cannot be read: No such file"), ("\n", "the signing key is empty")]
)
async def test_without_its_key_nothing_is_sent_unsigned(receiver, tmp_path, content, says):
    if content is not None:
        (tmp_path / "key").write_text(content)
    async with Poster(tmp_path / "key", True, lambda: NOW) as poster:
        reply = await post(poster, receiver)
    assert (reply.outcome, reply.again) == ("error", True)
    assert reply.message.startswith(says)
    assert receiver.got == []
