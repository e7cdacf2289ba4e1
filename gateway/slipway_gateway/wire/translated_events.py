"""Makes the events of another API of a stream in OpenAI's shape, piece by piece (pure)."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

# A line of a stream that is longer than any call of a tool in one piece: the server of it is broken.
MAX_LINE_BYTES = 1 << 20
_DONE = b"[DONE]"
_TOO_LONG = "The server of this answer sent an event that is too long."


class TranslatedEvents(ABC):
    """The events of one stream, which ends with its own last event or with one error."""

    max_line_bytes = MAX_LINE_BYTES

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # of a line that is not at its end
        self._pieces_bytes = 0
        self._has_ended = self._has_shown_life = False
        self.is_unusable = False  # what came from the server is not what its API promises, or too long
        self.kept_bytes = 0  # of the answer so far, where its last event needs them

    @property
    def held_bytes(self) -> int:
        """What is in memory of the stream."""
        return self.kept_bytes + self._pieces_bytes

    def feed(self, chunk: bytes) -> bytes:
        """The events that follow from a piece of the stream, which may end anywhere."""
        head, newline, rest = chunk.rpartition(b"\n")
        if not newline:
            return self._hold(rest)
        lines = b"".join((*self._pieces, head)).split(b"\n")
        self._pieces, self._pieces_bytes = [], 0
        self._has_shown_life = False
        return b"".join(event for line in lines for event in self._of_line(line.rstrip(b"\r"))) + self._hold(rest)

    def end(self) -> bytes:
        """The last events, if the stream ended without its own."""
        if self._has_ended:
            return b""
        if self._is_complete():
            return b"".join(self._finish())
        return self._broken("The server of this answer ended its stream too early.")

    def _hold(self, rest: bytes) -> bytes:
        if rest:
            self._pieces.append(rest)
            self._pieces_bytes += len(rest)
        if self._pieces_bytes <= self.max_line_bytes:
            return b""
        self._pieces, self._pieces_bytes = [], 0
        return self._unusable(_TOO_LONG)

    def _of_line(self, line: bytes) -> Iterator[bytes]:
        if self._has_ended:
            return
        if len(line) > self.max_line_bytes:
            yield self._unusable(_TOO_LONG)
        elif line.startswith(b":"):
            if not self._has_shown_life:  # one shows as much as many do, and is longer than a comment
                yield self._alive()
            self._has_shown_life = True
        elif line.startswith(b"data:"):
            data = line[5:].strip()
            if data == _DONE:
                yield from self._finish()
            elif data:
                yield from self._of_data(data)

    def _unusable(self, message: str) -> bytes:
        self.is_unusable |= not self._has_ended
        return self._broken(message)

    def _broken(self, message: str) -> bytes:
        if self._has_ended:
            return b""
        self._has_ended = True
        return self._error(message)

    @abstractmethod
    def _is_complete(self) -> bool:
        """Whether the answer has its last token, so that nothing is lost with the end of the stream."""

    @abstractmethod
    def _alive(self) -> bytes:
        """What a client gets of a comment, which shows that the server is alive."""

    @abstractmethod
    def _of_data(self, data: bytes) -> Iterator[bytes]:
        """The events of one event of the server. `data`: its JSON."""

    @abstractmethod
    def _finish(self) -> Iterator[bytes]:
        """The last events; sets `_has_ended`."""

    @abstractmethod
    def _error(self, message: str) -> bytes:
        """The event of an error."""
