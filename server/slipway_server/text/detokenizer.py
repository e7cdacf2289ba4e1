"""Decodes token IDs to text as they come: only whole characters, and the joined deltas are the text of all tokens."""

import codecs
from typing import Protocol

from .tokenizer import BYTE_FALLBACK, OTHER, Tokenizer, without_leading

BROKEN = "\ufffd"
CONTEXT_TOKENS = 6
MAX_PENDING_TOKENS = 16  # a character has at most four bytes: a sequence that is invalid for longer never becomes one


def _each_byte(error: UnicodeError) -> tuple[str, int]:
    """Decodes each invalid byte to a replacement character, as byte-fallback decoders do.

    Python's own handler writes one replacement character for a sequence of invalid bytes.
    """
    assert isinstance(error, UnicodeDecodeError), "it is for decoding"
    return BROKEN * (error.end - error.start), error.end


codecs.register_error("slipway_each_byte", _each_byte)
_Utf8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer(Protocol):
    """Decodes the tokens of one answer to text."""

    def push(self, token: int) -> str:
        """The text that is certain after this token; "" in the middle of a character."""

    def flush(self) -> str:
        """The pending text after the last token."""


def detokenizer(
    tokenizer: Tokenizer, prompt: tuple[int, ...], *, skip_special_tokens: bool = True, markers: tuple[str, ...] = ()
) -> Detokenizer:
    """A detokenizer for an answer to `prompt`: some tokens decode differently at the beginning of a text.

    `markers`: special tokens that are never skipped.
    """
    kind = ByWindow if tokenizer.kind is OTHER else ByBytes
    skipped = tokenizer.special_ids - tokenizer.special_ids_of(markers) if skip_special_tokens else frozenset()
    return kind(tokenizer, prompt, skipped)


class ByBytes:
    """Joins the bytes of tokens, and emits a character when its last byte has come.

    Its text is that of the library's decoder for all tokens that an encoder makes. After bytes that are no UTF-8, the
    library's byte-fallback decoder also replaces valid characters right before them, which a stream has already sent:
    here only the invalid bytes become replacement characters.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: tuple[int, ...], skipped: frozenset[int]) -> None:
        self._bytes_of, self._skipped = tokenizer.bytes_of, skipped
        errors = "slipway_each_byte" if tokenizer.kind is BYTE_FALLBACK else "replace"
        self._decode = _Utf8(errors).decode
        self._leading = tokenizer.leading
        visible = (token not in self._skipped and self._bytes_of(token) for token in reversed(prompt))
        self._started = not self._leading.count or any(visible)

    def push(self, token: int) -> str:
        return self._emit("" if token in self._skipped else self._decode(self._bytes_of(token)))

    def flush(self) -> str:
        return self._emit(self._decode(b"", final=True))

    def _emit(self, text: str) -> str:
        if self._started or not text:
            return text
        self._started = True
        return without_leading(text, self._leading)


class ByWindow:
    """Decodes a short window with and without the new tokens: the text of a token depends on the tokens before it."""

    def __init__(self, tokenizer: Tokenizer, prompt: tuple[int, ...], skipped: frozenset[int]) -> None:
        self._tokenizer, self._skipped = tokenizer, skipped
        self._context = list(prompt[-CONTEXT_TOKENS:])
        self._pending: list[int] = []
        self._context_text = self._decode(self._context)

    def push(self, token: int) -> str:
        if token in self._skipped:
            return ""
        if self._skipped and token in self._tokenizer.special_ids:
            # The library would skip it with the others.
            return self.flush() + self._tokenizer.text_of(token)
        self._pending.append(token)
        text = self._decode(self._context + self._pending)
        # A character of several bytes may span tokens: it is whole when no replacement character ends the text.
        if len(self._pending) < MAX_PENDING_TOKENS and text.endswith(BROKEN):
            return ""
        return self._accept(text)

    def flush(self) -> str:
        return self._accept(self._decode(self._context + self._pending))

    def _accept(self, text: str) -> str:
        delta = text[len(self._context_text) :]
        # The next window begins with the tokens of this piece, where a character begins: it cannot cut a character.
        if delta:
            self._context, self._pending = self._pending, []
            self._context_text = self._decode(self._context)
        elif len(self._pending) >= MAX_PENDING_TOKENS:
            self._pending.clear()  # ids that the tokenizer does not know
        return delta

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=bool(self._skipped))
