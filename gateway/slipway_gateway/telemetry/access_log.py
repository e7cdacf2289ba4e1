"""The access log: one JSON line for each request that ends. It has no content of requests or responses."""

import re
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

import msgspec
from aiohttp import web

from slipway_process.network.host_names import shown

from ..wire.headers import REQUEST_ID
from .line_writer import LineWriter
from .metrics import GatewayMetrics, RequestRecord
from .rotated_file import OpenStream, RotatedFile

if TYPE_CHECKING:
    from slipway_plane import _native

OFF, STDOUT = "off", "stdout"
LOGGER = "slipway_gateway.access"
# Most characters of values that clients choose freely.
MAX_PATH, MAX_ID, MAX_METHOD, MAX_ADDRESS = 256, 128, 16, 64
_UNREAD_METHOD = "UNKNOWN"  # what aiohttp has for a head that it could not read
_KEY = re.compile(r"slw_([A-Za-z0-9]{1,32})_[A-Za-z0-9_]*")
_PROTOCOLS = {(1, 1): "HTTP/1.1", (1, 0): "HTTP/1.0"}
# Hexadecimal digits of a request's id that choose the sample; the id is random.
_ID_DIGITS = 8


class LineQueue(Protocol):
    """Takes encoded lines of owners. `put` never waits; `close` writes what is left."""

    def put(self, owner: str, line: bytes) -> None: ...

    async def close(self) -> None: ...


class AccessLine(msgspec.Struct, omit_defaults=True):
    """One line; fields that do not apply, or are not known, are left out."""

    ts: str
    logger: str
    request_id: str
    status: int
    outcome: str
    duration_ms: float
    client_address: str
    client_request_id: str = ""
    tenant: str = ""
    key_id: str = ""
    method: str = ""
    path: str = ""
    protocol: str = ""
    model: str = ""
    revision: str = ""
    upstream: str = ""
    attempts: int = 0
    resumes: int = 0
    stream: bool = False
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    tokens_estimated: bool = False
    ttft_ms: float | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    reason: str = ""
    cache: str = ""


class AccessLog:
    """The log of one gateway. `sample`: the share of successful requests that have a line; all others have one."""

    def __init__(
        self, writer: LineQueue | None = None, sample: float = 1.0, unix_time: Callable[[], float] = time.time
    ) -> None:
        """`writer` None: no line is made."""
        self._writer = writer
        self._below = round(sample * 16**_ID_DIGITS)
        self._unix_time = unix_time
        self._encode = msgspec.json.Encoder().encode

    def ended(self, record: RequestRecord, request: web.BaseRequest, now_s: float) -> None:
        """Queues the line of a request that ended, if it is in the sample. `now_s`: on the clock of the record."""
        if self._writer is None:
            return
        if record.outcome == "ok" and int(record.id[:_ID_DIGITS], 16) >= self._below:
            return
        self._writer.put(record.owner, self._encode(self._line(record, request, now_s)) + b"\n")

    def ended_in_lane(self, entry: "_native.LogEntry") -> None:
        """Queues the line of a request that the fast lane ended; it is in the sample."""
        if self._writer is None:
            return
        line = AccessLine(
            datetime.fromtimestamp(entry.ended_s, UTC).isoformat(timespec="milliseconds"),
            LOGGER,
            entry.id,
            entry.code,
            entry.outcome,
            _milliseconds(entry.seconds),
            clean(entry.address, MAX_ADDRESS),
            client_request_id=clean(entry.client_request_id, MAX_ID),
            method="POST",
            path=clean(entry.path, MAX_PATH),
            protocol=_PROTOCOLS[1, 1],
            model=entry.model,
            revision=entry.revision,
            upstream=_address(entry.upstream),
            attempts=0 if entry.is_hit else 1,
            bytes_in=entry.bytes_in,
            bytes_out=entry.bytes_out,
        )
        if entry.ttft_s is not None:
            line.ttft_ms = _milliseconds(entry.ttft_s)
        if entry.tokens is not None:
            line.prompt_tokens, line.completion_tokens = entry.tokens
            line.tokens_estimated = entry.is_estimated
        line.tenant, line.key_id = entry.tenant, entry.key
        line.cache = "hit" if entry.is_hit else "bypass" if entry.bypasses_cache else ""
        self._writer.put(entry.owner, self._encode(line) + b"\n")

    @property
    def is_on(self) -> bool:
        """Whether requests have lines."""
        return self._writer is not None

    async def close(self) -> None:
        if self._writer is not None:
            await self._writer.close()

    def _line(self, record: RequestRecord, request: web.BaseRequest, now_s: float) -> AccessLine:
        line = AccessLine(
            datetime.fromtimestamp(self._unix_time(), UTC).isoformat(timespec="milliseconds"),
            LOGGER,
            record.id,
            record.code,
            record.outcome,
            _milliseconds(now_s - record.started),
            clean(request.remote or "", MAX_ADDRESS),
            revision=record.revision,
            upstream=_address(record.upstream),
            attempts=record.attempts,
            resumes=record.resumes,
            stream=record.stream,
            bytes_in=request.content.total_bytes,
            bytes_out=0 if request.method == "HEAD" else record.sent_bytes,
            reason=record.reason,
            cache=record.cache,
        )
        if request.method != _UNREAD_METHOD:
            _add_head(line, request)
        if record.model != "unknown":
            line.model = record.model
        if record.identity is not None:
            line.tenant, line.key_id = record.identity.name, record.identity.key_id
        if record.first_byte is not None:
            line.ttft_ms = _milliseconds(record.first_byte - record.started)
        if found := record.find_usage():
            usage, line.tokens_estimated = found
            line.prompt_tokens, line.completion_tokens = usage.input_tokens, usage.output_tokens
        return line


def open_access_log(target: str, bounds: tuple[int, int], metrics: GatewayMetrics, sample: float = 1.0) -> AccessLog:
    """`target`: `off`, `stdout` or a path. `bounds`: most bytes of a file, and how many files are kept.

    Raises:
        OSError: the file cannot be written.
    """
    if target == OFF:
        return AccessLog()
    sink = OpenStream(sys.stdout.fileno()) if target == STDOUT else RotatedFile(target, *bounds)
    return AccessLog(LineWriter(sink, metrics.access_log_dropped), sample)


def _address(url: str) -> str:
    """Address and port of an endpoint, also where its URL has the name in its certificate."""
    host, colon, port = url.partition("://")[2].partition("/")[0].rpartition(":")
    address = shown(host)
    return f"[{address}]:{port}" if ":" in address and address != host else f"{address}{colon}{port}"


def _add_head(line: AccessLine, request: web.BaseRequest) -> None:
    line.method, line.path = clean(request.method, MAX_METHOD), clean(request.rel_url.raw_path, MAX_PATH)
    line.protocol = _PROTOCOLS.get(request.version) or "HTTP/{}.{}".format(*request.version)
    line.client_request_id = clean(request.headers.get(REQUEST_ID, ""), MAX_ID)


def clean(text: str, limit: int) -> str:
    """At most so many characters, all of them printable ASCII, without the secret of an API key."""
    if "slw_" in text:
        text = _KEY.sub(r"slw_\1_***", text[: 2 * limit])
    if len(text) <= limit and text.isascii() and text.isprintable():
        return text
    return "".join(char if char.isascii() and char.isprintable() else "?" for char in text[:limit])


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
