"""Log probabilities in the two shapes that OpenAI's API has for them."""

from collections.abc import Iterable
from typing import Any

from ..engine.request import Logprobs
from ..text.tokenizer import Tokenizer


def of_chat(told: Iterable[Logprobs], tokenizer: Tokenizer) -> dict[str, Any]:
    """`choices[].logprobs` of a chat completion."""

    def entry(token: int, value: float) -> dict[str, Any]:
        text = tokenizer.text_of(token)
        return {"token": text, "logprob": value, "bytes": list(text.encode())}

    return {
        "content": [
            entry(item.tokens[0], item.values[0])
            | {"top_logprobs": [entry(*pair) for pair in zip(item.tokens[1:], item.values[1:], strict=True)]}
            for item in told
        ],
        "refusal": None,
    }


def of_completion(told: Iterable[Logprobs], tokenizer: Tokenizer, offset: int = 0) -> dict[str, Any]:
    """`choices[].logprobs` of a completion; `offset` is where the first token's text begins, in characters."""
    found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for item in told:
        text = tokenizer.text_of(item.tokens[0])
        found["tokens"].append(text)
        found["token_logprobs"].append(item.values[0])
        pairs = zip(item.tokens[1:], item.values[1:], strict=True)
        found["top_logprobs"].append({tokenizer.text_of(token): value for token, value in pairs})
        found["text_offset"].append(offset)
        offset += len(text)
    return found
