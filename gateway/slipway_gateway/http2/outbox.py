"""The sending half of a connection: frames of one pass of the event loop leave together, within the client's window."""

import asyncio
from collections import deque

from ..limits.budget import Account
from . import frames
from .floods import SENT, FloodGuard
from .frames import INITIAL_WINDOW, MAX_FRAME_BYTES, MAX_WINDOW, ConnectionFault, ErrorCode

_FLUSH_BYTES = 64 << 10
# Answers to pings and the like that the client does not read. Responses wait, and are not counted here.
_MAX_UNREAD_BYTES = 1 << 20


class Outbox:
    """`window`: the bytes of DATA that the client takes on this connection; `initial_window`: on each new stream."""

    def __init__(self, transport: asyncio.Transport, guard: FloodGuard, account: Account) -> None:
        self._transport, self._guard, self._account = transport, guard, account
        self._unread_bytes = 0  # in the account, while the client reads too slowly
        self._loop = asyncio.get_running_loop()
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._paused = self._scheduled = False
        self._turns: deque[asyncio.Future[None]] = deque()  # of those that wait for room
        self._resumed = asyncio.Event()  # what needs no window waits for this alone
        self._resumed.set()
        self.window = self.initial_window = INITIAL_WINDOW

    @property
    def room(self) -> int:
        """The bytes of DATA that can be sent in one frame now."""
        return 0 if self._paused else min(self.window, MAX_FRAME_BYTES)

    @property
    def is_ready(self) -> bool:
        """Whether the transport takes more."""
        return not self._paused

    def write(self, data: bytes) -> None:
        """Sends frames with the others of this pass of the event loop."""
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= _FLUSH_BYTES:
            self.flush()
        elif not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._later)

    def data(self, stream_id: int, part: bytes) -> None:
        """Sends a DATA frame; it takes its bytes from the window of the connection."""
        self.window -= len(part)
        self._guard.give(SENT)
        self.write(frames.frame(frames.DATA, 0, stream_id, part))

    def flush(self) -> None:
        if not self._pending or self._transport.is_closing():
            return
        data = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        self._transport.write(data)
        if self._paused:
            self._count_unread(self._transport.get_write_buffer_size())

    def _count_unread(self, size_bytes: int) -> None:
        more = max(0, size_bytes - self._unread_bytes)
        if size_bytes > _MAX_UNREAD_BYTES or self._account.grow(more):
            self._transport.abort()
        else:
            self._unread_bytes += more

    def _later(self) -> None:
        self._scheduled = False
        self.flush()

    def pause(self) -> None:
        """The transport takes no more: its client reads too slowly."""
        self._paused = True
        self._resumed.clear()

    def resume(self) -> None:
        self._paused = False
        self._account.shrink(self._unread_bytes)
        self._unread_bytes = 0
        self._resumed.set()
        self.pass_on()

    def widen(self, increment: int) -> None:
        """The client takes more on this connection. Raises ConnectionFault: by more than is allowed."""
        self.window += increment
        if self.window > MAX_WINDOW:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the window of the connection is too large")
        self.pass_on()

    async def turn(self) -> None:
        """Returns when the connection has room; streams get their turns in the order in which they wait."""
        while self.room <= 0:
            await self._wait()

    async def ready(self) -> None:
        """Returns when the transport takes more; frames that need no window wait for that alone."""
        while self._paused:
            await self._resumed.wait()

    async def _wait(self) -> None:
        waiting = self._loop.create_future()
        self._turns.append(waiting)
        try:
            await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled():
                self.pass_on()
            raise

    def pass_on(self) -> None:
        """Wakes the one that waits longest, where there is room. Each one does so for the next when it has sent."""
        while self._turns and self.room > 0:
            waiting = self._turns.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return
