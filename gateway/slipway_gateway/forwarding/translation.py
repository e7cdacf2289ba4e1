"""Runs a request of another API as one in OpenAI's shape, and translates its response while it is written."""

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, cast

from aiohttp import hdrs, web
from aiohttp.http import RawRequestMessage
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from ..limits.budget import Account
from ..settings import GatewaySettings
from ..telemetry.metrics import RequestRecord
from ..wire import sse
from ..wire.translated_events import TranslatedEvents
from .relay import UnusableResponse
from .stand_ins import BodyStandIn, ResponseCollector, unframed

JSON = "application/json"
# Headers for the client, of those of the server's response and the type of the body.
ToClient = Callable[["CIMultiDict[str]", str], "CIMultiDict[str]"]
Run = Callable[[web.Request], Awaitable[web.StreamResponse]]
ReadBody = Callable[[web.Request, RequestRecord, Account], Awaitable[bytes]]


def as_posted(request: web.Request, path: str, body: bytes, writer: ResponseCollector) -> web.Request:
    """The client's request with another path and a JSON body, whose response goes to the writer."""
    headers = CIMultiDict(request.headers)
    headers[hdrs.CONTENT_TYPE], headers[hdrs.CONTENT_LENGTH] = JSON, str(len(body))
    fields = CIMultiDictProxy(headers)
    message = RawRequestMessage("POST", path, request.version, fields, (), False, None, False, False, URL(path))
    content, loop = cast("Any", BodyStandIn(body)), request._loop
    return web.Request(message, content, request.protocol, writer, request.task, loop, remote=request.remote)


class TranslatingWriter(ResponseCollector):
    """Translates a stream while it is written; collects any other response. `out`: the stream."""

    def __init__(self, limit_bytes: int, request: web.Request, events: TranslatedEvents, to_client: ToClient) -> None:
        super().__init__(limit_bytes)
        self._request, self._events, self._to_client = request, events, to_client
        self.out: web.StreamResponse | None = None

    async def write_headers(self, status_line: str, headers: "CIMultiDict[str]") -> None:
        await super().write_headers(status_line, headers)
        if self.status == 200 and headers.get(hdrs.CONTENT_TYPE, "").startswith(sse.CONTENT_TYPE):
            self.out = web.StreamResponse(headers=self._to_client(headers, sse.CONTENT_TYPE))
            await self.out.prepare(self._request)

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        if self.out is None:
            await super().write(chunk)
            return
        held_bytes = self._events.held_bytes
        events = self._events.feed(bytes(chunk))
        if self.account is not None:
            self.account.force(self._events.held_bytes - held_bytes)
        if events:
            await self.out.write(events)
        if self._events.is_unusable:
            await self.out.write_eof()
            raise UnusableResponse("invalid_response", of_server=True, status=self.status)

    async def write_eof(self, chunk: bytes = b"") -> None:
        await self.write(chunk)
        self.ended = True
        if self.out is not None:
            if events := self._events.end():
                await self.out.write(events)
            await self.out.write_eof()


class TranslatedCall:
    """One request to another API. What is read and collected counts in `account`."""

    request_id_header: ClassVar[str]  # where this API's clients look for the id of their request

    def __init__(
        self,
        request: web.Request,
        record: RequestRecord,
        settings: GatewaySettings,
        account: Account,
        read_body: ReadBody,
    ) -> None:
        """`read_body`: as all requests of the API have theirs read, within the bounds of bodies that are awaited."""
        self._request, self._record = request, record
        self._settings, self._account = settings, account
        self._read_body = read_body

    async def _run(self, run: Run, path: str, body: bytes, writer: ResponseCollector) -> web.StreamResponse:
        """What `run` returns for the request in OpenAI's shape. Raises RequestError."""
        writer.account = self._account
        return await run(as_posted(self._request, path, body, writer))

    def _to_client(self, crossing: "CIMultiDict[str]", kind: str = JSON) -> "CIMultiDict[str]":
        sent = unframed(crossing, kind)
        sent[self.request_id_header] = self._record.request_id
        return sent
