"""Answers on the wire: JSON bodies, and server-sent events that always say how they ended."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from aiohttp import web

from .errors import ApiError
from .resume import STREAM, Progress

DONE = b"data: [DONE]\n\n"
HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
OUTCOME = web.RequestKey("outcome", str)

_encoder = msgspec.json.Encoder()


def json_response(body: Any) -> web.Response:
    return web.Response(body=_encoder.encode(body), content_type="application/json")


async def stream_events(
    http: web.Request,
    events: AsyncIterator[Any],
    *,
    done: bool = True,
    error: Callable[[dict[str, Any]], dict[str, Any]] = lambda body: body,
    progress: Progress | None = None,
) -> web.StreamResponse:
    """Sends events as they come. Until the first one an error is a status; after it, an event before the end.

    A stream that another server can go on with breaks off instead: who reads it takes it there.
    """
    frames = _frames(events, progress)
    first = await anext(frames, None)
    response = web.StreamResponse(headers=HEADERS | ({STREAM: str(progress.identity)} if progress else {}))
    await response.prepare(http)
    try:
        if first is not None:
            await response.write(first)
        async for frame in frames:
            await response.write(frame)
    except ApiError as failure:
        http[OUTCOME] = failure.outcome
        if progress and failure.elsewhere and http.transport:
            http.transport.abort()
            return response
        await response.write(_frame(error(failure.body)))
    if done:
        await response.write(DONE)
    await response.write_eof()
    return response


async def _frames(events: AsyncIterator[Any], progress: Progress | None) -> AsyncIterator[bytes]:
    """Events as bytes; those that a client has already are passed over."""
    async for event in events:
        if progress is None:
            yield _frame(event)
        elif progress.fresh:
            yield progress.mark() + _frame(event)
    if progress:
        progress.finish()


def _frame(event: Any) -> bytes:
    return b"data: " + _encoder.encode(event) + b"\n\n"
