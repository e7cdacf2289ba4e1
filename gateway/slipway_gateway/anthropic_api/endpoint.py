"""Runs a request to `/v1/messages` through the same code as any chat completion."""

from collections.abc import Callable
from typing import TypeVar

import msgspec
from aiohttp import hdrs, web
from multidict import CIMultiDict

from slipway_process import json_bounds
from slipway_process.byte_order_mark import without_mark

from ..forwarding import bodies
from ..forwarding.stand_ins import ResponseCollector, collected
from ..forwarding.translation import Run, TranslatedCall, TranslatingWriter
from ..wire import errors
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

R = TypeVar("R", bound=CountTokensRequest)


def with_bearer(request: web.Request) -> web.Request:
    """The request with the key of `x-api-key`, where Anthropic's clients send it, as `Authorization`."""
    key = request.headers.get("x-api-key")
    if key is None or hdrs.AUTHORIZATION in request.headers:
        return request
    headers = CIMultiDict(request.headers)
    headers[hdrs.AUTHORIZATION] = f"Bearer {key}"
    return request.clone(headers=headers)


class MessagesCall(TranslatedCall):
    """One request to `/v1/messages`. What is read and collected counts in `account`."""

    request_id_header = "request-id"  # Anthropic's name of it

    async def create(self, run: Run) -> web.StreamResponse:
        """A message. `run` serves the request of a chat. Raises RequestError."""
        message_request = await self._read(MESSAGES_DECODER)
        stops = tuple(message_request.stop_sequences or ())
        limit_bytes = min(self._settings.max_body_bytes, MAX_RESPONSE_BYTES)
        writer = TranslatingWriter(limit_bytes, self._request, MessageEvents(stops), self._to_client)
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
        return web.Response(body=body, status=status, headers=self._to_client(headers))


def _count_blocks(message_request: CountTokensRequest) -> int:
    """Messages, the blocks in them and in results of tools, and tools."""
    count = len(message_request.messages) + len(message_request.tools or ())
    for message in message_request.messages:
        if not isinstance(message.content, str):
            count += len(message.content)
            results = (getattr(block, "content", None) for block in message.content)
            count += sum(len(result) for result in results if isinstance(result, list))
    return count
