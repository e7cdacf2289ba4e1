"""The engine process's end of the socket to the HTTP process: whole messages, blocking."""

import math
import select
import socket

from .messages import LENGTH_BYTES, FromEngine, ToEngine, encode, to_engine


class HungUp(Exception):
    """The HTTP process closed its end of the socket."""


class Wire:
    """Sends and receives messages. Raises HungUp when the HTTP process has closed the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._poll = select.poll()  # select() refuses descriptors from 1024 on
        self._poll.register(connection, select.POLLIN)

    def send(self, message: FromEngine) -> None:
        try:
            self._socket.sendall(encode(message))
        except OSError as error:
            raise HungUp from error

    def wake_for(self, descriptor: int) -> None:
        """Makes `readable` return early (with False) when `descriptor` has something to read."""
        self._poll.register(descriptor, select.POLLIN)

    def readable(self, timeout_s: float) -> bool:
        found = self._poll.poll(math.ceil(timeout_s * 1000))
        return any(descriptor == self._socket.fileno() for descriptor, _ in found)

    def receive(self) -> ToEngine:
        return to_engine.decode(self._read(int.from_bytes(self._read(LENGTH_BYTES), "big")))

    def _read(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            try:
                part = self._socket.recv(size - len(received))
            except OSError as error:
                raise HungUp from error
            if not part:
                raise HungUp
            received += part
        return bytes(received)
