"""A bound for the whole head of a request: aiohttp bounds each line of it and their number, not their sum."""

from collections.abc import Sequence
from typing import Any

from aiohttp import http_exceptions

MAX_HEAD_BYTES = 64 << 10
# Shorter heads are not counted: nearly all are, and a thousand requests have 4 MiB of them.
SHORT_HEAD_BYTES = 4 << 10
# What is held of a head: its bytes, and its fields as text.
_COPIES = 2


class BoundedHeads:
    """aiohttp's parser of requests, which takes no head of more than `most_bytes`.

    `pending_bytes`: how much is held of a head, or of what was sent behind the request that is read, and is not whole.
    `whole_bytes`: of the long heads of requests that wait or run, until `served`.
    """

    __slots__ = ("_body", "_most_bytes", "_parser", "pending_bytes", "whole_bytes")

    def __init__(self, parser: Any, most_bytes: int) -> None:
        self._parser: Any = parser
        self._most_bytes = most_bytes
        self._body: Any = None  # of the last request that had a whole head
        self.pending_bytes = self.whole_bytes = 0

    def feed_data(self, data: bytes) -> tuple[Sequence[Any], bool, bytes]:
        """Requests whose heads are whole, whether the connection is upgraded, and the rest.

        Raises:
            HttpProcessingError: what aiohttp raises, and LineTooLong for a head that is longer than the bound.
        """
        is_body = self._body is not None and not self._body.is_eof()
        requests, upgraded, rest = self._parser.feed_data(data)
        here_bytes = self.pending_bytes + len(data)
        if requests:
            self._body, self.pending_bytes = requests[-1][1], 0
            if here_bytes > SHORT_HEAD_BYTES:  # few are so long, and in most of them it is a body
                self._count(requests)
        elif not is_body:
            self.pending_bytes = here_bytes
            if here_bytes > self._most_bytes:
                raise self._too_long()
        return requests, upgraded, rest

    def _count(self, requests: Sequence[Any]) -> None:
        for head, _ in requests:
            if _size(head) > self._most_bytes:
                raise self._too_long()
            self.whole_bytes += _held_bytes(head)

    @property
    def held_bytes(self) -> int:
        """Of all long heads, and of one that is not whole."""
        return self.pending_bytes * _COPIES + self.whole_bytes

    def served(self, head: Any) -> None:
        """A request ended, and its head is held no more."""
        if self.whole_bytes:
            self.whole_bytes -= _held_bytes(head)

    def close(self) -> None:
        """The connection ended. The parser holds the connection, which holds this."""
        self._parser = self._body = None

    def _too_long(self) -> http_exceptions.LineTooLong:
        return http_exceptions.LineTooLong("the request's head", self._most_bytes)

    def feed_eof(self) -> Any:
        return self._parser.feed_eof()

    def message_consumed(self) -> None:
        self._parser.message_consumed()

    def pause_reading(self) -> None:
        self._parser.pause_reading()

    def set_upgraded(self, value: bool) -> None:
        self._parser.set_upgraded(value)


def _held_bytes(head: Any) -> int:
    size_bytes = _size(head)
    return size_bytes * _COPIES if size_bytes > SHORT_HEAD_BYTES else 0


def _size(head: Any) -> int:
    return len(head.path) + sum(len(name) + len(value) for name, value in head.raw_headers)
