"""What a request may cost, before its server counted it (pure)."""

import msgspec

from ..wire.inference import TEXT_PATHS
from ..wire.json_values import count_items, integer_of, is_null, is_text, lenient_integer_of
from ..wire.request_fields import RequestFields
from .tenant import INPUT, OUTPUT, REQUESTS

# Of English text; other text and code have fewer bytes for each token, never less than one with byte-level tokens.
BYTES_PER_TOKEN = 4
DEFAULT_OUTPUT_TOKENS = 512
MAX_REPEATED_BYTES = 16 << 20  # servers take no more text in one request
_MAX_TOKENS = 1 << 31


class Estimate(msgspec.Struct, frozen=True):
    """Tokens that a request may take."""

    input_tokens: int = 0
    output_tokens: int = 0

    def amounts(self) -> dict[str, int]:
        return {REQUESTS: 1, INPUT: self.input_tokens, OUTPUT: self.output_tokens}


def estimate(
    fields: RequestFields, path: str, body_bytes: int, default_output: int, *, computes: bool, writes_text: bool
) -> Estimate:
    """The tokens that a request reserves. `default_output`: output tokens of a response at most.

    `computes`: a model runs; else no tokens are reserved. `writes_text`: there are output tokens.
    """
    if not computes:
        return Estimate()
    repeated = repeated_bytes(fields) if path in TEXT_PATHS else 0
    input_tokens = -(-(body_bytes + repeated) // BYTES_PER_TOKEN)
    if not writes_text:
        return Estimate(input_tokens)
    limit = output_limit(fields, path)
    each = default_output if limit is None else min(limit, default_output)
    return Estimate(input_tokens, min(each * responses(fields), _MAX_TOKENS))


def output_limit(fields: RequestFields, path: str) -> int | None:
    """Most tokens of one response, as the request itself sets it; None without a number of tokens.

    Of a chat's two limits the larger one: servers take either one first.
    """
    if path == "/v1/responses":
        limits = [fields.max_output_tokens]
    elif path == "/v1/chat/completions":
        limits = [fields.max_tokens, fields.max_completion_tokens]
    else:
        limits = [fields.max_tokens]
    return max((count for limit in limits if (count := integer_of(limit)) is not None and count >= 0), default=None)


def responses(fields: RequestFields) -> int:
    """How many responses a model writes: to each prompt `n`, or `best_of` of which `n` are returned."""
    counts = (lenient_integer_of(fields.n) or 1, lenient_integer_of(fields.best_of) or 1)
    prompts = sum(count_items(texts) for texts in (fields.prompt, fields.prompt_embeds) if not is_null(texts))
    return max(1, *counts) * max(1, prompts)


def repeated_bytes(fields: RequestFields) -> int:
    """Bytes of a query beyond the one in the body: the model computes it with each document, and usage counts it so."""
    ranks = len(fields.query) > 0
    query, others = (fields.query, fields.documents) if ranks else (fields.text_1, fields.text_2)
    if not is_text(query) or not len(others):
        return 0
    return min(MAX_REPEATED_BYTES, max(0, count_items(others) - 1) * len(query))
