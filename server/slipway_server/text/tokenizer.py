"""The model's own tokenizer, read from tokenizer.json without torch or transformers."""

import asyncio
from pathlib import Path

from tokenizers import Tokenizer as Backend

LONG_TEXT_CHARACTERS = 2048


class Tokenizer:
    def __init__(self, folder: Path) -> None:
        self._backend = Backend.from_file(str(folder / "tokenizer.json"))
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
