"""One stream: what arrives of a request, and how its handler responds."""

import asyncio
from typing import Protocol

from . import frames
from .frames import MAX_WINDOW, ErrorCode, StreamFault
from .header_blocks import RequestHead
from .outbox import Outbox

# The window of a stream while a long body is read: 2.5 MB/s at a round trip of a tenth of a second.
_MAX_WINDOW_BYTES = 256 << 10

_AT_ONCE_BYTES = 256 << 10  # of a response, before others have their turn
# What CPython takes for a stream with its task and its request, and for each field of its head beside the text.
_STREAM_BYTES, _FIELD_BYTES = 12 << 10, 160


class ReceiveCredit(Protocol):
    """The receiving half of a connection."""

    def consumed(self, size_bytes: int) -> None:
        """Bytes of DATA were taken, so that the client may send as many again."""
        ...


class Stream:
    """A request and its response. `receive_window`, `send_window`: bytes that either side may send now."""

    def __init__(
        self,
        stream_id: int,
        head: RequestHead,
        incoming: ReceiveCredit,
        outbox: Outbox,
        *,
        receive_window: int,
        ended: bool,
    ) -> None:
        self.id, self.head = stream_id, head
        self._incoming, self._outbox = incoming, outbox
        self.receive_window = self._least = self._target = receive_window
        self.send_window = outbox.initial_window
        self.task: asyncio.Task[None] | None = None
        self.closed = False  # nothing is received or sent any more
        self.is_answered = self.is_complete = False  # the head of its response was sent, and all of it
        self.ended = ended  # the client has sent all
        # One frame as it came, or all of them joined: each one by itself takes more than what it brought.
        self._unread: bytes | bytearray = b""
        self._held = self._received = 0
        self._arrival: asyncio.Future[None] | None = None
        self._opening: asyncio.Future[None] | None = None

    @property
    def own_bytes(self) -> int:
        """What the stream takes in memory beside what is not read of it."""
        return _STREAM_BYTES + _FIELD_BYTES * len(self.head.fields) + self.head.size_bytes

    # -- for the handler

    async def read(self) -> bytes:
        """Returns what has arrived since the last call, at least one byte; b"" at the end of the request."""
        while not self._unread and not self.ended:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        return self.read_now()

    def read_now(self) -> bytes:
        """Returns what has arrived since the last call; b"" when that is nothing."""
        data = bytes(self._unread)
        self._drop()
        return data

    def expect(self, size_bytes: int) -> None:
        """The handler has room for so many bytes more: the client may send many of them without waiting."""
        self._target = max(self._least, min(size_bytes, _MAX_WINDOW_BYTES))
        self._widen()

    @property
    def is_ready(self) -> bool:
        """Whether the connection takes frames now."""
        return self._outbox.is_ready

    async def ready(self) -> None:
        """Returns when the connection takes frames: its client reads."""
        await self._outbox.ready()

    def send_head(self, block: bytes, *, ends: bool = False) -> None:
        """Sends a header block: the response's head, or fields after its body, which end it."""
        if self.closed:
            return
        self.is_answered = True
        self._outbox.write(frames.header_frames(self.id, block, ends_stream=ends))
        if ends:
            self._end()

    def has_room(self, size_bytes: int) -> bool:
        """Whether so much of a body can be sent at once, in one frame."""
        return size_bytes <= min(self.send_window, self._outbox.room)

    def send_now(self, data: bytes) -> None:
        """Sends a part of the response's body for which there is room."""
        if not self.closed:
            self.send_window -= len(data)
            self._outbox.data(self.id, data)

    async def send(self, data: bytes) -> None:
        """Sends a part of the response's body; returns when the connection has taken all of it."""
        at, size, paused_at = 0, len(data), 0
        while at < size and not self.closed:
            if at - paused_at >= _AT_ONCE_BYTES:
                paused_at = at
                await asyncio.sleep(0)  # a client with a large window does not hold others up
            await self._turn()
            part = min(self.send_window, self._outbox.room, size - at)
            if part <= 0:
                continue
            self.send_now(data if part == size else data[at : at + part])
            at += part
        self._outbox.pass_on()

    def end(self) -> None:
        """Ends the response without fields after its body."""
        if not self.closed:
            self._outbox.write(frames.frame(frames.DATA, frames.END_STREAM, self.id))
            self._end()

    def reset(self, code: ErrorCode) -> None:
        """Ends the stream now, whatever is missing of it."""
        if not self.closed:
            self._outbox.write(frames.rst_stream(self.id, code))
            self.close()

    def _end(self) -> None:
        self.is_complete = True
        if not self.ended:  # the client need not send the rest
            self._outbox.write(frames.rst_stream(self.id, ErrorCode.NO_ERROR))
        self.close()

    async def _turn(self) -> None:
        while self.send_window <= 0:
            self._opening = asyncio.get_running_loop().create_future()
            await self._opening
        if self._outbox.room <= 0:
            await self._outbox.turn()

    def _drop(self) -> None:
        self._unread = b""
        taken, self._held = self._held, 0
        if not taken:
            return
        self._incoming.consumed(taken)
        self._widen()

    def _widen(self) -> None:
        """Lets the client send more, once half of the window is used."""
        missing = self._target - self.receive_window
        if missing >= self._target // 2 and not self.ended and not self.closed:
            self.receive_window += missing
            self._outbox.write(frames.window_update(self.id, missing))

    # -- for the connection

    def take(self, data: bytes, size_bytes: int, *, ends: bool) -> None:
        """Takes a DATA frame of `size_bytes`, padding included. Raises StreamFault: it is not allowed."""
        self.receive_window -= size_bytes
        self._held += size_bytes
        if self.receive_window < 0:
            raise StreamFault(self.id, ErrorCode.FLOW_CONTROL_ERROR, "more was sent than the window takes")
        self._received += len(data)
        if not self._unread:
            self._unread = data
        elif data:
            self._join(data)
        if size_bytes and not self._unread:
            self._drop()  # only padding: no reader takes it
        if ends:
            self.finish()
        elif data:
            self._wake()

    def _join(self, data: bytes) -> None:
        if isinstance(self._unread, bytes):
            self._unread = bytearray(self._unread)
        self._unread += data

    def finish(self) -> None:
        """The client has sent all. Raises StreamFault: it is not as long as it should be."""
        self.ended = True
        self._wake()
        if self.head.content_length >= 0 and self._received != self.head.content_length:
            raise StreamFault(self.id, ErrorCode.PROTOCOL_ERROR, "the body is not as long as content-length says")

    def open_window(self, increment: int) -> None:
        """The client takes more, or less, on this stream. Raises StreamFault: by more than is allowed."""
        self.send_window += increment
        if self.send_window > MAX_WINDOW:
            raise StreamFault(self.id, ErrorCode.FLOW_CONTROL_ERROR, "the window of the stream is too large")
        if self.send_window > 0 and self._opening and not self._opening.done():
            self._opening.set_result(None)

    def close(self) -> None:
        """Nothing is received or sent any more; what was not read is dropped."""
        self.closed = True
        self._drop()

    def _wake(self) -> None:
        if self._arrival and not self._arrival.done():
            self._arrival.set_result(None)
