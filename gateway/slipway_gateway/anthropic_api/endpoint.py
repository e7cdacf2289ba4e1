"""Runs a request to `/v1/messages` through the same code as any chat completion."""

from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeVar, cast

import msgspec
from aiohttp import hdrs, web
from aiohttp.http import RawRequestMessage
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from slipway_process import json_bounds
from slipway_process.byte_order_mark import without_mark

from ..forwarding import bodies
from ..forwarding.relay import UnusableResponse
from ..forwarding.stand_ins import BodyStandIn, ResponseCollector, collected, unframed
from ..limits.budget import Account
from ..settings import GatewaySettings
from ..telemetry.metrics import RequestRecord
from ..wire import errors, sse
from ..wire.errors import MESSAGES, anthropic_error
from .chat_request import chat_body, tokenize_body
from .message import MAX_RESPONSE_BYTES, MessageEvents, NoCompletion, error_message, token_count, whole_message
from .schema import COUNT_TOKENS, CountTokensRequest
from .schema import MESSAGES as MESSAGES_DECODER

COUNT = f"{MESSAGES}/count_tokens"
# Messages, blocks and tools of a request: each becomes an object of a chat, on the event loop.
MAX_BLOCKS = 1 << 14
MAX_THINGS = 8 * MAX_BLOCKS  # lists, objects and texts, of which a block has some
# What is decoded takes memory for each object in it.
_BLOCK_BYTES = 512
_JSON = "application/json"

Run = Callable[[web.Request], Awaitable[web.StreamResponse]]
ReadBody = Callable[[web.Request, RequestRecord, Account], Awaitable[bytes]]
R = TypeVar("R", bound=CountTokensRequest)


def with_bearer(request: web.Request) -> web.Request:
    """The request with the key of `x-api-key`, where Anthropic's clients send it, as `Authorization`."""
    key = request.headers.get("x-api-key")
    if key is None or hdrs.AUTHORIZATION in request.headers:
        return request
    headers = CIMultiDict(request.headers)
    headers[hdrs.AUTHORIZATION] = f"Bearer {key}"
    return request.clone(headers=headers)


class MessagesCall:
    """One request to `/v1/messages`. What is read and collected counts in `account`."""

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

    async def create(self, run: Run) -> web.StreamResponse:
        """A message. `run` serves the request of a chat. Raises RequestError."""
        message_request = await self._read(MESSAGES_DECODER)
        stops = tuple(message_request.stop_sequences or ())
        limit_bytes = min(self._settings.max_body_bytes, MAX_RESPONSE_BYTES)
        writer = _MessageWriter(limit_bytes, self._request, self._record, stops)
        answer = await self._run(run, "/v1/chat/completions", chat_body(message_request), writer)
        return writer.out or self._whole(writer, answer, lambda body: whole_message(body, stops))

    async def count_tokens(self, run: Run) -> web.StreamResponse:
        """The number of tokens of a prompt. `run` serves the request to `/tokenize`. Raises RequestError."""
        message_request = await self._read(COUNT_TOKENS)
        writer = ResponseCollector(self._settings.max_body_bytes)
        answer = await self._run(run, "/tokenize", tokenize_body(message_request), writer)
        return self._whole(writer, answer, token_count)

    async def _read(self, decoder: "msgspec.json.Decoder[R]") -> R:
        body = await self._read_body(self._request, self._record, self._account)
        await bodies.let_others_run(body)
        try:
            for _ in json_bounds.slices(body, MAX_THINGS):
                await bodies.let_others_run(body)
            message_request = decoder.decode(without_mark(body))
        except json_bounds.TooManyValues as error:
            raise errors.invalid("too_many_blocks", f"The request body {error}.", param="messages") from None
        except msgspec.ValidationError as error:
            raise errors.invalid("invalid_type", f"The request body is not as expected: {error}.") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise errors.invalid("invalid_json", f"The request body is not valid JSON: {error}.") from None
        blocks = _count_blocks(message_request)
        if blocks > MAX_BLOCKS:
            message = f"The request has {blocks} messages, content blocks and tools; {MAX_BLOCKS} is the limit."
            raise errors.invalid("too_many_blocks", message, param="messages")
        self._account.force(blocks * _BLOCK_BYTES)
        return message_request

    async def _run(self, run: Run, path: str, body: bytes, writer: ResponseCollector) -> web.StreamResponse:
        writer.account = self._account
        request = self._request
        headers = CIMultiDict(request.headers)
        headers[hdrs.CONTENT_TYPE], headers[hdrs.CONTENT_LENGTH] = _JSON, str(len(body))
        fields = CIMultiDictProxy(headers)
        message = RawRequestMessage("POST", path, request.version, fields, (), False, None, False, False, URL(path))
        content, loop = cast("Any", BodyStandIn(body)), request._loop
        return await run(
            web.Request(message, content, request.protocol, writer, request.task, loop, remote=request.remote)
        )

    def _whole(
        self, writer: ResponseCollector, answer: web.StreamResponse, translate: Callable[[bytes], bytes]
    ) -> web.Response:
        status, headers, body = collected(writer, answer, self._record.code)
        try:
            body = translate(body) if status == 200 else anthropic_error(status, error_message(body, status))
        except NoCompletion as error:
            status = 502
            self._record.end("upstream_error", status, "invalid_response")
            body = anthropic_error(status, f"The server's answer is not what its API promises: {error}.")
        return web.Response(body=body, status=status, headers=_to_client(headers, self._record))


class _MessageWriter(ResponseCollector):
    """Makes a message's events of a stream while it is written; collects any other response. `out`: the stream."""

    def __init__(
        self, limit_bytes: int, request: web.Request, record: RequestRecord, stop_sequences: Collection[str]
    ) -> None:
        super().__init__(limit_bytes)
        self._request, self._record = request, record
        self._events = MessageEvents(stop_sequences)
        self.out: web.StreamResponse | None = None

    async def write_headers(self, status_line: str, headers: "CIMultiDict[str]") -> None:
        await super().write_headers(status_line, headers)
        if self.status == 200 and headers.get(hdrs.CONTENT_TYPE, "").startswith(sse.CONTENT_TYPE):
            self.out = web.StreamResponse(headers=_to_client(headers, self._record, sse.CONTENT_TYPE))
            await self.out.prepare(self._request)

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        if self.out is None:
            await super().write(chunk)
        elif events := self._events.feed(bytes(chunk)):
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


def _count_blocks(message_request: CountTokensRequest) -> int:
    """Messages, the blocks in them and in results of tools, and tools."""
    count = len(message_request.messages) + len(message_request.tools or ())
    for message in message_request.messages:
        if not isinstance(message.content, str):
            count += len(message.content)
            results = (getattr(block, "content", None) for block in message.content)
            count += sum(len(result) for result in results if isinstance(result, list))
    return count


def _to_client(headers: "CIMultiDict[str]", record: RequestRecord, kind: str = _JSON) -> "CIMultiDict[str]":
    crossing = unframed(headers, kind)
    crossing["request-id"] = record.request_id  # Anthropic's name of it
    return crossing
