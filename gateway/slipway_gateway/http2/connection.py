"""One connection of HTTP/2: takes its frames, opens streams, and ends them."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

from slipway_process.supervisor import observe

from ..limits.connections import address_owner
from ..limits.transports import bound_buffers
from . import frames, header_blocks
from .floods import ANSWERED, FRAME_COST, RESET_COST, SETTINGS_COST, TINY_BYTES, FloodGuard, block_cost
from .frames import ConnectionFault, ErrorCode, Frame, FrameReader, StreamFault
from .header_blocks import HeaderBlock, HeaderDecoder
from .lifetime import Due, Http2Limits, Lifetime
from .outbox import Outbox
from .service import ConnectionBounds, StreamService
from .stream import Stream

ALPN = "h2"
_STREAM_WINDOW, _CONNECTION_WINDOW = 64 << 10, 4 << 20
# Streams that ended, of which more frames may be on their way.
_RECENT = 256
_KEEPALIVE, _RETIREMENT = b"isalive?", b"retires!"  # of pings


class Http2Connection(asyncio.Protocol):
    """One client's connection."""

    reads_head = False

    def __init__(
        self, handler: StreamService, door: ConnectionBounds, limits: Http2Limits, age_share: float = 1.0
    ) -> None:
        self._handler, self._door, self._limits = handler, door, limits
        self._loop = asyncio.get_running_loop()
        self._reader, self._decoder = FrameReader(), HeaderDecoder(limits.max_header_bytes)
        now_s = self._loop.time()
        self._guard = FloodGuard(now_s)
        self._streams: dict[int, Stream] = {}
        self._recent: dict[int, None] = {}
        self._last_id = 0
        self._block: HeaderBlock | None = None
        self._block_bytes = 0  # of the block, in the account
        self._has_settings = self._shut = False
        self._takes_streams = True
        self._window, self._taken = _CONNECTION_WINDOW, 0
        self._lifetime = Lifetime(limits, now_s, age_share)
        self._takers: dict[int, Callable[[Frame], None]] = {
            frames.DATA: self._take_data,
            frames.HEADERS: self._take_headers,
            frames.PRIORITY: self._take_priority,
            frames.RST_STREAM: self._take_reset,
            frames.SETTINGS: self._take_settings,
            frames.PING: self._take_ping,
            frames.GOAWAY: self._take_goaway,
            frames.WINDOW_UPDATE: self._take_window_update,
            frames.CONTINUATION: self._take_continuation,
        }

    # -- of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        peer = transport.get_extra_info("peername")
        self.transport, self.address = transport, str(peer[0]).partition("%")[0] if peer else ""
        self.owner = address_owner(self.address)
        self._account = self._handler.open_account(self)
        self._outbox = Outbox(transport, self._guard, self._account)
        if refused := self._door.enter(self, self.owner, self._loop.time()):
            self._shut = True
            transport.write(frames.settings(()) + frames.goaway(0, ErrorCode.ENHANCE_YOUR_CALM, str(refused)))
            transport.close()
            return
        bound_buffers(transport)
        encrypted: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if encrypted is not None and encrypted.selected_alpn_protocol() != ALPN:
            self._fail(ConnectionFault(ErrorCode.HTTP_1_1_REQUIRED, "the handshake named no HTTP/2"))
            return
        offered = [
            (frames.MAX_CONCURRENT_STREAMS, self._limits.max_streams),
            (frames.INITIAL_WINDOW_SIZE, _STREAM_WINDOW),
            (frames.MAX_HEADER_LIST_SIZE, self._limits.max_header_bytes),
        ]
        wider = frames.window_update(0, _CONNECTION_WINDOW - frames.INITIAL_WINDOW)
        self._outbox.write(frames.settings(offered) + wider)
        self._handler.opened(self)

    def data_received(self, data: bytes) -> None:
        if self._shut:
            return
        self._lifetime.received_s = self._loop.time()
        try:
            for frame in self._reader.frames(data):
                try:
                    self._take(frame)
                except StreamFault as fault:
                    self._reset(fault)
                if self._shut:
                    return
        except ConnectionFault as fault:
            self._fail(fault)

    def pause_writing(self) -> None:
        self._outbox.pause()

    def resume_writing(self) -> None:
        self._outbox.resume()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._shut = True
        self._end_streams()
        self._account.close()
        self._door.leave(self, self.owner)
        self._handler.closed(self)

    # -- for the listener

    @property
    def certificate(self) -> Any:
        """The client's verified certificate as `ssl.SSLSocket.getpeercert` returns it; None: it has none."""
        return self.transport.get_extra_info("peercert") or None

    @property
    def received_s(self) -> float:
        """The time of the event loop at which anything was received last."""
        return self._lifetime.received_s

    def idle_since_s(self, now_s: float) -> float:
        """Time at which the connection began to wait for a stream; `now_s` while it has one."""
        return now_s if self._streams else self._lifetime.idle_since_s

    def force_close(self) -> None:
        self.transport.abort()

    def retire(self) -> None:
        """The client begins no more streams; those that are open go on, and then the connection closes.

        Streams that were on their way when the client learned of it are served: first it learns that there will be an
        end, and which stream was the last one only when it has confirmed that.
        """
        if not self._lifetime.retires and not self._shut:
            self._lifetime.retire(self._loop.time())
            self._outbox.write(frames.goaway(frames.MAX_STREAM_ID, ErrorCode.NO_ERROR))
            self._outbox.write(frames.frame(frames.PING, 0, 0, _RETIREMENT))

    def cut(self) -> None:
        """Ends the connection and its streams now."""
        if not self._shut:
            self._fail(ConnectionFault(ErrorCode.NO_ERROR, "the gateway ends"))

    def check(self, now_s: float) -> None:
        """Does what is due by now; it is called every second or so."""
        match self._lifetime.due(now_s, has_streams=bool(self._streams), takes_streams=self._takes_streams):
            case Due.PING:
                self._outbox.write(frames.frame(frames.PING, 0, 0, _KEEPALIVE))
            case Due.RETIRE:
                self.retire()
            case Due.STOP_TAKING:
                self._stop_taking()
            case Due.CLOSE_SLOW:
                self._fail(ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "the head came too slowly"))
            case Due.CLOSE_IDLE:
                self._fail(ConnectionFault(ErrorCode.NO_ERROR, "the connection was idle"))
            case Due.ABORT:
                self.transport.abort()

    # -- frames

    def _take(self, frame: Frame) -> None:
        if self._block is not None and (frame.kind != frames.CONTINUATION or frame.stream_id != self._block.stream_id):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "another frame came within a header block")
        if not self._has_settings and (frame.kind != frames.SETTINGS or frame.flags & frames.ACK):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        frames.check(frame)
        taker = self._takers.get(frame.kind)
        if taker is not None:
            taker(frame)
        else:
            self._charge(FRAME_COST)

    def _charge(self, cost: float) -> None:
        if not self._guard.take(cost, self._lifetime.received_s):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many frames without use")

    def _open_stream(self, stream_id: int) -> Stream | None:
        """Returns a stream that receives frames; None for one that has ended, or came too late.

        Raises:
            ConnectionFault: it never began.
        """
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.closed:
            return stream
        if not stream_id % 2 or (stream_id > self._last_id and self._takes_streams):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"there is no stream {stream_id}")
        return None

    def _take_data(self, frame: Frame) -> None:
        size, ends = len(frame.payload), bool(frame.flags & frames.END_STREAM)
        if size < TINY_BYTES and not ends:
            self._charge(FRAME_COST)
        self._window -= size
        if self._window < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more was sent than the connection's window takes")
        data, stream = frames.unpadded(frame), self._open_stream(frame.stream_id)
        if stream is None or stream.ended:
            self._give_back(size)
            raise StreamFault(frame.stream_id, ErrorCode.STREAM_CLOSED, "DATA after the end of its stream")
        if self._account.grow(size):
            self._give_back(size)
            raise StreamFault(frame.stream_id, ErrorCode.ENHANCE_YOUR_CALM, "no room for what is not read yet")
        stream.take(data, size, ends=ends)

    def _take_headers(self, frame: Frame) -> None:
        self._block = HeaderBlock(frame, self._limits.max_header_bytes)
        self._lifetime.head_since_s = self._lifetime.received_s
        self._take_block(self._block, frame)

    def _take_continuation(self, frame: Frame) -> None:
        if self._block is None:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of nothing")
        self._charge(FRAME_COST)
        self._block.add(frame.payload, frame)
        self._take_block(self._block, frame)

    def _take_block(self, block: HeaderBlock, frame: Frame) -> None:
        if not block.whole:
            self._keep_block(len(frame.payload))
            return
        if self._block_bytes:
            self._account.shrink(self._block_bytes)
        self._block = self._lifetime.head_since_s = None
        self._block_bytes = 0
        encoded, stream_id = block.encoded(), block.stream_id
        fields = self._decoder.decode(encoded)
        if cost := block_cost(len(encoded), len(fields)):
            self._charge(cost)
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.closed:
            self._take_trailers(stream, fields, block)
        elif stream_id > self._last_id:
            self._begin_stream(stream_id, fields, block)
        elif (stream is None or stream.ended) and stream_id not in self._recent:
            raise ConnectionFault(ErrorCode.STREAM_CLOSED, "HEADERS after the end of their stream")
        else:
            self._charge(FRAME_COST)

    def _keep_block(self, size_bytes: int) -> None:
        """Counts a part of a header block of which more is to come."""
        if self._account.grow(size_bytes):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "no room for a header block")
        self._block_bytes += size_bytes

    def _take_trailers(self, stream: Stream, fields: header_blocks.Fields, block: HeaderBlock) -> None:
        if stream.ended:
            raise StreamFault(stream.id, ErrorCode.STREAM_CLOSED, "HEADERS after the end of their stream")
        if not block.ends_stream:
            raise StreamFault(stream.id, ErrorCode.PROTOCOL_ERROR, "HEADERS within a body")
        header_blocks.check_trailers(stream.id, fields)
        stream.finish()

    def _begin_stream(self, stream_id: int, fields: header_blocks.Fields, block: HeaderBlock) -> None:
        if not self._takes_streams:
            return  # the client knows which stream was the last one
        self._last_id = stream_id
        if len(self._streams) >= self._limits.max_streams:
            raise StreamFault(stream_id, ErrorCode.REFUSED_STREAM, "too many streams")
        if block.fault:
            raise block.fault
        head = header_blocks.request_head(stream_id, fields)
        stream = Stream(stream_id, head, self, self._outbox, receive_window=_STREAM_WINDOW, ended=block.ends_stream)
        if block.ends_stream and head.content_length > 0:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "content-length without a body")
        if self._account.grow(stream.own_bytes):
            raise StreamFault(stream_id, ErrorCode.REFUSED_STREAM, "no room for another stream")
        self._streams[stream_id] = stream
        work = self._handler.handle(stream, self)
        if work is None:
            self._finished(stream)
            return
        stream.task = observe(self._loop.create_task(work, name="call"))
        stream.task.add_done_callback(lambda _: self._task_ended(stream))

    def _take_priority(self, frame: Frame) -> None:
        self._charge(FRAME_COST)
        frames.check_dependency(frame.stream_id, frame.payload)

    def _take_reset(self, frame: Frame) -> None:
        stream = self._open_stream(frame.stream_id)
        self._charge(RESET_COST if stream else FRAME_COST)
        if stream is not None:
            stream.ended = True  # nothing of it is on its way
            self._close(stream)

    def _take_settings(self, frame: Frame) -> None:
        if frame.flags & frames.ACK:
            self._charge(FRAME_COST)
            return
        self._has_settings, self._lifetime.head_since_s = True, None
        self._charge(SETTINGS_COST)
        for identifier, value in frames.settings_of(frame.payload):
            self._apply(identifier, value)
        self._outbox.write(frames.frame(frames.SETTINGS, frames.ACK, 0))

    def _apply(self, identifier: int, value: int) -> None:
        if identifier == frames.ENABLE_PUSH and value > 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is 0 or 1")
        if identifier == frames.MAX_FRAME_SIZE and not frames.MAX_FRAME_BYTES <= value < 1 << 24:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE is out of its range")
        if identifier == frames.INITIAL_WINDOW_SIZE:
            if value > frames.MAX_WINDOW:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE is out of its range")
            wider, self._outbox.initial_window = value - self._outbox.initial_window, value
            for stream in self._streams.values():
                try:
                    stream.open_window(wider)
                except StreamFault as fault:
                    raise ConnectionFault(fault.code, str(fault)) from None

    def _take_ping(self, frame: Frame) -> None:
        self._charge(FRAME_COST)
        if not frame.flags & frames.ACK:
            self._outbox.write(frames.frame(frames.PING, frames.ACK, 0, frame.payload))
        elif frame.payload == _RETIREMENT and self._lifetime.retires:
            self._stop_taking()

    def _take_goaway(self, frame: Frame) -> None:
        self._charge(FRAME_COST)  # its client closes the connection

    def _take_window_update(self, frame: Frame) -> None:
        self._charge(FRAME_COST)
        increment = frames.word(frame.payload) & frames.MAX_WINDOW
        stream = self._open_stream(frame.stream_id) if frame.stream_id else None
        if not frame.stream_id:
            if not increment:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by nothing")
            self._outbox.widen(increment)
        elif stream is not None:
            if not increment:
                raise StreamFault(frame.stream_id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by nothing")
            stream.open_window(increment)

    # -- ends

    def consumed(self, size_bytes: int) -> None:
        self._account.shrink(size_bytes)
        self._give_back(size_bytes)

    def _give_back(self, size_bytes: int) -> None:
        """The client may send as many bytes again."""
        self._taken += size_bytes
        if self._taken >= _CONNECTION_WINDOW // 2 and not self._shut:
            self._window += self._taken
            self._outbox.write(frames.window_update(0, self._taken))
            self._taken = 0

    def _reset(self, fault: StreamFault) -> None:
        """Ends a stream for what its client did, which costs the client as much as if it had ended the stream itself.

        Frames that were on their way when a stream ended cost no more than others.
        """
        stream = self._streams.get(fault.stream_id)
        is_open = stream is not None and not stream.closed
        self._charge(RESET_COST if is_open or fault.stream_id not in self._recent else FRAME_COST)
        self._remember(fault.stream_id)
        self._outbox.write(frames.rst_stream(fault.stream_id, fault.code))
        if stream is not None and is_open:
            self._close(stream)

    def _close(self, stream: Stream) -> None:
        """Ends a stream without a frame. It counts until its handler has ended, so that resets do not make room."""
        stream.close()
        if stream.task:
            stream.task.cancel()

    def _task_ended(self, stream: Stream) -> None:
        self._handler.ended(stream, self)
        self._finished(stream)

    def _finished(self, stream: Stream) -> None:
        if not stream.closed:
            stream.reset(ErrorCode.INTERNAL_ERROR)
        self._streams.pop(stream.id, None)
        self._account.shrink(stream.own_bytes)
        if not stream.ended:
            self._remember(stream.id)
        if stream.is_complete:
            self._guard.give(ANSWERED)
        if not self._streams:
            self._lifetime.idle_since_s = self._loop.time()
            self._end_if_retired()

    def _remember(self, stream_id: int) -> None:
        self._recent[stream_id] = None
        if len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]

    def _stop_taking(self) -> None:
        if self._takes_streams and not self._shut:
            self._takes_streams = False
            self._outbox.write(frames.goaway(self._last_id, ErrorCode.NO_ERROR))
            self._end_if_retired()

    def _end_if_retired(self) -> None:
        if not self._takes_streams and not self._streams and not self._shut:
            self._close_transport()

    def _fail(self, fault: ConnectionFault) -> None:
        """Ends the connection with the reason, and all its streams."""
        self._outbox.write(frames.goaway(self._last_id, fault.code, str(fault)))
        self._close_transport()
        self._end_streams()

    def _close_transport(self) -> None:
        self._shut = True
        self._lifetime.close(self._loop.time())
        self._outbox.flush()
        self.transport.close()

    def _end_streams(self) -> None:
        for stream in list(self._streams.values()):
            if not stream.closed:
                self._close(stream)
