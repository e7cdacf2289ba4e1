"""Header blocks (RFC 7541) and what a request's fields must be (RFC 9113, section 8)."""

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from hpack import Decoder
from hpack.exceptions import HPACKError, OversizedHeaderListError

from . import frames
from .frames import ConnectionFault, ErrorCode, Frame, StreamFault

_PSEUDO = frozenset({":method", ":scheme", ":path", ":authority"})
_OF_CONNECTION = frozenset({"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"})
_NAME = re.compile(r"[0-9a-z!#$%&'*+.^_`|~-]+")
# Whitespace at either end, and NUL, CR and LF anywhere, would mean another thing in HTTP/1.1.
_BAD_VALUE = re.compile(r"[\0\r\n]|^[ \t]|[ \t]$")
_DIGITS = re.compile(r"[0-9]{1,18}")
# What a block, and its fields when they are decoded, may take, in sizes of requests that are served. One between the
# two sizes costs its stream alone; after a larger one the state of the decoder is lost, and so the connection.
_READ = 4
_MAX_RESIZES = 2
_FIELD_BYTES = 32  # beside its text (RFC 9113, section 6.5.2)
_MAX_KNOWN = 128  # characters of a field that is remembered

Fields = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The head of a request. `content_length`: -1 without one. `size_bytes`: of all fields, as HTTP/2 counts them."""

    method: str
    scheme: str
    path: str
    authority: str
    fields: Fields
    content_length: int
    size_bytes: int


class HeaderDecoder:
    """Decodes the header blocks of one connection, in their order. `max_bytes`: of the fields of a request."""

    def __init__(self, max_bytes: int) -> None:
        self._decoder = Decoder(max_header_list_size=_READ * max_bytes)

    def decode(self, block: bytes) -> Fields:
        """Raises ConnectionFault: the block is malformed or much too long, and the connection cannot go on."""
        if _resizes_often(block):
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, "a header block changes the size of the table often")
        try:
            return [(str(name), str(value)) for name, value in self._decoder.decode(block)]
        except OversizedHeaderListError:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header block is much too long") from None
        except (HPACKError, UnicodeDecodeError, IndexError):
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, "a header block cannot be decoded") from None


def _resizes_often(block: bytes) -> bool:
    """Whether a block begins with more changes of the table's size than the two that RFC 7541 knows (section 4.2).

    The decoder takes any number of them, which takes it longer than fields do.
    """
    at, changes = 0, 0
    while at < len(block) and block[at] >> 5 == 1 and changes <= _MAX_RESIZES:
        changes += 1
        is_long = block[at] & 0x1F == 0x1F
        at += 1
        while is_long and at < len(block):
            is_long = block[at] >= 0x80
            at += 1
    return changes > _MAX_RESIZES


class HeaderBlock:
    """A header block whose frames arrive: HEADERS and CONTINUATION. `max_bytes`: of the fields of a request."""

    def __init__(self, frame: Frame, max_bytes: int) -> None:
        """Raises ConnectionFault: its frame is malformed, or too long."""
        self.stream_id, self.ends_stream = frame.stream_id, bool(frame.flags & frames.END_STREAM)
        self._left = max(_READ * max_bytes, frames.MAX_FRAME_BYTES)
        self._parts: list[bytes] = []
        self.whole = False
        self.fault: StreamFault | None = None  # raised once the block is decoded, which later blocks depend on
        payload, skipped = frames.unpadded(frame), 0
        if frame.flags & frames.HAS_PRIORITY:
            skipped = frames.PRIORITY_BYTES
            if len(payload) < skipped:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "HEADERS without room for their priority")
            self._check(payload)
        self.add(payload[skipped:], frame)

    def add(self, part: bytes, frame: Frame) -> None:
        """Adds what a frame has of the block. Raises ConnectionFault: the block is too long."""
        self._parts.append(part)
        self._left -= len(part)
        if self._left < 0:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header block is too long")
        self.whole = bool(frame.flags & frames.END_HEADERS)

    def _check(self, priority: bytes) -> None:
        try:
            frames.check_dependency(self.stream_id, priority)
        except StreamFault as fault:
            self.fault = fault

    def encoded(self) -> bytes:
        return b"".join(self._parts)


def request_head(stream_id: int, fields: Fields) -> RequestHead:
    """Checks the fields of a request.

    Raises:
        StreamFault: they are malformed.
    """

    def malformed(text: str) -> StreamFault:
        return StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, text)

    pseudo: dict[str, str] = {}
    regular: Fields = []
    content_length, size = -1, 0
    for field in fields:
        name, value = field
        size += len(name) + len(value) + _FIELD_BYTES
        if name.startswith(":"):
            if regular or name in pseudo or name not in _PSEUDO:
                raise malformed(f"the pseudo-header {name!r} is unknown, or not where it belongs")
            pseudo[name] = value
            continue
        if problem := _problem(name, value):
            raise malformed(problem)
        if name == "content-length":
            content_length = int(value)
        regular.append(field)
    method, scheme, path = pseudo.get(":method"), pseudo.get(":scheme"), pseudo.get(":path")
    if not (method and scheme and path) or any(_BAD_VALUE.search(value) for value in pseudo.values()):
        raise malformed("a request has :method, :scheme and :path")
    return RequestHead(method, scheme, path, pseudo.get(":authority", ""), regular, content_length, size)


def check_trailers(stream_id: int, fields: Fields) -> None:
    """Raises StreamFault: the fields after a request's body are malformed."""
    for name, value in fields:
        if problem := _problem(name, value):
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, problem)


def _problem(name: str, value: str) -> str:
    """Returns what is wrong with a field; "" where nothing is."""
    return _known_problem(name, value) if len(name) + len(value) <= _MAX_KNOWN else _found_problem(name, value)


@functools.lru_cache(maxsize=2048)  # clients send the same fields with each request
def _known_problem(name: str, value: str) -> str:
    return _found_problem(name, value)


def _found_problem(name: str, value: str) -> str:
    if not _NAME.fullmatch(name):
        return "the name of a field has characters that names cannot have"
    if name in _OF_CONNECTION or (name == "te" and value != "trailers"):
        return f"the field {name!r} belongs to HTTP/1.1"
    if _BAD_VALUE.search(value):
        return f"the value of the field {name!r} has characters that values cannot have"
    if name == "content-length" and not _DIGITS.fullmatch(value):
        return "content-length is no length"
    return ""


_STATUSES = {200: b"\x88", 204: b"\x89", 206: b"\x8a", 304: b"\x8b", 400: b"\x8c", 404: b"\x8d", 500: b"\x8e"}


def encode_status(status: int) -> bytes:
    """Encodes `:status`; it comes first in a response's block."""
    return _STATUSES.get(status) or b"\x08" + _text(str(status).encode())


def encode_fields(fields: Iterable[tuple[str, str]]) -> bytes:
    """Encodes fields as literals without an index: they need no state that both sides must agree on."""
    return b"".join(b"\x00" + _text(name.encode("ascii")) + _text(value.encode("utf-8")) for name, value in fields)


def _text(raw: bytes) -> bytes:
    length = len(raw)
    if length < 127:
        return bytes((length,)) + raw
    length -= 127
    made = bytearray(b"\x7f")
    while length >= 128:
        made.append(length & 127 | 128)
        length >>= 7
    made.append(length)
    return bytes(made) + raw
