"""Frames of HTTP/2 (RFC 9113, sections 4 and 6): reads them from bytes, encodes those that a server sends (pure)."""

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9
MAX_FRAME_BYTES = 16384  # the size that every side takes; this server takes no more
MAX_STREAM_ID = (1 << 31) - 1
MAX_WINDOW = (1 << 31) - 1
INITIAL_WINDOW = 65535

# Types of frames.
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
# Flags.
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20
# Settings.
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = (
    range(1, 7)
)

_ID_MASK = 0x7FFFFFFF
_HEAD = struct.Struct(">HBBBI")  # length in 16 and 8 bits, type, flags, stream
_SETTING = struct.Struct(">HI")
_WORD = struct.Struct(">I")


class ErrorCode(IntEnum):
    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class ConnectionFault(Exception):
    """The client broke a rule that ends its connection."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class StreamFault(Exception):
    """The client broke a rule that ends one of its streams."""

    def __init__(self, stream_id: int, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.stream_id, self.code = stream_id, code


class Frame(NamedTuple):
    kind: int
    flags: int
    stream_id: int
    payload: bytes


class FrameReader:
    """Splits what arrives on a connection into frames. It holds at most one that is not whole."""

    def __init__(self) -> None:
        self._rest = b""
        self._expects_preface = True

    @property
    def is_partial(self) -> bool:
        """Whether a part of a frame, or of the preface, has arrived."""
        return bool(self._rest)

    @property
    def began(self) -> bool:
        """Whether the client's preface has arrived."""
        return not self._expects_preface

    def frames(self, data: bytes) -> Iterator[Frame]:
        """Yields the frames that are whole with `data`; it must be exhausted.

        Raises:
            ConnectionFault: the client speaks no HTTP/2, or a frame is too long.
        """
        if self._rest:
            data, self._rest = self._rest + data, b""
        at, end = 0, len(data)
        if self._expects_preface:
            if not PREFACE.startswith(data[: len(PREFACE)]):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the connection does not begin with HTTP/2's preface")
            if end < len(PREFACE):
                self._rest = data
                return
            self._expects_preface, at = False, len(PREFACE)
        while end - at >= HEAD_BYTES:
            high, low, kind, flags, stream_id = _HEAD.unpack_from(data, at)
            length = high << 8 | low
            if length > MAX_FRAME_BYTES:
                raise ConnectionFault(
                    ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes: {MAX_FRAME_BYTES} are taken"
                )
            after = at + HEAD_BYTES + length
            if after > end:
                break
            yield Frame(kind, flags, stream_id & _ID_MASK, data[at + HEAD_BYTES : after])
            at = after
        self._rest = data[at:]


# Kinds of frames that belong to a stream, and those that belong to the connection; WINDOW_UPDATE may be either.
_OF_STREAMS = frozenset({DATA, HEADERS, PRIORITY, RST_STREAM, CONTINUATION})
_OF_CONNECTION = frozenset({SETTINGS, PING, GOAWAY})
_LENGTHS = {RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
PRIORITY_BYTES, _GOAWAY_BYTES, _SETTING_BYTES = 5, 8, 6


def check(frame: Frame) -> None:
    """Checks what a frame of its kind must be, whatever came before it.

    Raises:
        ConnectionFault, StreamFault: it is on the wrong kind of stream, or has another length.
    """
    kind, length = frame.kind, len(frame.payload)
    if (kind in _OF_STREAMS and not frame.stream_id) or (kind in _OF_CONNECTION and frame.stream_id):
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"a frame of kind {kind} on stream {frame.stream_id}")
    if kind == PUSH_PROMISE or (kind == HEADERS and not frame.stream_id % 2):
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "clients open streams with odd numbers, and push nothing")
    if kind == PRIORITY and length != PRIORITY_BYTES:
        raise StreamFault(frame.stream_id, ErrorCode.FRAME_SIZE_ERROR, "PRIORITY of another length")
    if (
        length != _LENGTHS.get(kind, length)
        or (kind == SETTINGS and (length % _SETTING_BYTES or (frame.flags & ACK and length)))
        or (kind == GOAWAY and length < _GOAWAY_BYTES)
    ):
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"a frame of kind {kind} has {length} bytes")


def unpadded(frame: Frame) -> bytes:
    """Returns the payload of a DATA or HEADERS frame without its padding. Raises ConnectionFault: there is too much."""
    payload = frame.payload
    if not frame.flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the padding is longer than its frame")
    return payload[1 : len(payload) - payload[0]]


def check_dependency(stream_id: int, payload: bytes) -> None:
    """Checks a priority, which has no effect otherwise. Raises StreamFault: the stream depends on itself."""
    if word(payload) & MAX_STREAM_ID == stream_id:
        raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")


def word(payload: bytes) -> int:
    """Returns the unsigned 32 bits at the beginning."""
    return int(_WORD.unpack_from(payload)[0])


def settings_of(payload: bytes) -> Iterator[tuple[int, int]]:
    """Yields identifier and value of each setting in a SETTINGS frame whose length was checked."""
    return _SETTING.iter_unpack(payload)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    length = len(payload)
    return _HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream_id) + payload


def settings(values: Iterable[tuple[int, int]]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*one) for one in values))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, _WORD.pack(increment))


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    return frame(RST_STREAM, 0, stream_id, _WORD.pack(code))


def goaway(last_stream_id: int, code: ErrorCode, text: str = "") -> bytes:
    debug = text.encode("ascii", "replace")[:200]
    return frame(GOAWAY, 0, 0, _WORD.pack(last_stream_id) + _WORD.pack(code) + debug)


def header_frames(stream_id: int, block: bytes, *, ends_stream: bool) -> bytes:
    """Encodes a header block as HEADERS and, where it is longer than a frame, CONTINUATION frames."""
    flags = END_STREAM if ends_stream else 0
    if len(block) <= MAX_FRAME_BYTES:
        return frame(HEADERS, flags | END_HEADERS, stream_id, block)
    parts = [block[at : at + MAX_FRAME_BYTES] for at in range(0, len(block), MAX_FRAME_BYTES)]
    made = [frame(HEADERS, flags, stream_id, parts[0])]
    made += [frame(CONTINUATION, 0, stream_id, part) for part in parts[1:-1]]
    return b"".join([*made, frame(CONTINUATION, END_HEADERS, stream_id, parts[-1])])
