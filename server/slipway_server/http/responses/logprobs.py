"""Log probabilities in the two shapes that OpenAI's API has for them, and in vLLM's for those of a prompt."""

import codecs
from collections.abc import Iterable
from typing import Any

from ...engine.request import Logprobs
from ...text.tokenizer import Tokenizer


def format_chat_logprobs(items: Iterable[Logprobs], tokenizer: Tokenizer) -> dict[str, Any]:
    """`choices[].logprobs` of a chat completion."""

    def entry(token: int, value: float) -> dict[str, Any]:
        return {"token": tokenizer.text_of(token), "logprob": value, "bytes": list(tokenizer.bytes_of(token))}

    return {
        "content": [
            entry(item.tokens[0], item.values[0])
            | {"top_logprobs": [entry(*pair) for pair in zip(item.tokens[1:], item.values[1:], strict=True)]}
            for item in items
        ],
        "refusal": None,
    }


class TextOffsets:
    """Where each token begins in a text, in characters: tokens of one character begin where it does."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._characters = tokenizer, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> int:
        """The offset of the next token."""
        offset = self._characters
        self._characters += len(self._decoder.decode(self._tokenizer.bytes_of(token)))
        return offset


def format_completion_logprobs(
    items: Iterable[Logprobs],
    tokenizer: Tokenizer,
    alternatives: int,
    *,
    offsets: TextOffsets,
    first: int | None = None,
) -> dict[str, Any]:
    """`choices[].logprobs` of a completion.

    `offsets` has the tokens before these. `first` is a token before all `items` that nothing predicts: the first one of
    an echoed prompt.
    """
    found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}

    def add(token: int, value: float | None, top: dict[str, float] | None) -> None:
        shown = (tokenizer.text_of(token), value, top, offsets.push(token))
        for name, item in zip(found, shown, strict=True):
            found[name].append(item)

    if first is not None:
        add(first, None, None)
    for item in items:
        pairs = zip(item.tokens[1 : alternatives + 1], item.values[1 : alternatives + 1], strict=True)
        add(item.tokens[0], item.values[0], {tokenizer.text_of(token): value for token, value in pairs})
    return found


def format_prompt_logprobs(
    items: Iterable[Logprobs], tokenizer: Tokenizer, alternatives: int
) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: None for the first token, then each token with the likeliest in its place, by id."""

    def entry(token: int, value: float, rank: int) -> tuple[str, dict[str, Any]]:
        return str(token), {"logprob": value, "rank": rank, "decoded_token": tokenizer.text_of(token)}

    def entries(item: Logprobs) -> dict[str, Any]:
        ranks = (item.rank, *range(1, alternatives + 1))
        return dict(map(entry, item.tokens[: alternatives + 1], item.values, ranks))

    return [None, *map(entries, items)]
