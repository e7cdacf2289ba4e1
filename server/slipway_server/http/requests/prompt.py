"""A prompt of token ids, and what bounds it."""

from dataclasses import dataclass

from msgspec import Struct


@dataclass(frozen=True, slots=True)
class Prompt:
    text: str
    tokens: tuple[int, ...]


class PromptLimits(Struct, frozen=True):
    """`context_tokens`: of a prompt and, with `answer`, its answer together. `vocabulary`: token ids must be below."""

    context_tokens: int
    vocabulary: int
    answer: bool = False
    may_be_empty: bool = False

    @property
    def prompt_tokens(self) -> int:
        """Most tokens of a prompt."""
        return self.context_tokens - self.answer

    @property
    def sentence(self) -> str:
        more = "must hold it and the answer" if self.answer else "must hold it"
        return f"this server's {self.context_tokens} tokens of context {more}"
