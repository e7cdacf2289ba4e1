"""Reads request bodies within the memory budget, with a minimum rate."""

import asyncio

from aiohttp import payload, web
from aiohttp.abc import AbstractStreamWriter

from slipway_process.places import SHARE

from ..limits.budget import Account
from ..settings import GatewaySettings
from ..wire import errors, inference

# In each window of this length a body must bring at least `min_body_rate_bytes` a second.
WINDOW_S = 10.0
# What CPython takes for a piece of a body beside its bytes: a body in many small pieces takes more than its length.
_PIECE_BYTES = 64
# One pass over the JSON of a longer body takes milliseconds, up to 80 for 16 MiB of short values.
LONG_BYTES, OTHERS_S = 1 << 20, 0.005

# Bytes that are sent at once: a transport copies the part that its socket does not accept.
SLICE_BYTES = 64 << 10


class SlicedBody(payload.Payload):
    """A request body that is sent slice by slice without a copy."""

    def __init__(self, *parts: bytes | memoryview) -> None:
        super().__init__(parts)
        self._parts = parts
        self._size = sum(map(len, parts))

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._parts).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        await self.write_with_length(writer, None)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        for part in self._parts:
            seen = memoryview(part)
            for begin in range(0, len(part), SLICE_BYTES):
                await writer.write(seen[begin : begin + SLICE_BYTES])


async def let_others_run(body: bytes) -> None:
    """Call it between two passes over a body: after one of a long body others get their turns.

    An answer to another request needs some rounds of the event loop, so that one round is too little.
    """
    if len(body) > LONG_BYTES:
        await asyncio.sleep(OTHERS_S)


def make_body(*parts: bytes | memoryview) -> bytes | SlicedBody:
    """The body of an upstream request. A small one is sent in one piece, which is faster."""
    return b"".join(parts) if sum(map(len, parts)) <= SLICE_BYTES else SlicedBody(*parts)


def check_length(request: web.Request, limit_bytes: int) -> None:
    """Checks a body by its headers, before it is read. Raises RequestError: it is too long or compressed (413, 415)."""
    check_encoding(request)
    if (request.content_length or 0) > limit_bytes:
        raise errors.too_large(limit_bytes)


def check_encoding(request: web.Request) -> None:
    """Raises RequestError 415: the body is compressed.

    Clients of the Open Inference Protocol may compress: the server decompresses.
    """
    encoding = (request.headers.get("Content-Encoding") or "identity").lower()
    if encoding == "identity" or (encoding in inference.ENCODINGS and inference.is_inference_protocol(request.path)):
        return
    raise errors.invalid("unsupported_encoding", "Send the body without Content-Encoding.", status=415)


def arrived(request: web.Request, account: Account, settings: GatewaySettings, most_bytes: int = 0) -> bytes:
    """A body that came with its head, as most do: there is nothing to wait for. The rest is as of `read`."""
    check_encoding(request)
    body = request.content.read_nowait()
    _check_room(account, len(body), len(body), _limit_bytes(settings, most_bytes))
    return body


async def read(request: web.Request, account: Account, settings: GatewaySettings, most_bytes: int = 0) -> bytes:
    """Reads the whole body, and keeps no second copy of it. `most_bytes`: a lower limit than that of others; 0: none.

    Raises:
        RequestError: it is too long or compressed (413, 415), comes too slowly (408), or there is no room for it (429).
    """
    limit_bytes = _limit_bytes(settings, most_bytes)
    check_length(request, limit_bytes)
    now = asyncio.get_running_loop().time
    reading = _BodyReader(account, settings, now() + settings.body_timeout_s, limit_bytes)
    try:
        async with asyncio.timeout_at(reading.due_s(now())) as limit:
            account.waits(reading.evicted_by(limit))
            while chunk := await request.content.readany():
                if reading.take(chunk):
                    limit.reschedule(reading.due_s(now()))
    except TimeoutError:
        if not reading.evicted:
            raise errors.invalid("body_timeout", "The request body did not arrive in time.", status=408) from None
    finally:
        account.goes_on()
    # An evicted body may still have ended in time, but its pieces were dropped and are no longer counted.
    if reading.evicted:
        raise errors.overloaded("The body came too slowly while the gateway was at its limit of memory.")
    return reading.body()


def _limit_bytes(settings: GatewaySettings, most_bytes: int) -> int:
    return min(most_bytes or settings.max_body_bytes, settings.max_body_bytes)


class _BodyReader:
    """Collects the pieces of one body that arrives."""

    def __init__(self, account: Account, settings: GatewaySettings, last_s: float, limit_bytes: int) -> None:
        self._account = account
        self._limit_bytes = limit_bytes
        self._window_bytes = settings.min_body_rate_bytes * WINDOW_S
        self._last_s = last_s
        self._pieces: list[bytes] = []
        self._size = 0
        self._in_window = 0
        self.evicted = False

    def due_s(self, now_s: float) -> float:
        """The time of the event loop until which the minimum of a window that begins now must have arrived."""
        return min(self._last_s, now_s + WINDOW_S) if self._window_bytes else self._last_s

    def evicted_by(self, limit: asyncio.Timeout) -> "_Eviction":
        return _Eviction(self, limit)

    def take(self, chunk: bytes) -> bool:
        """Takes a piece; returns whether the window has its minimum. Raises RequestError as `_check_room` does."""
        self._size += len(chunk)
        _check_room(self._account, len(chunk), self._size, self._limit_bytes)
        self._pieces.append(chunk)
        self._in_window += len(chunk)
        if self._in_window < self._window_bytes:
            return False
        self._in_window = 0
        self._account.moved()
        return True

    def body(self) -> bytes:
        # One piece is not copied.
        body = b"".join(self._pieces)
        self._pieces.clear()
        return body

    def drop(self) -> None:
        self.evicted = True
        self._pieces.clear()


class _Eviction:
    """The callback with which the budget ends the reading of a body that stalls while others need its room."""

    def __init__(self, reading: _BodyReader, limit: asyncio.Timeout) -> None:
        self._reading, self._limit = reading, limit

    def __call__(self) -> None:
        self._reading.drop()
        self._limit.reschedule(asyncio.get_running_loop().time())


def _check_room(account: Account, size_bytes: int, whole_bytes: int, limit_bytes: int) -> None:
    """Counts a piece of a body in its account.

    Raises:
        RequestError: there is no room for the piece (429), or the body is too long with it (413).
    """
    if whole_bytes > limit_bytes:
        raise errors.too_large(limit_bytes)
    if size_bytes and (refused := account.grow(size_bytes + _PIECE_BYTES)):
        raise _no_room(refused)


def _no_room(reason: str) -> errors.RequestError:
    if reason == SHARE:
        return errors.overloaded("This client's requests are at their share of the gateway's memory.")
    return errors.overloaded("The gateway is at its limit of memory for requests.")
