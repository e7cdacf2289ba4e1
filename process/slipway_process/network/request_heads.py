"""A bound for the whole head of a request: aiohttp bounds each line of it and their number, not their sum."""

from collections.abc import Sequence
from typing import Any

from aiohttp import http_exceptions

MAX_HEAD_BYTES = 64 << 10


class BoundedHeads:
    """aiohttp's parser of requests, which takes no head of more than `most_bytes`.

    `pending_bytes`: how much is held of a head, or of what was sent behind the request that is read, and is not whole.
    """

    __slots__ = ("_body", "_most_bytes", "_parser", "pending_bytes")

    def __init__(self, parser: Any, most_bytes: int) -> None:
        self._parser, self._most_bytes = parser, most_bytes
        self._body: Any = None  # of the last request that had a whole head
        self.pending_bytes = 0

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
            # Few reads are so long, and in most of them it is a body.
            if here_bytes > self._most_bytes and any(_size(head) > self._most_bytes for head, _ in requests):
                raise self._too_long()
        elif not is_body:
            self.pending_bytes = here_bytes
            if here_bytes > self._most_bytes:
                raise self._too_long()
        return requests, upgraded, rest

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


def _size(head: Any) -> int:
    return len(head.path) + sum(len(name) + len(value) for name, value in head.raw_headers)
