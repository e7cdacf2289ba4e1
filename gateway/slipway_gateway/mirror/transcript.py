"""The text of one response, read piece by piece, for comparisons (pure)."""

from ..wire.responses import TextPieces, read_text, read_text_of_events
from ..wire.sse import EventAligner

ChoiceTexts = tuple[str, ...]  # the text of each choice

# Longer text is cut: it differs from every kept response anyway.
MAX_TEXT_CHARACTERS = 512 << 10
MAX_WHOLE_BYTES = 1 << 20


class Transcript:
    """A response as one JSON object, or `streamed` as server-sent events."""

    def __init__(self, *, streamed: bool) -> None:
        self._streamed = streamed
        self._aligner = EventAligner()
        self._whole = bytearray()
        self._texts: dict[int, list[str]] = {}
        self._characters = 0
        self._readable = True
        self._ended = False

    @property
    def body(self) -> bytes:
        """The bytes of a response that is one JSON object, until `texts` has read them; empty for a stream."""
        return bytes(self._whole)

    @property
    def size_bytes(self) -> int:
        """Approximate bytes in memory."""
        return len(self._whole) + self._characters + self._aligner.held_bytes

    def feed(self, chunk: bytes) -> None:
        if not self._streamed:
            self._readable = self._readable and len(self._whole) + len(chunk) <= MAX_WHOLE_BYTES
            self._whole += chunk if self._readable else b""
        elif self._readable and (events := self._aligner.feed(chunk)):
            self._add(read_text_of_events(events))

    def texts(self) -> ChoiceTexts | None:
        """The texts in the order of the choices; None for an error, a tool call, and a response that cannot be read."""
        if not self._streamed:
            self._add(read_text(self.body) if self._readable else None)
            self._whole.clear()
        elif rest := self._aligner.flush():
            self.feed(rest + b"\n\n")
        if not (self._readable and (self._ended or not self._streamed)):
            return None
        return tuple("".join(self._texts[index]) for index in sorted(self._texts)) or ("",)

    def _add(self, added: TextPieces | None) -> None:
        if added is None:
            self._readable = False
            return
        self._ended = self._ended or added.ended
        for index, pieces in added.texts.items():
            kept = self._texts.setdefault(index, [])
            if self._characters <= MAX_TEXT_CHARACTERS:
                kept += pieces
                self._characters += sum(map(len, pieces))
