"""Raw HTTP/1.1 requests with mutated heads: what no client library would send (pure)."""

from hypothesis import strategies as st

BODY = b'{"model":"m","prompt":"a","max_tokens":1}'
METHODS = (
    b"POST",
    b"GET",
    b"PUT",
    b"DELETE",
    b"OPTIONS",
    b"TRACE",
    b"CONNECT",
    b"PRI",
    b"post",
    b"PO ST",
    b"\x00",
    b"A" * 9000,
)
TARGETS = (
    *(
        b"/v1/completions",
        b"/v1/completions?a=%00",
        b"//v1/completions",
        b"/v1/./completions",
        b"/v1/../v1/completions",
    ),
    *(
        b"/v1/completions;x",
        b"/v1%2fcompletions",
        b"/%2e%2e/etc/passwd",
        b"http://other/v1/completions",
        b"*",
        b"",
        b"?",
    ),
    *(
        b"/v1/models",
        b"/v1/models/" + b"a" * 9000,
        b"/v1/models/\xff",
        b"/internal/routes",
        b"/metrics",
        b"/" + b"a/" * 4000,
    ),
)
VERSIONS = (b"HTTP/1.1", b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/9.9", b"http/1.1", b"HTTP/1.1 x", b"")
LINES = (
    *(b"Host: a", b"Host: b", b"Host:", b"Host: a/b", b"Host: [::1", b"Content-Length: 0", b"Content-Length: 41"),
    *(
        b"Content-Length: 42",
        b"Content-Length: -1",
        b"Content-Length: +41",
        b"Content-Length: 0x29",
        b"Content-Length: 41, 41",
    ),
    *(
        b"Content-Length: 99999999999999999999",
        b"Content-Length : 41",
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: x",
    ),
    *(b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding : chunked", b"TE: trailers", b"Connection: close"),
    *(
        b"Connection: upgrade",
        b"Upgrade: h2c",
        b"Upgrade: websocket",
        b"Expect: 100-continue",
        b"Expect: x",
        b" folded",
    ),
    *(
        b"\tfolded",
        b"X: a\x00b",
        b"X: a\rb",
        b"X: \xff\xfe",
        b": empty",
        b"no colon",
        b"X" * 9000 + b": a",
        b"X: " + b"a" * 20000,
    ),
    *(b"Content-Encoding: gzip", b"Content-Encoding: deflate", b"Content-Type: text/plain", b"Authorization: Bearer a"),
)
BODIES = (
    *(
        BODY,
        b"",
        BODY[:20],
        BODY + BODY,
        b"29\r\n" + BODY + b"\r\n0\r\n\r\n",
        b"29\r\n" + BODY + b"\r\n",
        b"FFFFFFFFFFFFFFFFF\r\n",
    ),
    *(
        b"-1\r\n\r\n",
        b"0\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n",
        b"29;x=" + b"y" * 9000 + b"\r\n" + BODY,
        b"\x1f\x8b\x08",
    ),
)


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    """A head with some odd lines, at times with changed bytes, and a body that need not match them."""
    lines = [b"Host: a", b"Content-Type: application/json", b"Content-Length: 41"]
    for line in draw(st.lists(st.sampled_from(LINES), max_size=4)):
        lines.insert(draw(st.integers(0, len(lines))), line)
    method = draw(st.sampled_from((b"POST", b"POST", b"POST", *METHODS)))
    target = draw(st.sampled_from((b"/v1/completions", b"/v1/completions", *TARGETS)))
    version = draw(st.sampled_from((b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.1", *VERSIONS)))
    ending = draw(st.sampled_from((b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r")))
    head = ending.join((b" ".join((method, target, version)), *lines, b"", b""))
    for _ in range(draw(st.sampled_from((0, 0, 1, 2)))):
        at = draw(st.integers(0, len(head) - 1))
        head = head[:at] + draw(st.binary(max_size=2)) + head[at + 1 :]
    return head + draw(st.sampled_from((BODY, BODY, *BODIES)))
