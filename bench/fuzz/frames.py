"""HTTP/2 that no client library would send, in pieces: frames that lie, repeat, or belong to no stream (pure)."""

from hypothesis import strategies as st

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
KINDS = (*range(10), 77)
MODEL = b"\x0a\x01m"  # the first field of a ModelInferRequest
MESSAGES = (
    b"\0" + len(MODEL).to_bytes(4) + MODEL,
    b"\1" + len(MODEL).to_bytes(4) + MODEL,  # declared as compressed
    b"\0\xff\xff\xff\xff" + MODEL,
    b"\0\0\0\0\0",
    b"\0\0\0\0\x02\xff\xff",
    b"\0\0",
    b"",
)


def field(name: bytes, value: bytes) -> bytes:
    """A literal without an index and without Huffman codes (RFC 7541, section 6.2.2)."""
    return bytes((0, len(name))) + name + bytes((len(value),)) + value


# :method POST and :scheme http of the static table.
CALL = (
    b"\x83\x86"
    + field(b":path", b"/inference.GRPCInferenceService/ModelInfer")
    + field(b":authority", b"x")
    + field(b"content-type", b"application/grpc")
    + field(b"te", b"trailers")
)
FIELDS = (
    *(field(b"grpc-timeout", b"1n"), field(b"grpc-timeout", b"99999999999H"), field(b"content-length", b"3")),
    *(field(b"content-length", b"-1"), field(b"connection", b"close"), field(b"Upper", b"a"), field(b":path", b"/b")),
    *(field(b"", b""), field(b"a", b"b\x00\r\n"), field(b"grpc-encoding", b"gzip"), field(b"x-bin", b"%%%")),
    *(
        b"\x80",
        b"\xff\xff\xff\xff\xff\x0f",
        b"\x3f\xe1\xff\x03",
        b"\x20",
        b"\x40\x01a\x7f",
        b"\x00\xff\x80\x80\x80\x80",
    ),
)
FOUR_BYTES = tuple(number.to_bytes(4) for number in (0, 1, 2, 16_384, 65_535, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF))


def frame(kind: int, flags: int, stream: int, payload: bytes = b"", length: int = -1) -> bytes:
    """`length`: what the frame declares; -1: its own."""
    declared = len(payload) if length < 0 else length
    return declared.to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


@st.composite
def _frames(draw: st.DrawFn) -> bytes:
    """One frame, or a call in two."""
    stream = draw(st.sampled_from((1, 1, 3, 5, 0, 2, 0x7FFF_FFFF)))
    flags = draw(st.sampled_from((0, 1, 4, 4, 5, 8, 0x20, 0xFF)))
    kind = draw(st.sampled_from((HEADERS, HEADERS, DATA, DATA, *KINDS)))
    if kind == HEADERS:
        block = CALL + b"".join(draw(st.lists(st.sampled_from(FIELDS), max_size=2)))
        body = frame(DATA, draw(st.sampled_from((0, 1))), stream, draw(st.sampled_from(MESSAGES)))
        return frame(HEADERS, flags, stream, block) + draw(st.sampled_from((body, b"")))
    if kind == SETTINGS:
        pairs = st.tuples(st.integers(0, 9), st.sampled_from(FOUR_BYTES))
        payload = b"".join(name.to_bytes(2) + value for name, value in draw(st.lists(pairs, max_size=3)))
        return frame(kind, draw(st.sampled_from((0, 0, flags))), draw(st.sampled_from((0, 0, stream))), payload)
    payloads = st.one_of(st.sampled_from(MESSAGES), st.sampled_from(FOUR_BYTES), st.binary(max_size=40))
    payload, length = draw(payloads), draw(st.sampled_from((-1, -1, -1, 0, 5, 16_385, 0xFFFFFF)))
    return frame(kind, flags, stream, payload, length) * draw(st.sampled_from((1, 1, 1, 2, 50)))


@st.composite
def connections(draw: st.DrawFn) -> tuple[bytes, ...]:
    """What one client sends, in pieces."""
    sent = draw(
        st.sampled_from((PREFACE, PREFACE, PREFACE, PREFACE, PREFACE[:10], b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n"))
    )
    sent += frame(SETTINGS, 0, 0) + b"".join(draw(st.lists(_frames(), max_size=8)))
    for _ in range(draw(st.sampled_from((0, 0, 0, 1)))):
        at = draw(st.integers(0, len(sent) - 1))
        sent = sent[:at] + draw(st.binary(max_size=2)) + sent[at + 1 :]
    cuts = sorted(draw(st.lists(st.integers(0, len(sent)), max_size=4)))
    return tuple(sent[begin:end] for begin, end in zip((0, *cuts), (*cuts, len(sent)), strict=True) if begin < end)
