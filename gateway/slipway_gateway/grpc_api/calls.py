"""Runs one gRPC call as one HTTP request: through the same code as requests over HTTP, without a connection in between.

The API gets a request whose headers are the call's metadata and whose body is its message. What is written into the
response is collected, because a message is sent whole.
"""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.http import HttpVersion
from multidict import CIMultiDict, CIMultiDictProxy

from ..forwarding.stand_ins import (
    BodyStandIn,
    CallConnection,
    Peer,
    RequestHead,
    ResponseCollector,
    request_without_connection,
)
from ..limits.budget import Account
from ..serving.api import PublicApi, Work
from ..settings import GatewaySettings
from ..telemetry.metrics import RequestRecord
from ..wire.errors import RequestError

PROTOBUF = "application/x-protobuf"
VERSION = HttpVersion(2, 0)

Prepare = Callable[["Call", RequestRecord], Awaitable[Work]]


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
        self._task = asyncio.current_task()
        self._record: RequestRecord | None = None
        self.account: Account | None = None
        self._method = method
        self.request = self._made("POST", method)
        self.status, self.headers, self.body = 0, CIMultiDict[str](), b""

    def _made(self, method: str, path: str) -> web.Request:
        head = RequestHead(method, path, self._headers, VERSION, self._remote)
        return request_without_connection(head, self._body, self._connection, self._writer, self._task)

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
