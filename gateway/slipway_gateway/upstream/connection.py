"""A connection to an endpoint for requests that are written at once: one at a time, read by aiohttp's parser."""

import asyncio
import math
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import StreamReader, hdrs
from aiohttp.base_protocol import BaseProtocol
from aiohttp.helpers import set_exception
from aiohttp.http import HttpResponseParser, RawResponseMessage
from aiohttp.http_exceptions import HttpProcessingError, TransferEncodingError

if TYPE_CHECKING:
    from slipway_plane import _native

_BLANK_LINE = b"\r\n\r\n"
# Where a server closed an idle connection, its end is known within this time after a request that crossed it. A request
# that was there for longer was being computed.
IDLE_CLOSE_S = 1.0
_SWITCHING_PROTOCOLS = 101
_WITHOUT_BODY = (204, 304)
_EVENTS = "text/event-stream"


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """`silence_s`: most seconds between two reads of a response; 0: any. `read_bytes`: half of what may wait unread.

    `header_bytes`: most bytes of a header line. `decoder`: reads chunks of streams of events, so that the data plane
    can go on with it; None: there is no data plane.
    """

    silence_s: float
    read_bytes: int
    header_bytes: int
    decoder: "Callable[[], _native.ChunkDecoder] | None" = None


@dataclass(slots=True)
class _Framing:
    """Where the response ends, as its head declares it. `body_at`: bytes before its body; -1: not known."""

    body_at: int
    length: int
    chunked: bool

    def ends_at(self, received: int, last: bytes) -> bool:
        """Whether nothing follows the response in what was received. `last`: the last four bytes of that.

        The parser does not report the beginning of a further response. After the last chunk such a beginning either
        ends with no blank line, or is a whole head, which the parser reports.
        """
        return last == _BLANK_LINE if self.chunked else self.body_at >= 0 and received == self.body_at + self.length


class WholeBody:
    """A body that has arrived, with what readers of a response use of `StreamReader`."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def is_eof(self) -> bool:
        """Whether nothing more arrives."""
        return True

    def at_eof(self) -> bool:
        """Whether all of it was read."""
        return not self._data

    def read_nowait(self) -> bytes:
        data, self._data = self._data, b""
        return data

    async def readany(self) -> bytes:
        return self.read_nowait()

    async def read(self) -> bytes:
        return self.read_nowait()


Body = StreamReader | WholeBody
Received = tuple[RawResponseMessage, Body]


class EndpointConnection(BaseProtocol):
    """Sends a request and reads its response; calls `on_idle` when the next request may follow, `on_lost` at its end.

    The connection is closed after whatever leaves doubt where a response ends: a close that is announced, bytes that
    follow the response, a request that the server did not read, an error. Errors are those of aiohttp's session.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: ReadLimits) -> None:
        super().__init__(loop)
        self._limits = limits
        self.on_idle: Callable[[EndpointConnection], None] | None = None
        self.on_lost: Callable[[EndpointConnection], None] | None = None
        self.idle_since_s = 0.0
        self.was_idle = False  # it waited for its present request
        self.closed_idle = False  # its server closed it as it closes idle connections: the request was not seen
        self._sent_s = 0.0
        self._waiter: asyncio.Future[Received] | None = None
        self._heads: HttpResponseParser | None = None  # reads heads alone
        self._payload: StreamReader | None = None
        self._chunks: _native.ChunkDecoder | None = None  # of a stream of events, in place of the parser
        self._framing: _Framing | None = None  # None: the connection ends with the response
        self._received, self._last = 0, b""
        self._silent_since_s = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._closed: asyncio.Future[None] | None = None
        self._awaited: asyncio.Future[Received] | None = None
        self._came = self._unsent = b""
        self._closes = False  # the connection, after a stream of events

    @property
    def is_open(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def send(self, data: bytes) -> "asyncio.Future[Received]":
        """Writes a whole request. The future has the head of the response and its body, parts of which may come later.

        The future raises HttpProcessingError for what is no HTTP, else what aiohttp's session raises.
        """
        transport = self.transport
        if transport is None or transport.is_closing():
            raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")
        self._received, self._sent_s = 0, self._loop.time()
        self._waiter = waiter = self._loop.create_future()
        transport.write(data)
        self._measure_silence()
        return waiter

    def goes_on(self, received: bytes, unsent: bytes, age_s: float, *, was_idle: bool) -> None:
        """A request was sent over this connection `age_s` ago: call it before the connection is made.

        `received`: what came of its response. `unsent`: the rest of the request.
        """
        self._sent_s, self.was_idle = self._loop.time() - age_s, was_idle
        self._waiter = self._awaited = self._loop.create_future()
        self._came, self._unsent = received, unsent

    def awaited(self) -> "asyncio.Future[Received]":
        """The response of a request that `goes_on`. The future is as of `send`."""
        assert self._awaited is not None
        awaited, self._awaited = self._awaited, None
        return awaited

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._waiter is None:
            return
        came, self._came = self._came, b""
        if self._unsent:
            assert self.transport is not None
            self.transport.write(self._unsent)
            self._unsent = b""
        self._measure_silence()
        if came:
            self.data_received(came)

    @property
    def has_tls(self) -> bool:
        return self.transport is not None and self.transport.get_extra_info("sslcontext") is not None

    def close(self, *, abort: bool = False) -> None:
        """Closes the connection after what was written has left, or at once with `abort`. Nothing more is read."""
        self._silent_since_s = math.inf
        if self.transport is not None:
            (self.transport.abort if abort else self.transport.close)()

    def closed(self) -> "asyncio.Future[None] | None":
        """A future that is done when the connection has ended; None if it has already."""
        if self.transport is None:
            return None
        if self._closed is None:
            self._closed = self._loop.create_future()
        return self._closed

    # -- what the transport calls

    def data_received(self, data: bytes) -> None:
        """Feeds `data` to the parser; empty `data`: the parser goes on with what it has."""
        if self._chunks is not None:
            if data:
                self._take_chunks(self._chunks, data)
            return
        parser = self._parser
        if parser is None:
            if not data or self._take_known(data):
                return
            if self._waiter is None or self._waiter.done():
                self.close()  # no request waits for it
                return
            # A parser of its own for each response: nothing of the response before can be in it.
            self._parser = parser = self._new_parser(reads_body=True)
        before = self._received
        if data:
            self._received = before + len(data)
            self._last = data[-4:] if len(data) >= 4 else (self._last + data)[-4:]
            self._silent_since_s = self._loop.time()
        try:
            messages, upgraded, _ = parser.feed_data(data)
        except Exception as error:
            self._malformed(error.with_traceback(None))
            return
        if messages:
            self._begin(messages, data, before, upgraded=upgraded)
        if self._payload is not None and self._payload.is_eof():
            self._end()

    def connection_lost(self, exc: BaseException | None) -> None:
        parser, payload, waiter, chunks = self._parser, self._payload, self._waiter, self._chunks
        super().connection_lost(exc)
        self._parser = self._payload = self._waiter = self._heads = self._chunks = None
        self._silent_since_s = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if waiter is not None and not waiter.done():
            soon = self._loop.time() - self._sent_s <= IDLE_CLOSE_S
            self.closed_idle = self.was_idle and not self._received and soon
            waiter.set_exception(_lost(exc))
        if payload is not None and parser is not None:
            try:
                # The end of a body without a length, or an error: part of it is missing.
                parser.feed_eof()
            except Exception as error:
                missing = f"Response payload is not completed: {error!r}" + (f". {exc!r}" if exc else "")
                # Frames of a traceback hold the body, which holds this error: without a collection nothing would go.
                set_exception(payload, aiohttp.ClientPayloadError(missing), exc or error.with_traceback(None))
        if payload is not None and chunks is not None:
            _miss(payload, exc)
        if self._closed is not None:
            self._closed.set_result(None)
        if self.on_lost is not None:
            self.on_lost(self)

    def pause_reading(self) -> None:
        if self._chunks is None:
            super().pause_reading()
        else:
            self._reading_paused = True
            self._pause_transport_reading()
        self._silent_since_s = math.inf

    def resume_reading(self, resume_parser: bool = True) -> None:
        if not self._reading_paused:
            return  # readers call it after each read
        super().resume_reading(resume_parser)
        if (self._parser or self._chunks) is not None and not self._reading_paused:
            self._measure_silence()

    # -- one response

    def _new_parser(self, *, reads_body: bool) -> HttpResponseParser:
        return HttpResponseParser(
            self,
            self._loop,
            self._limits.read_bytes,
            payload_exception=aiohttp.ClientPayloadError,
            response_with_body=reads_body,
            read_until_eof=True,
            auto_decompress=False,
            max_field_size=self._limits.header_bytes,
        )

    def _take_known(self, data: bytes) -> bool:
        """Takes a response that came in one read, with its length, and does not end the connection: most are such. And
        the beginning of a stream of events whose head came in one read.

        False: it is another one, or none, or no request waits for it.
        """
        waiter, end = self._waiter, data.find(_BLANK_LINE) + 4
        if waiter is None or waiter.done() or end < 4:
            return False
        heads, self._heads = self._heads or self._new_parser(reads_body=False), None
        try:
            messages, upgraded, rest = heads.feed_data(data[:end])
        except Exception:
            return False  # the whole parser finds it too
        if len(messages) != 1 or upgraded or rest:
            return False
        message = messages[0][0]
        if self._limits.decoder is not None and _is_stream(message):
            self._heads, self._waiter, self._received = heads, None, len(data)
            self._chunks, self._closes = self._limits.decoder(), message.should_close
            self._payload = StreamReader(self, self._limits.read_bytes, loop=self._loop)
            waiter.set_result((message, self._payload))
            self._take_chunks(self._chunks, data[end:])
            return True
        length = message.headers.get(hdrs.CONTENT_LENGTH, "")
        if message.code < 200 or message.code in _WITHOUT_BODY or message.should_close or message.chunked:
            return False
        if not length.isdecimal() or len(data) != end + int(length):
            return False
        self._heads = heads  # nothing is left in it
        self._waiter = None
        waiter.set_result((message, WholeBody(data[end:])))
        self._stay(ended=True)
        return True

    def _take_chunks(self, chunks: "_native.ChunkDecoder", data: bytes) -> None:
        assert self._payload is not None
        self._silent_since_s = self._loop.time()
        try:
            events, taken = chunks.feed(data)
        except ValueError as error:
            self._malformed(error)
            return
        self._payload.feed_data(events)
        if chunks.has_ended:
            self._end_stream(is_clean=taken == len(data))

    def _end_stream(self, *, is_clean: bool) -> None:
        assert self._payload is not None
        self._payload.feed_eof()
        self._chunks = self._payload = None
        self._stay(ended=is_clean and not self._closes)

    # -- a stream of events that the data plane relays

    def lend(self) -> "tuple[_native.ChunkDecoder, socket.socket] | None":
        """The data plane reads the rest of a stream of events, from a copy of the socket; `take_back` ends that.

        None: the response is another one, bytes of it wait to be read, or there is no descriptor.
        """
        chunks, payload, transport = self._chunks, self._payload, self.transport
        if chunks is None or payload is None or transport is None or transport.is_closing() or self._reading_paused:
            return None
        opened = None if self.has_tls else transport.get_extra_info("socket")
        if opened is None or payload.exception() is not None or payload._buffer:
            return None
        try:
            copy = opened.dup()
        except OSError:
            return None
        self._pause_reading_for_buffer()
        self._silent_since_s = math.inf
        return chunks, copy

    def take_back(self, why: str, number: int = 0) -> None:
        """It reads again, unless the response is over: `why` and `number` as of `EventRelay.paused`, "" where the data
        plane reported nothing."""
        self._resume_reading_for_buffer()
        if self._chunks is None or self._payload is None:
            return  # it was closed meanwhile
        if why == "end":
            self._end_stream(is_clean=bool(number))
        elif why == "malformed":
            self._malformed(ValueError("the body is not in chunks"))
        elif why == "timeout":
            self._silent()
        elif why == "broken":
            payload, self._chunks, self._payload = self._payload, None, None
            _miss(payload, OSError(number, "the connection broke"))
            self.close(abort=True)
        else:
            self._measure_silence()

    def _begin(
        self, messages: list[tuple[RawResponseMessage, StreamReader]], data: bytes, before: int, *, upgraded: bool
    ) -> None:
        for message, payload in messages:
            if self._payload is not None:
                self._framing = None  # a response to no request
                return
            if 100 <= message.code <= 199 and message.code != _SWITCHING_PROTOCOLS:
                continue
            self._payload = payload
            self._framing = None if message.should_close or upgraded else _framing(message, data, before)
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result((message, payload))

    def _end(self) -> None:
        framing = self._framing
        self._parser = self._payload = self._waiter = self._framing = None
        self._stay(ended=framing is not None and framing.ends_at(self._received, self._last))

    def _stay(self, *, ended: bool) -> None:
        """Waits for the next request, or closes the connection. `ended`: the response ended as it declared."""
        transport = self.transport
        self._silent_since_s = math.inf
        if (
            ended
            and transport is not None
            and not transport.is_closing()
            and not transport.get_write_buffer_size()
            and self.on_idle is not None
        ):
            self.on_idle(self)
        else:
            self.close()

    def _malformed(self, error: Exception) -> None:
        waiter, payload = self._waiter, self._payload
        self._parser = self._chunks = None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error if isinstance(error, HttpProcessingError) else HttpProcessingError())
        elif payload is not None and not payload.is_eof():
            set_exception(payload, aiohttp.ClientPayloadError(str(error)), error)
        self.close()

    # -- silence: one timer, which looks again when it is due

    def _measure_silence(self) -> None:
        self._silent_since_s = self._loop.time()
        if self._timer is None and self._limits.silence_s:
            self._timer = self._loop.call_later(self._limits.silence_s, self._look)

    def _look(self) -> None:
        self._timer = None
        due_s = self._silent_since_s + self._limits.silence_s
        if due_s <= self._loop.time():
            self._silent()
        elif due_s < math.inf:
            self._timer = self._loop.call_at(due_s, self._look)

    def _silent(self) -> None:
        error = aiohttp.SocketTimeoutError("Timeout on reading data from socket")
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
        elif self._payload is not None:
            set_exception(self._payload, error)
        self._parser = self._payload = self._chunks = None  # this error is the first, and stays
        self.close()


def _framing(message: RawResponseMessage, data: bytes, before: int) -> _Framing:
    """How the head declares the response's end. `data`: the read in which the head ended. `before`: bytes before it."""
    length = 0 if message.code in _WITHOUT_BODY else int(message.headers.get(hdrs.CONTENT_LENGTH, 0))
    found = data.find(_BLANK_LINE)
    return _Framing(before + found + 4 if found >= 0 else -1, length, bool(message.chunked))


def _is_stream(message: RawResponseMessage) -> bool:
    """Whether a response is a stream of events in chunks, and in nothing else."""
    return (
        message.code == 200
        and bool(message.chunked)
        and message.headers.get(hdrs.TRANSFER_ENCODING, "").lower() == "chunked"
        and message.headers.get(hdrs.CONTENT_TYPE, "").startswith(_EVENTS)
    )


def _miss(payload: StreamReader, error: BaseException | None) -> None:
    """A part of a body is missing. `error`: of the connection; None: its server closed it."""
    missing = "Response payload is not completed" + (f": {error!r}" if error else "")
    cause = error or TransferEncodingError("the last chunk is missing")
    set_exception(payload, aiohttp.ClientPayloadError(missing), cause)


def _lost(error: BaseException | None) -> BaseException:
    if error is None:
        return aiohttp.ServerDisconnectedError()
    return aiohttp.ClientOSError(*error.args) if isinstance(error, OSError) else error
