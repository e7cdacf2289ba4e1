"""What a response over HTTP is in gRPC: its status, its text and its metadata (pure)."""

import functools
import re
from collections.abc import Iterable, Mapping
from enum import IntEnum

import msgspec

from slipway_contracts.headers import FEEDBACK, REVISION


class GrpcStatus(IntEnum):
    """Codes of gRPC, as it names them."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


_STATUSES = {
    400: GrpcStatus.INVALID_ARGUMENT,
    401: GrpcStatus.UNAUTHENTICATED,
    403: GrpcStatus.PERMISSION_DENIED,
    404: GrpcStatus.NOT_FOUND,
    408: GrpcStatus.DEADLINE_EXCEEDED,
    413: GrpcStatus.RESOURCE_EXHAUSTED,
    415: GrpcStatus.INVALID_ARGUMENT,
    422: GrpcStatus.INVALID_ARGUMENT,
    429: GrpcStatus.RESOURCE_EXHAUSTED,
    431: GrpcStatus.RESOURCE_EXHAUSTED,
    499: GrpcStatus.CANCELLED,
    501: GrpcStatus.UNIMPLEMENTED,
    # As gRPC itself maps it. No server could be reached: a client may try again, which it does not after INTERNAL.
    502: GrpcStatus.UNAVAILABLE,
    503: GrpcStatus.UNAVAILABLE,
    504: GrpcStatus.DEADLINE_EXCEEDED,
}
# Headers of a response that calls get as trailing metadata. Others could make it longer than clients read.
_TRAILING = frozenset({"x-request-id", REVISION.lower(), "retry-after", "retry-after-ms", "x-should-retry"})
_TRAILING_PREFIX = "x-ratelimit-"
_MAX_TRAILING, _MAX_VALUE = 32, 256
_LONG = {FEEDBACK.lower(): 512}  # names of the route and the revision are in it
_VALUE = re.compile(r"[\x20-\x7e]*")
_NAME = re.compile(r"[0-9a-z_.-]+")
_MAX_DETAILS = 1000
_MAX_REFUSAL_BYTES = 64 << 10  # of an error response that is read for its message
_MAX_KNOWN = 64  # characters of a name that is remembered

# Metadata that does not become a header: these headers frame a body of HTTP, or have a meaning in HTTP alone.
_NOT_HEADERS = frozenset(
    {
        "host",
        "content-length",
        "content-type",
        "content-encoding",
        "transfer-encoding",
        "connection",
        "keep-alive",
        "proxy-connection",
        "upgrade",
        "te",
        "trailer",
        "expect",
        "accept",
        "accept-encoding",
        "last-event-id",
        "inference-header-content-length",
    }
)
Metadata = tuple[tuple[str, str], ...]


class _RefusalText(msgspec.Struct):
    message: str = ""


class _Refusal(msgspec.Struct):
    error: _RefusalText | str


_DECODER = msgspec.json.Decoder(_Refusal)


# Of an event that ends a stream, which has no status of HTTP.
_STATUSES_OF_CODES = {
    "timeout": 504,
    "upstream_died": 502,
    "drained": 503,
    "engine_crashed": 503,
    "request_crashed_engine": 422,
}


def status_of_event(code: str | None, kind: str) -> GrpcStatus:
    """The status of a stream that ended with an error event. `kind`: the error's type."""
    if code == "taken_over":
        return GrpcStatus.ABORTED
    otherwise = 400 if kind == "invalid_request_error" else 429 if kind == "rate_limit_error" else 500
    return status_of(_STATUSES_OF_CODES.get(code or "", otherwise))


def status_of(http_status: int) -> GrpcStatus:
    if 200 <= http_status < 300:
        return GrpcStatus.OK
    return _STATUSES.get(http_status, GrpcStatus.INTERNAL)


def details_of(http_status: int, body: bytes) -> str:
    """The message of an error response, whether OpenAI's `{"error": {"message": ...}}` or `{"error": ...}`.

    Any other body gives a text with the status.
    """
    try:
        error = _DECODER.decode(body if len(body) <= _MAX_REFUSAL_BYTES else b"").error
        text = error if isinstance(error, str) else error.message
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        text = ""
    return (text or f"The server answered with the status {http_status}.")[:_MAX_DETAILS]


def trailing(headers: Mapping[str, str]) -> Metadata:
    found = ((name.lower(), value) for name, value in headers.items())
    kept = [
        (name, value)
        for name, value in found
        if (name in _TRAILING or name in _LONG or name.startswith(_TRAILING_PREFIX))
        and len(value) <= _LONG.get(name, _MAX_VALUE)
        and _VALUE.fullmatch(value)
        and _NAME.fullmatch(name)
    ]
    return tuple(kept[:_MAX_TRAILING])


def to_headers(metadata: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Metadata of a call as headers of a request. Binary values, which HTTP has no form for, are left out."""
    return [(name, value) for name, value in metadata if _is_header(name) and _VALUE.fullmatch(value)]


def _is_header(name: str) -> bool:
    return _known_header(name) if len(name) <= _MAX_KNOWN else _becomes_header(name)


@functools.lru_cache(maxsize=1024)  # clients send the same names with each call
def _known_header(name: str) -> bool:
    return _becomes_header(name)


def _becomes_header(name: str) -> bool:
    if name in _NOT_HEADERS or name.startswith("grpc-") or name.endswith("-bin"):
        return False
    return _NAME.fullmatch(name) is not None


def timeout_header(remaining_s: float) -> str:
    """What is left of a deadline, as the header `grpc-timeout` has it: at most eight digits and a unit."""
    milliseconds = max(1, int(remaining_s * 1000))
    return f"{milliseconds}m" if milliseconds < 10**8 else f"{min(milliseconds // 1000, 10**8 - 1)}S"
