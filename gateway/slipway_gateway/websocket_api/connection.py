"""One WebSocket: requests run beside one another, and what the client does not take holds none but itself up."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Protocol, cast

from aiohttp import WSCloseCode, WSMessage, WSMsgType, web
from aiohttp.http import HttpVersion11

from slipway_process.supervisor import observe

from ..forwarding.stand_ins import Peer
from ..limits.budget import Account
from ..serving.api import WEBSOCKET
from ..settings import GatewaySettings
from ..token_streams import messages
from ..token_streams.events import Failure, TokenEvent
from ..token_streams.messages import Cancel, Generate, MessageError, Resume
from ..token_streams.streams import CANCELLED, Caller, StreamRun, TokenStreams, new_id
from ..wire import errors
from . import frames, handshake

log = logging.getLogger(__name__)

STALLED = "stalled"
_CLOSED_S = 2.0  # for the client's close frame; after it the connection ends
_LINGER_S = 20.0  # for what is still in its buffers
# A message of at most this size into an empty buffer is below the size from which a write waits.
_AT_ONCE_BYTES = 16 << 10
_STEP_BYTES = 4 << 10
# Of one message, with the heads of its fragments and the control frames among them.
_MOST_FRAGMENTED = 2
_CONTROL_BYTES = 6  # of a client's control frame, without its payload


class Parser(Protocol):
    """aiohttp's reader of frames, as its connection uses it."""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]: ...

    def feed_eof(self) -> None: ...


class CountedFrames:
    """Passes bytes of the client on, and counts those of a message that is not whole in the memory budget."""

    def __init__(self, parser: Parser, account: Account, most_bytes: int, refuse: Callable[[], None]) -> None:
        """`refuse`: called when there is no room for more, or more came than `most_bytes` without a message."""
        self._parser, self._account, self._refuse = parser, account, refuse
        self._most_bytes = _MOST_FRAGMENTED * most_bytes + (64 << 10)
        self._pending_bytes = 0
        self.is_alive = True  # something came since this was set to False

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.is_alive = True
        self._pending_bytes += len(data)
        more_bytes = self._pending_bytes - self._account.held_bytes
        if self._pending_bytes > self._most_bytes or (more_bytes >= _STEP_BYTES and self._account.grow(more_bytes)):
            self._refuse()
            return True, b""
        return self._parser.feed_data(data)

    def feed_eof(self) -> None:
        self._parser.feed_eof()

    def control_came(self, size_bytes: int) -> None:
        """A ping or a pong came, perhaps within a message. `size_bytes`: of its payload."""
        self._pending_bytes = max(0, self._pending_bytes - size_bytes - _CONTROL_BYTES)
        self._account.shrink(max(0, self._account.held_bytes - self._pending_bytes))

    def message_came(self) -> None:
        self._pending_bytes = 0
        self._account.shrink(self._account.held_bytes)


class StreamConnection:
    """One connection, whose client was authenticated. `reason`: why it ended, for the metrics."""

    def __init__(
        self,
        request: web.Request,
        streams: TokenStreams,
        settings: GatewaySettings,
        account: Account,
    ) -> None:
        self._request, self._streams, self._settings, self._account = request, streams, settings, account
        self._socket = web.WebSocketResponse(
            timeout=_CLOSED_S,
            autoping=False,
            protocols=(handshake.PROTOCOL,),
            compress=False,
            max_msg_size=settings.websocket_max_message_bytes,
            writer_limit=0,
        )
        self._loop = asyncio.get_running_loop()
        self._sinks: dict[str, _RequestSink] = {}  # of requests, by their ids
        self._running = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._rate = frames.MessageRate.full(settings.websocket_messages_per_second, self._loop.time())
        self._idle: asyncio.Timeout | None = None
        self._frames: CountedFrames | None = None
        self._closing = self._drains = self._is_cut = False
        self.reason = ""
        peer = Peer(request.remote or "", lambda: request.get_extra_info("peercert"))
        headers = handshake.headers_of_requests(request.headers)
        self._caller = Caller(WEBSOCKET, "GET", HttpVersion11, headers, peer, lambda: self._is_cut)

    async def serve(self) -> web.WebSocketResponse:
        """Serves the connection to its end. Raises ConnectionError: the client is gone before the handshake's end."""
        await self._socket.prepare(self._request)
        self._count_frames()
        pings = observe(asyncio.create_task(self._ping(), name="pings of a WebSocket"))
        try:
            async with asyncio.timeout(self._settings.websocket_idle_timeout_s) as self._idle:
                while not self._closing and await self._take_message():
                    pass
        except TimeoutError:
            self.close(WSCloseCode.OK, "idle")
        except asyncio.CancelledError:
            self._is_cut = self._request.transport is not None  # by the end of the process, and not by the client's
            raise
        finally:
            pings.cancel()
            await self._end()
        return self._socket

    def drain(self) -> None:
        """The gateway ends: running requests go on, and the connection ends with the last of them."""
        self._drains = True
        if not self._running:
            self.close(WSCloseCode.GOING_AWAY, "drained")

    def close(self, code: int, reason: str) -> None:
        """Ends the connection; requests that run end with it. `reason`: for the client and the metrics."""
        if self._closing or self._request.transport is None:
            return
        self._closing, self.reason = True, reason
        closing = observe(asyncio.create_task(self._close(code, reason), name="close of a WebSocket"))
        self._tasks.add(closing)
        closing.add_done_callback(self._tasks.discard)

    async def send(self, message: bytes, kind: WSMsgType = WSMsgType.TEXT) -> None:
        """Returns when the client takes more, or soon will. Raises ConnectionError: it is gone, or does not read."""
        transport = self._request.transport
        if self._closing or transport is None:
            raise ConnectionResetError("the connection is closed")
        if len(message) <= _AT_ONCE_BYTES and not transport.get_write_buffer_size():
            await self._socket.send_frame(message, kind)  # it does not wait
            return
        try:
            async with asyncio.timeout(self._settings.stall_timeout_s):
                await self._socket.send_frame(message, kind)
        except TimeoutError:
            self.close(WSCloseCode.POLICY_VIOLATION, STALLED)
            raise ConnectionResetError("the client does not read") from None

    # -- what arrives

    def _count_frames(self) -> None:
        """Has what arrives counted before it is a message: aiohttp keeps fragments to themselves."""
        protocol = cast("Any", self._request.protocol)
        parser = protocol._payload_parser
        most_bytes = self._settings.websocket_max_message_bytes
        if parser is not None:  # else the client has left
            self._frames = CountedFrames(parser, self._account, most_bytes, self._end_for_memory)
            protocol._payload_parser = self._frames

    def _end_for_memory(self) -> None:
        self.close(WSCloseCode.TRY_AGAIN_LATER, "memory")

    async def _take_message(self) -> bool:
        """Takes the next message; returns whether there may be another one."""
        message = await self._socket.receive()
        if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.PING, WSMsgType.PONG):
            self.reason = self.reason or _reason_of(message)
            return False
        if not self._rate.takes(self._loop.time()):
            self.close(WSCloseCode.POLICY_VIOLATION, "rate")
            return False
        if message.type in (WSMsgType.PING, WSMsgType.PONG) and self._frames is not None:
            self._frames.control_came(len(message.data))
        if message.type is WSMsgType.PING:
            with contextlib.suppress(ConnectionError):
                await self.send(message.data, WSMsgType.PONG)
            return True
        if message.type is WSMsgType.PONG:
            return True
        if self._frames is not None:
            self._frames.message_came()
        if message.type is WSMsgType.BINARY:
            self.close(WSCloseCode.UNSUPPORTED_DATA, "binary")
            return False
        await self._act(message.data.encode())
        return True

    async def _act(self, message: bytes) -> None:
        try:
            start = messages.parse(message)
        except MessageError as error:
            await self._refuse(error.refusal, error.id, message)
            return
        if isinstance(start, Cancel):
            if (sink := self._sinks.get(start.id)) is not None and sink.run is not None:
                sink.run.cancel(CANCELLED)
            return
        if refusal := self._refusal(start):
            await self._refuse(refusal, start.id, message)
            return
        self._begin(start)

    def _refusal(self, start: Generate | Resume) -> errors.RequestError | None:
        if self._drains:
            return errors.draining()
        if (sink := self._sinks.get(start.id)) is not None and not sink.is_over:
            return errors.invalid("duplicate_id", "A request of this id runs on this connection.", param="id")
        limit = self._settings.websocket_max_requests
        if self._running >= limit:
            return errors.overloaded(f"{limit} requests run on this connection, which is the most.")
        return None

    async def _refuse(self, refusal: errors.RequestError, id_: str, message: bytes) -> None:
        failure = self._streams.refuse(self._caller, refusal, id_, message)
        with contextlib.suppress(ConnectionError):
            await self.send(frames.error_message(id_, failure))

    # -- requests

    def _begin(self, start: Generate | Resume) -> None:
        if self._idle is not None:
            self._idle.reschedule(None)
        sink = _RequestSink(self, start.id or new_id())
        self._sinks[sink.id] = sink
        self._running += 1
        task = observe(asyncio.create_task(self._run(sink, start), name="request of a WebSocket"))
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._ran(task, sink))

    async def _run(self, sink: "_RequestSink", start: Generate | Resume) -> None:
        sink.run = StreamRun(sink.id, start, self._caller, sink)
        await self._streams.run(sink.run)
        if sink.is_unauthenticated:
            self.close(WSCloseCode.POLICY_VIOLATION, "credentials")

    def _ran(self, task: "asyncio.Task[None]", sink: "_RequestSink") -> None:
        self._tasks.discard(task)
        self._running -= 1
        if self._sinks.get(sink.id) is sink:  # the client may have used the id again
            del self._sinks[sink.id]
        if self._running or self._closing:
            return
        if self._drains:
            self.close(WSCloseCode.GOING_AWAY, "drained")
        elif self._idle is not None and not self._idle.expired():
            self._idle.reschedule(self._loop.time() + self._settings.websocket_idle_timeout_s)

    # -- its end

    async def _ping(self) -> None:
        """Pings a client that is silent. One that answers nothing is gone, unless it has much to read before."""
        waits = False
        while not self._closing:
            await asyncio.sleep(self._settings.websocket_ping_interval_s)
            transport = self._request.transport
            is_alive = self._frames is None or self._frames.is_alive
            if transport is None or transport.get_write_buffer_size():
                continue
            if waits and not is_alive:
                self.reason = self.reason or "lost"
                transport.abort()
                return
            if self._frames is not None:
                self._frames.is_alive = False
            waits = not is_alive
            if waits:
                with contextlib.suppress(ConnectionError):
                    await self.send(b"", WSMsgType.PING)

    async def _close(self, code: int, reason: str) -> None:
        transport = self._request.transport
        if transport is not None:
            self._loop.call_later(_LINGER_S, transport.abort)
        with contextlib.suppress(ConnectionError):
            await self._socket.close(code=code, message=reason.encode(), drain=False)

    async def _end(self) -> None:
        """Cancels what runs, and waits for it."""
        self._closing = True
        running = [task for task in self._tasks if task.get_name().startswith("request")]
        for task in running:
            task.cancel()
        # A handler that is cancelled itself waits too: each request is counted before its connection is.
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._account.close()


class _RequestSink:
    """What the client gets of one request."""

    def __init__(self, connection: StreamConnection, id_: str) -> None:
        self._connection, self.id = connection, id_
        self.run: StreamRun | None = None  # None: its task has not begun
        self.is_unauthenticated = self.is_over = False

    async def deliver(self, event: TokenEvent) -> None:
        self.is_over = event.is_last
        await self._connection.send(frames.event_message(self.id, event))

    async def fail(self, failure: Failure) -> None:
        self.is_over, self.is_unauthenticated = True, failure.status == 401
        await self._connection.send(frames.error_message(self.id, failure))

    def stalled(self) -> None:
        self._connection.close(WSCloseCode.POLICY_VIOLATION, STALLED)


_REASONS = {
    WSCloseCode.PROTOCOL_ERROR: "protocol",
    WSCloseCode.INVALID_TEXT: "invalid_text",
    WSCloseCode.MESSAGE_TOO_BIG: "too_large",
}


def _reason_of(message: WSMessage) -> str:
    """Why a connection ended: a client closed or left it, or broke the protocol."""
    code = getattr(message.data, "code", None) if message.type is WSMsgType.ERROR else None
    return _REASONS.get(cast("Any", code), "client")
