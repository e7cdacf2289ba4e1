"""Headers in both directions, heads that the plane serves, and credentials: as Rust reads them and as Python does."""

import asyncio
import string
from random import Random
from typing import Any

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser
from hypothesis import strategies as st
from multidict import CIMultiDict

from slipway_gateway.identity import api_keys
from slipway_gateway.identity.authenticate import AuthReason, AuthRefusal, RequestIdentity, authenticate
from slipway_gateway.identity.tenants import TenantTable
from slipway_gateway.wire import headers
from slipway_gateway.wire.inference import ROUTED_PATHS
from tests.plane.mutation import varying
from tests.plane.native import FEW, MILLION, SKIPPED, Pair, name_of, needs_plane, rust, twins

pytestmark = needs_plane

NAMES = (
    *("Host", "Content-Length", "Content-Type", "Accept", "Connection", "Keep-Alive", "TE", "Cookie", "Set-Cookie"),
    *("set-cookie2", "Authorization", "X-Api-Key", "api-key", "Upgrade", "Trailer", "X-Request-Id", "Last-Event-ID"),
    *("X-Slipway-Tenant", "x-slipway-resumable", "X-SLIPWAY-Stream", "X-Slipway-Prompt-Tokens", "X-Slipway-Shadow"),
    *("X-Slipway-Revision", "X-Slipway-Feedback", "X-Slipway-Other", "X-" + "long-" * 20, "Proxy-Connection", "x-a"),
)
VALUES = (
    "",
    "1",
    "keep-alive",
    "close, X-A",
    "x-a , TE",
    "12",
    "007",
    "1234567890",
    "id-1",
    "id 1",
    "i" * 129,
    "\u00e9",
)
HEADER_LISTS = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.one_of(
            st.sampled_from(VALUES).map(str.encode),
            st.text(string.printable[:95] + "\t", max_size=8).map(lambda text: text.strip().encode()),
            st.binary(max_size=4).filter(lambda value: not any(byte < 32 or byte == 127 for byte in value)),
        ),
    ),
    max_size=8,
)


def as_python(listed: list[tuple[str, bytes]]) -> CIMultiDict[str]:
    """As aiohttp reads header lines."""
    return CIMultiDict((name, value.decode("utf-8", "surrogateescape")) for name, value in listed)


def written(crossing: CIMultiDict[str]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in crossing.items()).encode()


def compare_crossing(case: tuple[list[tuple[str, bytes]], list[str], int | None, int]) -> None:
    listed, forwarded, limit, weight = case
    given = as_python(listed)
    sent = rust(twins.to_upstream, listed, "id-1", "t" if weight else "", forwarded, limit, weight)
    expected = headers.to_upstream(
        given, "id-1", "t" if weight else "", forwarded=forwarded, priority_limit=limit, weight=weight
    )
    assert sent in (SKIPPED, written(expected))
    received = rust(twins.to_client, listed, "id-1", "r1", forwarded)
    assert received in (SKIPPED, written(headers.to_client(given, "id-1", "r1", forwarded=forwarded)))
    if SKIPPED in (sent, received):
        assert any(name.lower() == "connection" and not value.isascii() for name, value in listed)
    assert twins.read_headers(listed) == (headers.request_id(given), headers.prompt_tokens(given))


def vary_crossing(case: Any, random: Random) -> Any:
    listed = list(case[0])
    for _ in range(random.randint(1, 3)):
        value = random.choice(VALUES).encode() if random.random() < 0.8 else bytes(random.choices(range(128, 256), k=2))
        listed.insert(random.randint(0, len(listed)), (random.choice(NAMES), value))
    forwarded = random.sample(["authorization", "cookie", "api-key", "x-api-key"], random.randint(0, 4))
    return listed, forwarded, random.choice((None, 0, -3, 10)), random.choice((0, 1, 1, 7))


CROSSING = st.tuples(
    HEADER_LISTS,
    st.lists(st.sampled_from(["authorization", "cookie", "api-key"]), max_size=2, unique=True),
    st.one_of(st.none(), st.integers(-9, 9)),
    st.integers(0, 3),
)

# -- heads

LINES = (
    *(
        b"Host: a\r\n",
        b"Content-Length: 3\r\n",
        b"content-length: 03\r\n",
        b"Content-Length: +3\r\n",
        b"Connection: close\r\n",
    ),
    *(
        b"Connection: Keep-Alive\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Expect: 100-continue\r\n",
        b"Upgrade: h2c\r\n",
    ),
    *(b"Last-Event-ID: 1\r\n", b"Origin: http://a\r\n", b"Authorization: Bearer x\r\n", b"X-Slipway-Tenant: t\r\n"),
    *(b"X-Slipway-Resumable: 1\r\n", b"Content-Encoding: gzip\r\n", b"X: \xc3\xa9\r\n", b"X:\r\n", b" folded\r\n"),
    *(b"Content-Length : 3\r\n", b"X : 1\r\n", b"TE: trailers\r\n", b"Accept: */*\r\n", b"X: " + b"v" * 5000 + b"\r\n"),
    *(
        b"Content-Length: 3, 3\r\n",
        b"Content-Length: 99999999999\r\n",
        b"HOST: b\r\n",
        b"\xe9: 1\r\n",
        b"X: a\x00b\r\n",
    ),
)
STARTS = (
    b"POST /v1/completions HTTP/1.1\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\n",
    b"GET /v1/completions HTTP/1.1\r\n",
    b"POST /v1/completions?x=1 HTTP/1.1\r\n",
    b"POST http://a/v1/completions HTTP/1.1\r\n",
    b"POST /v1/completions HTTP/1.0\r\n",
    b"POST  /v1/completions HTTP/1.1\r\n",
    b"\r\nPOST /v1/completions HTTP/1.1\r\n",
)
PLAIN = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n"
HEADS = st.builds(
    lambda start, lines: start + b"".join(lines) + b"\r\n",
    st.one_of(st.just(PLAIN), st.just(PLAIN), st.sampled_from(STARTS)),
    st.lists(st.sampled_from(LINES), max_size=5),
)
ORDINARY = (
    *(
        b"Accept: */*\r\n",
        b"User-Agent: OpenAI/Python 2.8.1\r\n",
        b"Content-Type: application/json\r\n",
        b"X-A:\t b \t\r\n",
    ),
    *(
        b"Connection: close\r\n",
        b"connection: Keep-Alive\r\n",
        b"X-Slipway-Resumable: 1\r\n",
        b"Authorization: Bearer a\r\n",
    ),
    *(b"Accept-Encoding: gzip, br\r\n", b"Cookie: a=b; c\r\n", b"X-Request-Id: 1\r\n", b"Referer:\r\n"),
)
HEAD_TOKENS = (*LINES, b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b",", b"0", b"\x0b", b"\x80", b"HTTP/1.1")
_loop = asyncio.new_event_loop()
_loop.close()


vary_head_bytes = varying(HEAD_TOKENS)


def vary_head(head: bytes, random: Random) -> bytes:
    """Another head: some are those of plain requests, in others bytes are changed."""
    if random.random() < 0.3:
        return vary_head_bytes(head, random)
    lines = [b"Host: a\r\n", b"Content-Length: %d\r\n" % random.choice((0, 3, 65_536, 70_000))]
    lines += random.sample(ORDINARY, random.randint(0, 5))
    random.shuffle(lines)
    plain = random.choice(STARTS[:2]) + b"".join(lines) + b"\r\n"
    return plain if random.random() < 0.4 else vary_head_bytes(plain, random)


def aiohttp_reads(head: bytes) -> Any:
    """The head as aiohttp reads it; None where it refuses it, or wants more."""
    parser = HttpRequestParser(BaseProtocol(_loop), _loop, 2**16, max_line_size=8190, max_field_size=8190)
    try:
        messages, _, _ = parser.feed_data(head)
    except HttpProcessingError:
        return None
    return messages[0][0] if messages else None


def compare_heads(head: bytes) -> None:
    plain = rust(twins.plain_head_of, head, list(ROUTED_PATHS), 65_536)
    if plain in (SKIPPED, None):
        return
    message = aiohttp_reads(head[: head.index(b"\r\n\r\n") + 4])
    assert message is not None, f"Rust serves what aiohttp refuses: {head!r}"
    path, length, keeps_alive = plain
    assert (message.method, message.path, tuple(message.version)) == ("POST", path, (1, 1))
    assert message.headers.getall("Content-Length") == [message.headers["Content-Length"]]
    assert int(message.headers["Content-Length"]) == length
    assert keeps_alive is not message.should_close
    assert not (message.chunked or message.upgrade or message.compression)


def test_a_header_that_may_come_once_is_left_where_it_comes_twice() -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Type: a/b\r\n"
    assert rust(twins.plain_head_of, head + b"\r\n", list(ROUTED_PATHS), 65_536) not in (SKIPPED, None)
    repeated = head + b"content-type: a/b\r\n\r\n"
    assert aiohttp_reads(repeated) is None
    assert rust(twins.plain_head_of, repeated, list(ROUTED_PATHS), 65_536) is SKIPPED


# -- credentials


def make_key(id_: str, secret: str) -> str:
    begin = f"slw_{id_}_{secret}"
    return f"{begin}_{api_keys.checksum(begin)}"


KEYS = st.builds(
    make_key,
    st.text(string.ascii_letters + string.digits, min_size=5, max_size=33),
    st.text(string.ascii_letters + string.digits, min_size=42, max_size=44),
)


def compare_keys(key: bytes) -> None:
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return
    assert (twins.key_id(text) or "") == api_keys.key_id(text)
    if text.isascii():
        assert twins.checksum(text) == api_keys.checksum(text)
    pepper = b"p" * 32
    right, wrong = api_keys.digest(text, pepper), api_keys.digest("x" + text, pepper)
    assert twins.find_key(text, pepper, [wrong, right.upper(), right[:-1], right, right]) == 3
    assert twins.find_key(text, pepper, [wrong]) is None
    assert twins.find_key(text, pepper, []) is None
    assert twins.find_key(text, b"", [right]) is None
    value = b"Bearer " + key
    if any(byte < 32 or byte > 126 for byte in value):
        return  # no value of a plain head
    compare_credentials([("Authorization", value)])


def compare_credentials(listed: list[tuple[str, bytes]]) -> None:
    found = rust(twins.credentials, listed)
    decided = authenticate(as_python(listed), TenantTable(), 0.0)
    if found == SKIPPED:
        return
    if found is None:
        assert decided == AuthRefusal(AuthReason.MISSING)
    else:  # the table has no pepper
        assert found.startswith("slw_")
        assert decided == AuthRefusal(AuthReason.NOT_READY)
        assert not isinstance(decided, RequestIdentity)


PAIRS = [
    Pair("crossing", CROSSING, compare_crossing, vary_crossing),
    Pair("heads", HEADS, compare_heads, vary_head),
    Pair("keys", KEYS.map(str.encode), compare_keys, varying((b"_", b"a", b"0", b"slw_", b" ", b"\xc3\xa9"))),
]


@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_rust_reads_heads_as_python_does_or_leaves_them(pair: Pair) -> None:
    pair.run(FEW)


@pytest.mark.extended
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_a_million_heads(pair: Pair) -> None:
    pair.run(MILLION)


def test_what_is_no_plain_head_is_left_to_python() -> None:
    reasons = {
        b"Transfer-Encoding: chunked": "framing",
        b"TE: trailers": "framing",
        b"Expect: 100-continue": "expectation",
        b"Upgrade: websocket": "connection",
        b"Connection: upgrade": "connection",
        b"Connection: close\r\nConnection: close": "connection",
        b"Last-Event-ID: 1": "resumption",
        b"Content-Encoding: gzip": "encoding",
        b"Content-Length: 3": "length",
        b"Host: b": "host",
        b"Origin: http://a": "browser",
        b"Authorization: a\r\nAuthorization: b": "credentials",
        b"X-Slipway-Tenant: t": "internal",
        b"X: \xc3\xa9": "no_text",
        b"X: " + b"v" * 4096: "long_line",
        b"X: 1\r\n" * 62 + b"X: 1": "lines",
    }
    for lines, reason in reasons.items():
        try:
            twins.plain_head_of(PLAIN + lines + b"\r\n\r\n", list(ROUTED_PATHS), 65_536)
        except twins.NotSure as error:
            assert str(error) == reason, lines[:60]
        else:
            raise AssertionError(f"served {lines[:60]!r}")
    assert twins.plain_head_of(PLAIN + b"\r\n", list(ROUTED_PATHS), 65_536) == ("/v1/completions", 3, True)
    assert twins.plain_head_of(PLAIN, list(ROUTED_PATHS), 65_536) is None
