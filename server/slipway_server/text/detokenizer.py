"""Token ids to text as they come: only whole characters, and the joined deltas are the text of all tokens."""

from .tokenizer import Tokenizer

BROKEN = "\ufffd"
CONTEXT_TOKENS = 6


class Detokenizer:
    """Decodes a short window twice, with and without the new tokens: what a token means depends on those before it."""

    def __init__(self, tokenizer: Tokenizer, prompt: tuple[int, ...]) -> None:
        self._tokenizer = tokenizer
        self._window = list(prompt[-CONTEXT_TOKENS:])
        self._known = tokenizer.decode(self._window)

    def push(self, token: int) -> str:
        self._window.append(token)
        text = self._tokenizer.decode(self._window)
        # A character of several bytes may span tokens: it is whole when no replacement character ends the text.
        if text.endswith(BROKEN) or len(text) <= len(self._known):
            return ""
        return self._accept(text)

    def flush(self) -> str:
        """What is still held back when no token will come any more."""
        return self._accept(self._tokenizer.decode(self._window))

    def _accept(self, text: str) -> str:
        delta = text[len(self._known) :]
        self._window = self._window[-CONTEXT_TOKENS:]
        self._known = self._tokenizer.decode(self._window)
        return delta
