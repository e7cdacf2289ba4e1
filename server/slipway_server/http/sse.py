"""Answers on the wire: JSON bodies, and server-sent events that always say how they ended."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from aiohttp import web

from .errors import ApiError

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
) -> web.StreamResponse:
    """Sends events as they come. Until the first one an error is a status; after it, an event before the end."""
    first = await anext(events, None)
    response = web.StreamResponse(headers=HEADERS)
    await response.prepare(http)
    try:
        if first is not None:
            await response.write(_frame(first))
        async for event in events:
            await response.write(_frame(event))
    except ApiError as failure:
        http[OUTCOME] = failure.outcome
        await response.write(_frame(error(failure.body)))
    if done:
        await response.write(DONE)
    await response.write_eof()
    return response


def _frame(event: Any) -> bytes:
    return b"data: " + _encoder.encode(event) + b"\n\n"
