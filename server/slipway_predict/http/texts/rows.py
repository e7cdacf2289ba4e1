"""Rows of texts on their way into a model, and its outputs for them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from slipway_process.serving.errors import invalid

from ...description import TextInput
from ...tensors import BYTES, Array, Tensor
from ...texts import estimated_tokens, refusal

SCORES, TOKENS, TRUNCATED = OUTPUTS = ("logits", "tokens", "truncated")
MAX_BYTES = 16 << 20  # of all rows of a request; of pairs each row has the query again


@dataclass(frozen=True, slots=True)
class Scored:
    """The outputs of a request, by row. `truncated`: whether the row was too long for the model, and was cut."""

    logits: Array
    tokens: list[int]
    truncated: list[bool]

    @property
    def usage(self) -> dict[str, int]:
        total = sum(self.tokens)
        return {"prompt_tokens": total, "total_tokens": total}


def check(text: str, where: str) -> str:
    """The text. Raises HttpError for one that no model takes."""
    if reason := refusal(text):
        raise invalid(f"{where} {reason}.", where)
    return text


def column(name: str, texts: Sequence[str]) -> Tensor:
    """The tensor of one text of each row."""
    found = numpy.empty(len(texts), object)
    found[:] = [text.encode() for text in texts]
    return Tensor(name, BYTES, found)


def row_tokens(text: TextInput, inputs: Sequence[Tensor]) -> int:
    """Estimated tokens of the longest row. Raises HttpError for texts that no model takes, and for too many of them."""
    columns = [one.array.reshape(-1).tolist() for one in inputs]
    for tensor, items in zip(inputs, columns, strict=True):
        for index, item in enumerate(items):
            check(item.decode(), f"{tensor.name}[{index}]")
    sizes = [sum(map(len, row)) for row in zip(*columns, strict=True)]
    if (total := sum(sizes)) > MAX_BYTES:
        raise invalid(f"The rows have {total} bytes of text together; {MAX_BYTES} is the limit.", inputs[0].name)
    return max((estimated_tokens(size, text.max_tokens) for size in sizes), default=0)


def scored(outputs: Sequence[Tensor]) -> Scored:
    logits, tokens, truncated = (one.array for one in outputs)
    return Scored(logits, tokens.tolist(), truncated.tolist())
