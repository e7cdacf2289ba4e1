"""The model's own tokenizer, read from its files without torch or transformers."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from slipway_process.model_folder.added_tokens import completed

from .token_bytes import byte_characters, most_bytes

BYTE_LEVEL, BYTE_FALLBACK, OTHER = "byte-level", "byte-fallback", "other"
# Encoded and decoded at start: the joined bytes of the single tokens must be the library's text of all tokens.
SAMPLE = "A ship, 2 ports.\n\tÜñí 漢字 🚢⚓ \u0301 end"


class TokenizerError(Exception):
    """Why a tokenizer cannot be used: one sentence for a person."""


@dataclass(frozen=True, slots=True)
class Leading:
    """The decoder removes up to `count` of this character at the beginning of a text."""

    character: str = " "
    count: int = 0


class Tokenizer:
    """Encodes text to token IDs and decodes them.

    `kind` is how tokens become text. In BYTE_LEVEL and BYTE_FALLBACK tokenizers each token stands for the same bytes
    wherever it is: `bytes_of`. In OTHER ones, the text of a token depends on the tokens before it.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._backend = Backend.from_str(completed(folder))
        except Exception as error:  # the library raises nothing more precise
            raise TokenizerError(f"tokenizer.json of {folder.name} cannot be read: {error}.") from error
        # tokenizer.json may contain the training script's truncation and padding: switched off here.
        self._backend.no_truncation()
        self._backend.no_padding()
        added = self._backend.get_added_tokens_decoder()
        self.special_ids = frozenset(token for token, what in added.items() if what.special)
        self._bytes: dict[int, bytes] = {}
        self._anchor: tuple[int, str] | None = None
        self.kind, self.leading = _kind(self._backend)
        if self.kind is not OTHER and not self._joins():
            self.kind, self.leading, self._bytes = OTHER, Leading(), {}
        self._most_bytes = _most_bytes(self._backend)

    def max_bytes(self, tokens: int) -> int | None:
        """A text of more bytes than this has more tokens; None where any text may have few."""
        return None if self._most_bytes is None else tokens * self._most_bytes

    @property
    def vocabulary_size(self) -> int:
        return self._backend.get_vocab_size(with_added_tokens=True)

    def difference_to(self, other: "Tokenizer") -> str:
        """What another tokenizer has that this one has not, as the end of a sentence; empty if they are the same."""
        here, there = ({token: name for name, token in one._backend.get_vocab().items()} for one in (self, other))
        for token in sorted(here.keys() | there.keys()):
            if (name := here.get(token)) != (another := there.get(token)):
                return f"token {token} is {_named(another)} there and {_named(name)} here"
        if self.encode_now(SAMPLE) != other.encode_now(SAMPLE):
            return "equal texts become other tokens there"
        return ""

    def special_ids_of(self, names: tuple[str, ...]) -> frozenset[int]:
        """The IDs of the special tokens with these names; other names are ignored."""
        found = {self._backend.token_to_id(name) for name in names}
        return frozenset(token for token in found if token in self.special_ids)

    def encode_now(self, text: str, *, special_tokens: bool = True) -> tuple[int, ...]:
        """The token IDs of a text. Each of its bytes takes up to a microsecond, and up to 100 bytes of memory.

        The library keeps the GIL in `encode` and `decode`, and releases it in `encode_batch_fast` and `decode_batch`.
        """
        return tuple(self._backend.encode_batch_fast([text], add_special_tokens=special_tokens)[0].ids)

    def decode(self, tokens: list[int], *, skip_special_tokens: bool = True) -> str:
        return self._backend.decode_batch([tokens], skip_special_tokens=skip_special_tokens)[0]

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token inside a text; those of its name for a special token, b"" for an unknown ID."""
        if (known := self._bytes.get(token)) is None:
            known = self._bytes[token] = self._spell(token)
        return known

    def text_of(self, token: int) -> str:
        """The text of a token inside a text; part of a character becomes a replacement character."""
        return self.bytes_of(token).decode("utf-8", "replace")

    def _spell(self, token: int) -> bytes:
        if self.kind is OTHER:
            return self._backend.decode([token], skip_special_tokens=False).encode()
        name = self._backend.id_to_token(token)
        if name is None:
            return b""
        if self.kind is BYTE_LEVEL:
            return bytes(map(BYTES.__getitem__, name)) if set(name) <= BYTES.keys() else name.encode()
        byte = _named_byte(name)
        return self._after_text(token) if byte is None else bytes([byte])

    def _after_text(self, token: int) -> bytes:
        """A token's text after another token: at the beginning of a text, leading spaces might be removed."""
        if self._anchor is None:
            self._anchor = next(
                (id, text) for id in range(self.vocabulary_size) if (text := self._plain(id)) and text.isalnum()
            )
        id, text = self._anchor
        return self._backend.decode([id, token], skip_special_tokens=False)[len(text) :].encode()

    def _plain(self, token: int) -> str:
        name = self._backend.id_to_token(token)
        if name is None or token in self.special_ids or _named_byte(name) is not None:
            return ""
        return self._backend.decode([token])

    def _joins(self) -> bool:
        """Whether the joined bytes of the tokens of SAMPLE are the library's own text of these tokens."""
        try:
            if self.kind is BYTE_FALLBACK:
                self._after_text(0)  # a vocabulary without a plain word has nothing to put before a token
            tokens = self._backend.encode(SAMPLE, add_special_tokens=False).ids
            text = b"".join(map(self.bytes_of, tokens)).decode("utf-8", "replace")
        except (StopIteration, ValueError):
            return False
        return without_leading(text, self.leading) == self._backend.decode(tokens)


def without_leading(text: str, leading: Leading) -> str:
    """The text without the leading characters that a decoder removes."""
    shown = text.lstrip(leading.character)
    return text[min(leading.count, len(text) - len(shown)) :]


def _named(token: str | None) -> str:
    return "missing" if token is None else ascii(token[:40])


def _kind(backend: Backend) -> tuple[str, Leading]:
    decoder = getattr(backend, "decoder", None)
    parts = _parts(_state(decoder) or {}) if decoder else []
    names = [part.get("type") for part in parts]
    if names == ["ByteLevel"]:
        return BYTE_LEVEL, Leading()
    if names[:3] == ["Replace", "ByteFallback", "Fuse"] and names[3:] in ([], ["Strip"]):
        strip: dict[str, Any] = parts[3] if parts[3:] else {"content": " ", "start": 0, "stop": 0}
        if not strip["stop"]:
            return BYTE_FALLBACK, Leading(strip["content"], strip["start"])
    return OTHER, Leading()


def _most_bytes(backend: Backend) -> int | None:
    model = {"type": type(backend.model).__name__, "byte_fallback": getattr(backend.model, "byte_fallback", False)}
    added = [
        {"content": token.content, "lstrip": token.lstrip, "rstrip": token.rstrip}
        for token in backend.get_added_tokens_decoder().values()
    ]
    vocabulary = backend.get_vocab(with_added_tokens=False)
    return most_bytes(_state(backend.normalizer), _state(backend.pre_tokenizer), model, vocabulary, added)


def _state(part: Any) -> dict[str, Any] | None:
    """A part of the tokenizer as tokenizer.json has it."""
    state: dict[str, Any] | None = json.loads(part.__getstate__()) if part else None
    return state


def _parts(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    return decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]


def _named_byte(name: str) -> int | None:
    """The byte of a token such as <0x0A>, which byte-fallback tokenizers have for each byte; None for other names."""
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        try:
            return int(name[3:5], 16)
        except ValueError:
            return None
    return None


BYTES = byte_characters()
