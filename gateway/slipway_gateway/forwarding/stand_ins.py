"""What stands in for the body and the writer of a request that another API makes of its own: without a connection."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from aiohttp import hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion, RawRequestMessage
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from ..limits.budget import Account
from ..wire import errors
from .relay import UnusableResponse, WholeWriter


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Peer:
    """The client. `certificate` returns its verified one, as `ssl.SSLSocket.getpeercert` does; None: it has none."""

    address: str
    certificate: Callable[[], Mapping[str, Any] | None] = lambda: None


class CallConnection:
    """Stands in for the connection of a request, with what the API reads of one.

    `is_cutting` returns whether this gateway itself cancels its calls now, as at its end.
    """

    ssl_context = peername = sockname = None

    def __init__(self, peer: Peer, is_cutting: Callable[[], bool], on_abort: Callable[[], None] = _nothing) -> None:
        """`on_abort`: called where the response must not be written any more, because its client does not read."""
        self._peer, self._is_cutting, self._on_abort = peer, is_cutting, on_abort
        self.aborted = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As of a transport: the client's certificate for `peercert`, else `default`."""
        return self._peer.certificate() if name == "peercert" else default

    @property
    def transport(self) -> "CallConnection":
        return self

    def is_closing(self) -> bool:
        """Whether the client is gone. A call that is cancelled, and not by this gateway, was left or is too late."""
        return not self._is_cutting()

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self.aborted = True
        self._on_abort()


class RequestHead(NamedTuple):
    """The head of a request that no connection brought. `remote`: the address of its client."""

    method: str
    path: str
    headers: "CIMultiDictProxy[str]"
    version: HttpVersion
    remote: str


class BodyStandIn:
    """Bytes in the place of a request body that has arrived as a whole."""

    def __init__(self, message: bytes = b"") -> None:
        self.set(message)

    def set(self, message: bytes) -> None:
        self._message, self.total_bytes = message, len(message)

    def is_eof(self) -> bool:
        return True

    def read_nowait(self) -> bytes:
        message, self._message = self._message, b""
        return message


def with_writer(request: web.Request, writer: AbstractStreamWriter) -> web.Request:
    """The same request, whose response goes to this writer. Its body has been read."""
    content = cast("Any", BodyStandIn())
    return web.Request(
        request._message, content, request.protocol, writer, request.task, request._loop, remote=request.remote
    )


def request_without_connection(
    head: RequestHead,
    body: BodyStandIn,
    connection: CallConnection,
    writer: AbstractStreamWriter,
    task: "asyncio.Task[Any] | None",
) -> web.Request:
    """A request for the API. Body and connection stand in for aiohttp's own, with all that the gateway reads of them.

    `task`: in which it is served.
    """
    url = URL(head.path, encoded=True)
    parts = (head.method, head.path, head.version, head.headers, (), False, None, False, False, url)
    message = RawRequestMessage(*parts)
    content, protocol, serving = cast("Any", body), cast("Any", connection), cast("Any", task)
    loop = asyncio.get_running_loop()
    return web.Request(message, content, protocol, writer, serving, loop, remote=head.remote)


class ResponseCollector(AbstractStreamWriter, WholeWriter):
    """Collects a response in memory, within `limit_bytes` and the memory budget of `account`.

    `status` and `headers`: of the response, once it is prepared.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.account: Account | None = None
        self.parts: list[bytes] = []
        self.ended = False
        self.output_size = 0
        self.headers: CIMultiDict[str] = CIMultiDict()
        self.status = 0
        self.too_large = False

    def take_whole(self, status: int, headers: "CIMultiDict[str]", body: bytes) -> None:
        self._count(body)
        self.status, self.headers, self.ended = status, headers, True
        self.parts.append(body)

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Raises UnusableResponse: the response has no room. So the relay closes its server's connection."""
        self._count(chunk)
        if chunk:
            self.parts.append(bytes(chunk))

    def _count(self, chunk: bytes | bytearray | memoryview) -> None:
        self.output_size += len(chunk)
        is_long = self.output_size > self._limit_bytes
        if is_long or (self.account and self.account.grow(len(chunk))):
            self.too_large = True
            raise UnusableResponse("response_too_large", of_server=is_long, status=502 if is_long else 429)

    async def write_eof(self, chunk: bytes = b"") -> None:
        await self.write(chunk)
        self.ended = True

    async def drain(self) -> None:
        pass

    def enable_compression(self, encoding: str = "deflate", strategy: int | None = None) -> None:
        pass

    def enable_chunking(self) -> None:
        pass

    async def write_headers(self, status_line: str, headers: "CIMultiDict[str]") -> None:
        # A copy: the relay empties its own once they are sent.
        self.status, self.headers = int(status_line.split(" ", 2)[1]), CIMultiDict(headers)


def collected(
    writer: ResponseCollector, answer: web.StreamResponse, code: int
) -> "tuple[int, CIMultiDict[str], bytes]":
    """Status, headers and body of a response that went to a collector. `code`: of the request that ended."""
    if writer.too_large:
        message = "The response is longer than the gateway can hold."
        return code, writer.headers, errors.error_body(code, "response_too_large", message)
    if not answer.prepared:
        assert isinstance(answer, web.Response)
        return answer.status, answer.headers, answer.body if isinstance(answer.body, bytes) else b""
    if writer.ended:
        return writer.status, writer.headers, b"".join(writer.parts)
    # It broke off, which the record of the request has already.
    return 502, writer.headers, errors.error_body(502, "upstream_died", "The server of this answer went away.")


def unframed(headers: "CIMultiDict[str]", kind: str) -> "CIMultiDict[str]":
    """Headers of a response whose body was written again. `kind`: its type."""
    crossing = CIMultiDict(headers)
    for name in (hdrs.CONTENT_LENGTH, hdrs.TRANSFER_ENCODING, hdrs.CONTENT_TYPE, hdrs.DATE, hdrs.SERVER):
        crossing.popall(name, None)
    crossing[hdrs.CONTENT_TYPE] = kind
    return crossing
