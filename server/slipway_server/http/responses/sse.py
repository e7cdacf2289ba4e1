"""Responses: JSON bodies, and server-sent events that always end with a final event or an error."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from aiohttp import web

from slipway_contracts.headers import PROMPT_TOKENS, RECOMPUTES, STREAM
from slipway_process.serving.errors import HttpError
from slipway_process.serving.server import OUTCOME
from slipway_process.supervisor import observe

from .resume import StreamPosition

DONE = b"data: [DONE]\n\n"
# A line and no empty one behind it: once they have seen an id, OpenAI's clients take an empty line for the end of an
# event without data, and fail. A position's comment has a blank after the colon.
COMMENT = b":\n"
CRASHED = b": engine_crashed\n\n"
# Before an event that others of the same token follow: a stream cannot be resumed after it.
FOLLOWED = b": +\n"
KEEP_ALIVE_S = 15.0
BREAK_OFF_S = 5.0
HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

_encoder = msgspec.json.Encoder()


class _Line:
    """An event stream. Its first bytes open it; after them it is never silent for longer than KEEP_ALIVE_S seconds.

    One that first recomputes tokens may be opened by a comment too, before it is known whether there will be an event.
    """

    def __init__(self, http: web.Request, progress: StreamPosition | None, prompt_tokens: int) -> None:
        named = {STREAM: str(progress.identity), PROMPT_TOKENS: str(prompt_tokens)} if progress else {}
        self.response = web.StreamResponse(headers=HEADERS | named)
        self._http, self._progress = http, progress
        self._early = progress is not None and progress.recomputes
        self._opening = asyncio.Lock()
        self._clock = asyncio.get_running_loop().time
        self._written_s = self._clock()

    async def open(self) -> None:
        async with self._opening:
            if not self.response.prepared:
                if self._progress and self._progress.starts_over:
                    self.response.headers[RECOMPUTES] = "1"
                await self.response.prepare(self._http)

    async def write(self, data: bytes) -> None:
        self._written_s = self._clock()
        if not self.response.prepared:
            await self.open()
        await self.response.write(data)

    async def keep_alive(self) -> None:
        """Write a comment after KEEP_ALIVE_S seconds of silence: proxies and clients close silent connections."""
        with contextlib.suppress(ConnectionError):  # the next write raises it
            while True:
                if (left := self._written_s + KEEP_ALIVE_S - self._clock()) > 0:
                    await asyncio.sleep(left)
                elif self.response.prepared or self._early:
                    await self.write(COMMENT)
                else:
                    await asyncio.sleep(KEEP_ALIVE_S)


async def stream_events(
    http: web.Request,
    events: AsyncIterator[Any],
    *,
    done: bool = True,
    error: Callable[[dict[str, Any]], Any] = lambda body: body,
    progress: StreamPosition | None = None,
    prompt_tokens: int = 0,
) -> web.StreamResponse:
    """Sends events as they come. A list of events is what one token adds; each of them is named by its type.

    Until the first bytes an error is a status; after them, an event before the end.

    A stream that another server can continue breaks off instead: its client reconnects there. A stream that first
    recomputes the tokens that its client has already is kept alive by comments meanwhile.
    """
    line = _Line(http, progress, prompt_tokens)
    keeping = observe(asyncio.create_task(line.keep_alive(), name="comments of a stream"))
    try:
        async for frame in _frames(events, progress):
            await line.write(frame)
        await line.open()
    except HttpError as failure:
        if not line.response.prepared:
            raise
        http[OUTCOME] = failure.outcome
        if progress and failure.elsewhere and http.transport:
            await _break_off(http, line, failure)
            return line.response
        await line.write(_frame(error(failure.body)))
    finally:
        keeping.cancel()
    if done:
        await line.response.write(DONE)
    await line.response.write_eof()
    return line.response


async def _break_off(http: web.Request, line: _Line, failure: HttpError) -> None:
    """End the connection without the end of the body, so that the reader knows that the body is incomplete.

    After a crash of the engine a comment precedes the end.
    """
    assert http.transport, "its client is there"
    if failure.code != "engine_crashed":
        http.transport.abort()
        return
    await line.write(CRASHED)
    # Unlike abort(), close() sends written data first. A client that does not read gets this long.
    http.transport.close()
    asyncio.get_running_loop().call_later(BREAK_OFF_S, http.transport.abort)


async def _frames(events: AsyncIterator[Any], progress: StreamPosition | None) -> AsyncIterator[bytes]:
    """Events as bytes, without those that the client has already."""
    async for event in events:
        if progress is None:
            yield _frame(event)
        elif progress.is_new:
            yield _frame(event, progress.comment())
    if progress:
        progress.finish()


def _frame(event: Any, comment: bytes = b"") -> bytes:
    """An event as bytes. `comment`: the position after this event, or after all events of a list."""
    if not isinstance(event, list):
        return comment + _data(event)
    *followed, last = (f"event: {one['type']}\n".encode() + _data(one) for one in event)
    return b"".join((FOLLOWED if comment else b"") + one for one in followed) + comment + last


def _data(event: Any) -> bytes:
    encoded: bytes = _encoder.encode(event)
    return b"data: " + encoded + b"\n\n"
