"""Runs one gRPC call as one HTTP request: through the same code as requests over HTTP, without a connection in between.

The API gets a request whose headers are the call's metadata and whose body is its message. What is written into the
response is collected, because a message is sent whole.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from aiohttp import web
from aiohttp.http import HttpVersion, RawRequestMessage
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from ..forwarding.stand_ins import BodyStandIn, ResponseCollector
from ..limits.budget import Account
from ..serving.api import PublicApi, Work
from ..settings import GatewaySettings
from ..telemetry.metrics import RequestRecord
from ..wire.errors import RequestError

PROTOBUF = "application/x-protobuf"
_VERSION = HttpVersion(2, 0)

Prepare = Callable[["Call", RequestRecord], Awaitable[Work]]


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

    def __init__(self, peer: Peer, is_cutting: Callable[[], bool]) -> None:
        self._peer, self._is_cutting = peer, is_cutting
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


class Call:
    """One call and its response. `method`: the path of the gRPC method, as the access log has it."""

    def __init__(
        self,
        settings: GatewaySettings,
        method: str,
        headers: list[tuple[str, str]],
        peer: Peer,
        is_cutting: Callable[[], bool],
    ) -> None:
        self._connection, self._body = CallConnection(peer, is_cutting), BodyStandIn()
        self._writer = ResponseCollector(settings.max_body_bytes)
        self._fields, self._remote = CIMultiDict(headers), peer.address
        self._headers = CIMultiDictProxy(self._fields)
        self._task, self._loop = asyncio.current_task(), asyncio.get_running_loop()
        self._record: RequestRecord | None = None
        self.account: Account | None = None
        self._method = method
        self.request = self._made("POST", method)
        self.status, self.headers, self.body = 0, CIMultiDict[str](), b""

    def _made(self, method: str, path: str) -> web.Request:
        url = URL(path, encoded=True)
        message = RawRequestMessage(method, path, _VERSION, self._headers, (), False, None, False, False, url)
        # Body and connection are stand-ins for aiohttp's own, with all that the gateway reads of them.
        body, connection = cast("Any", self._body), cast("Any", self._connection)
        task, loop = cast("Any", self._task), self._loop
        return web.Request(message, body, connection, self._writer, task, loop, remote=self._remote)

    async def run(self, api: PublicApi, prepare: Prepare) -> None:
        """Runs the call through the API, and sets its `status`, `headers` and `body`.

        `prepare` is called once the call is authenticated; it returns the work that the API does for the call.
        """

        async def work(_: web.Request, record: RequestRecord) -> web.StreamResponse:
            self._record = record
            ready = await prepare(self, record)
            return await ready(self.request, record)

        response = await api.serve(self.request, work, self._method)
        if not response.prepared:
            assert isinstance(response, web.Response)
            self.status, self.headers = response.status, response.headers
            self.body = response.body if isinstance(response.body, bytes) else b""
        elif self._writer.ended:
            self.status, self.headers = self._writer.status, self._writer.headers
            self.body = b"".join(self._writer.parts)
            self._writer.parts.clear()
        else:
            self._broken()

    def _broken(self) -> None:
        """The response broke off: sets an error in its place."""
        if self._writer.too_large:
            refusal = RequestError(413, "response_too_large", "The response is longer than the gateway can hold.")
        elif self._record and self._record.reason == "timeout":
            refusal = RequestError(504, "timeout", "The model stopped answering in time.")
        else:
            refusal = RequestError(503, "upstream_died", "The server of this answer went away.")
        self.status, self.headers = refusal.status, self._writer.headers
        self.body = refusal.body()

    def becomes(self, method: str, path: str, message: bytes = b"", timeout: str = "") -> None:
        """Replaces the request by one to a path of the protocol over HTTP.

        `message`: its body. `timeout`: its header `grpc-timeout`; "": none.
        """
        if message:
            self._fields["Content-Type"] = PROTOBUF
        if timeout:
            self._fields["grpc-timeout"] = timeout
        self._body.set(message)
        self.request = self._made(method, path)

    def hold(self, account: Account) -> None:
        """Sets the account in which the response counts; `close` closes it."""
        self.account = self._writer.account = account

    def close(self) -> None:
        if self.account:
            self.account.close()
