"""What a request may cost, before its server counted it."""

from typing import Any

import msgspec

from .tenant import INPUT, OUTPUT, REQUESTS

# Of English text; other text and code have fewer bytes for each token, never less than one with byte-level tokens.
BYTES_PER_TOKEN = 4
DEFAULT_OUTPUT_TOKENS = 512
MAX_REPEATED_BYTES = 16 << 20  # servers take no more text in one request
_MAX_TOKENS = 1 << 31
_MAX_CHOICES = 128


class Estimate(msgspec.Struct, frozen=True):
    """Tokens that a request may take."""

    input_tokens: int = 0
    output_tokens: int = 0

    def amounts(self) -> dict[str, int]:
        return {REQUESTS: 1, INPUT: self.input_tokens, OUTPUT: self.output_tokens}


class _Pairs(msgspec.Struct):
    """A request to a reranker: a text that goes into a model with each one of a list."""

    query: msgspec.Raw = msgspec.Raw()
    documents: msgspec.Raw = msgspec.Raw()
    text_1: msgspec.Raw = msgspec.Raw()
    text_2: msgspec.Raw = msgspec.Raw()


_PAIRS = msgspec.json.Decoder(_Pairs)
_LIST = msgspec.json.Decoder(list[msgspec.Raw])


def repeated_bytes(body: bytes) -> int:
    """Bytes of a query beyond the one in the body: the model computes it with each document, and usage counts it so."""
    try:
        found = _PAIRS.decode(body)
        ranks = bool(bytes(found.query))
        text, others = bytes(found.query if ranks else found.text_1), found.documents if ranks else found.text_2
        if not text.startswith(b'"'):
            return 0
        times = len(_LIST.decode(others)) - 1
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return 0
    return min(MAX_REPEATED_BYTES, max(0, times) * len(text))


def estimate(
    body_bytes: int, limits: tuple[Any, ...], choices: Any, default_output: int, *, computes: bool, writes_text: bool
) -> Estimate:
    """The tokens that a request reserves. `choices`: its `n`. `default_output`: output tokens of a choice at most.

    `limits`: the request's own limits of output tokens; values that are not numbers are ignored. `computes`: a model
    runs; else no tokens are reserved. `writes_text`: there are output tokens.
    """
    if not computes:
        return Estimate()
    each = default_output if writes_text else 0
    for value in limits:
        if value is not None and _is_count(value) and value < each:
            each = min(value, _MAX_TOKENS)
    times = 1 if choices is None or not _is_count(choices) or choices <= 0 else min(choices, _MAX_CHOICES)
    return Estimate(-(-body_bytes // BYTES_PER_TOKEN), each * times)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
