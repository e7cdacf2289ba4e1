"""Both ends of the socket between the HTTP process and the process of a model. A message is one write and one read."""

import asyncio
import socket
from collections.abc import Sequence
from typing import cast

import msgspec

from .messages import SIZES, FromModel, ProtocolError, ToModel, check_sizes, encode, from_model, to_model

FIRST_BYTES, GROWTH = 64 << 10, 4  # room for a message, and how it grows for a larger one


class ServerHungUp(Exception):
    """The HTTP process closed its end of the socket."""


class MessageBuffer:
    """The bytes of one message at a time: sizes, head and data."""

    def __init__(self) -> None:
        self._first = bytearray(FIRST_BYTES)
        self._buffer, self._filled, self._size = self._first, 0, 0

    def room(self) -> memoryview:
        """Where the next bytes go."""
        return memoryview(self._buffer)[self._filled : self._size or None]

    def take(self, count: int) -> tuple[memoryview, memoryview] | None:
        """Count bytes that came; return head and data of the message once it is whole. They are the caller's.

        Raises:
            ProtocolError: it is too large, or bytes of another message follow.
        """
        self._filled += count
        if not self._size and self._filled >= SIZES.size:
            self._size = _message_size(self._buffer)
        if not self._size or self._filled < self._size:
            if self._filled == len(self._buffer):
                self._grow()
            return None
        if self._filled > self._size:
            raise ProtocolError("a second message before the answer to the first one")
        kept = self._buffer is self._first
        whole = memoryview(self._buffer[: self._size] if kept else self._buffer)
        at = SIZES.size + SIZES.unpack_from(whole)[0]
        self._buffer, self._filled, self._size = self._first, 0, 0
        return whole[SIZES.size : at], whole[at:]

    def _grow(self) -> None:
        """Make room in step with what has come: the sizes alone, which the other side may invent, take no memory."""
        larger = bytearray(min(self._size, GROWTH * len(self._buffer)))
        larger[: self._filled] = self._buffer
        self._buffer = larger


def _message_size(buffer: bytearray) -> int:
    head_bytes, data_bytes = SIZES.unpack_from(buffer)
    check_sizes(head_bytes, data_bytes)
    return int(SIZES.size + head_bytes + data_bytes)


class HttpWire(asyncio.BufferedProtocol):
    """The HTTP process's end: sends a message and waits for the answer to it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._incoming = MessageBuffer()
        self._answer: asyncio.Future[tuple[FromModel, memoryview]] | None = None

    async def exchange(self, message: Sequence[bytes], timeout_s: float) -> tuple[FromModel, memoryview]:
        """The answer to a message, with its data.

        Raises:
            ConnectionError: the process closed its end, or has no end any more.
            ProtocolError: what it sent is no message.
            TimeoutError: there was no answer in time. None can be waited for after that.
        """
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError
        self._answer = self._loop.create_future()
        timer = self._loop.call_later(timeout_s, self._fail, TimeoutError())
        try:
            self._transport.write(b"".join(message))
            return await self._answer
        finally:
            timer.cancel()
            self._answer = None

    def close(self) -> None:
        if self._transport:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._incoming.room()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            if found := self._incoming.take(nbytes):
                self._received(*found)
        except (msgspec.MsgspecError, ProtocolError) as error:
            self._fail(ProtocolError(str(error)))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ConnectionResetError())

    def _received(self, head: memoryview, data: memoryview) -> None:
        if self._answer is None:
            raise ProtocolError("an answer to nothing")
        if not self._answer.done():
            self._answer.set_result((from_model.decode(head), data))

    def _fail(self, error: Exception) -> None:
        if self._answer and not self._answer.done():
            self._answer.set_exception(error)


class ModelWire:
    """The model's end: sends and receives whole messages, blocking. Raises ServerHungUp."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._incoming = MessageBuffer()

    def send(self, message: FromModel, data: Sequence[bytes] = ()) -> None:
        try:
            self._socket.sendall(b"".join(encode(message, data)))
        except OSError as error:
            raise ServerHungUp from error

    def receive(self) -> tuple[ToModel, memoryview]:
        while True:
            try:
                received = self._socket.recv_into(self._incoming.room())
            except OSError as error:
                raise ServerHungUp from error
            if not received:
                raise ServerHungUp
            if found := self._incoming.take(received):
                return to_model.decode(found[0]), found[1]
