"""Log probabilities in the two shapes that OpenAI's API has for them, and in vLLM's for those of a prompt.

Long lists of them are JSON already: see `json_lists`.
"""

import codecs
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

from msgspec import Raw

from slipway_process.json_lists import json_list

from ...engine.request import Logprobs
from ...text.tokenizer import Tokenizer


def format_chat_logprobs(items: Iterable[Logprobs], tokenizer: Tokenizer) -> dict[str, Any]:
    """`choices[].logprobs` of a chat completion."""

    def entry(token: int, value: float) -> dict[str, Any]:
        return {"token": tokenizer.text_of(token), "logprob": value, "bytes": list(tokenizer.bytes_of(token))}

    content = (
        entry(item.tokens[0], item.values[0])
        | {"top_logprobs": [entry(*pair) for pair in zip(item.tokens[1:], item.values[1:], strict=True)]}
        for item in items
    )
    return {"content": json_list(content), "refusal": None}


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
    items: Sequence[Logprobs],
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
    alone = [] if first is None else [first]

    def of_tokens(shown: Callable[[int], Any]) -> list[Any] | Raw:
        return json_list(map(shown, chain(alone, (item.tokens[0] for item in items))))

    def of_items(shown: Callable[[Logprobs], Any]) -> list[Any] | Raw:
        return json_list(chain((None for _ in alone), map(shown, items)))

    def top(item: Logprobs) -> dict[str, float]:
        pairs = zip(item.tokens[1 : alternatives + 1], item.values[1 : alternatives + 1], strict=True)
        return {tokenizer.text_of(token): value for token, value in pairs}

    return {
        "tokens": of_tokens(tokenizer.text_of),
        "token_logprobs": of_items(lambda item: item.values[0]),
        "top_logprobs": of_items(top),
        "text_offset": of_tokens(offsets.push),
    }


def format_prompt_logprobs(items: Iterable[Logprobs], tokenizer: Tokenizer, alternatives: int) -> list[Any] | Raw:
    """vLLM's `prompt_logprobs`: None for the first token, then each token with the likeliest in its place, by id."""

    def entry(token: int, value: float, rank: int) -> tuple[str, dict[str, Any]]:
        return str(token), {"logprob": value, "rank": rank, "decoded_token": tokenizer.text_of(token)}

    def entries(item: Logprobs) -> dict[str, Any]:
        ranks = (item.rank, *range(1, alternatives + 1))
        return dict(map(entry, item.tokens[: alternatives + 1], item.values, ranks))

    return json_list(chain([None], map(entries, items)))
