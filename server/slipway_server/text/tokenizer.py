"""The model's own tokenizer, read from tokenizer.json without torch or transformers."""

import asyncio
from pathlib import Path

from tokenizers import Tokenizer as Backend

LONG_TEXT_CHARACTERS = 2048


class TokenizerError(Exception):
    """Why a tokenizer cannot be used: one sentence for a person."""


class Tokenizer:
    def __init__(self, folder: Path) -> None:
        try:
            self._backend = Backend.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises nothing more precise
            raise TokenizerError(f"tokenizer.json of {folder.name} cannot be read: {error}.") from error
        # Files carry what their training script last set; here nothing is cut and nothing is padded.
        self._backend.no_truncation()
        self._backend.no_padding()

    @property
    def vocabulary_size(self) -> int:
        return self._backend.get_vocab_size(with_added_tokens=True)

    async def encode(self, text: str, *, special_tokens: bool = True) -> tuple[int, ...]:
        if len(text) < LONG_TEXT_CHARACTERS:
            return self.encode_now(text, special_tokens=special_tokens)
        # The backend releases the interpreter lock: long texts leave the event loop to the others.
        return await asyncio.to_thread(self.encode_now, text, special_tokens=special_tokens)

    def encode_now(self, text: str, *, special_tokens: bool = True) -> tuple[int, ...]:
        return tuple(self._backend.encode(text, add_special_tokens=special_tokens).ids)

    def decode(self, tokens: list[int]) -> str:
        return self._backend.decode(tokens, skip_special_tokens=True)

    def text_of(self, token: int) -> str:
        """One token alone, special ones by their names."""
        return self._backend.decode([token], skip_special_tokens=False)
