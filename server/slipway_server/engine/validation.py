"""The engine's own check of requests: token ids within the vocabulary, and finite numbers in range.

The HTTP process checks the same with better sentences. This is the last check before kernels, which index memory by
token ids, and before the scheduler, which every request shares. Pure.
"""

from collections.abc import Iterator

from ..sampling import INT64, LARGEST, PARAMETERS
from .grammars.messages import MAX_GRAMMAR_BYTES
from .request import Grammar, Request, SamplingParams

KINDS = ("json_schema", "regex", "choice", "grammar")
Range = tuple[str, float, float, float]  # name, value, least, most


def validate_request(request: Request, vocab_size: int) -> None:
    """Raises ValueError, with the field's name, for a request that the engine must not take.

    `vocab_size`: rows of the embedding and columns of the logits that the model has; 0: not known.
    """
    _check_ids("prompt", request.prompt, vocab_size)
    _check_ids("resumed", request.resumed, vocab_size)
    if not request.prompt:
        raise ValueError("prompt is empty")
    for name, value, least, most in _ranges(request):
        # Written so that NaN fails.
        if not least <= value <= most:
            raise ValueError(f"{name} is {value!r:.40}: it must be a finite number from {least:g} to {most:g}")
    if request.sampling:
        _check_rules(request.sampling, vocab_size)
        _check_grammar(request.sampling.grammar)


def _ranges(request: Request) -> Iterator[Range]:
    yield "priority", request.priority, -INT64 - 1, INT64
    yield "weight", request.weight, 1e-6, 1e6
    if request.timeout_s is not None:
        yield "timeout", request.timeout_s, 0, 1e9
    p = request.sampling
    if p is None:
        return
    for name, parameter in PARAMETERS.items():
        if parameter.range:
            yield name, getattr(p, name), *parameter.range
    for _, bias in p.logit_bias:
        yield "logit_bias", bias, -LARGEST, LARGEST


def _check_rules(p: SamplingParams, vocab_size: int) -> None:
    """Stop tokens and bad words outside the vocabulary are harmless: the model cannot generate them."""
    if p.repetition_penalty <= 0:
        raise ValueError(f"repetition_penalty is {p.repetition_penalty!r}: it must be above 0")
    _check_ids("logit_bias", tuple(token for token, _ in p.logit_bias), vocab_size)
    _check_ids("allowed_token_ids", p.allowed_token_ids, vocab_size)
    _check_ids("stop_token_ids", p.stop_token_ids, 0)
    for word in p.bad_words:
        if not word:
            raise ValueError("bad_words has a word without tokens")
        _check_ids("bad_words", word, 0)


def _check_grammar(grammar: Grammar | None) -> None:
    if grammar is None:
        return
    if grammar.kind not in KINDS:
        raise ValueError(f"grammar is of the kind {grammar.kind!r:.40}: it must be one of {', '.join(KINDS)}")
    if len(grammar.text.encode()) > MAX_GRAMMAR_BYTES:
        raise ValueError(f"grammar has more than {MAX_GRAMMAR_BYTES} bytes")


def _check_ids(name: str, ids: tuple[int, ...], vocab_size: int) -> None:
    if not ids:
        return
    if min(ids) < 0:
        raise ValueError(f"{name} has the token id {min(ids)}, which is below 0")
    if vocab_size and max(ids) >= vocab_size:
        raise ValueError(f"{name} has the token id {max(ids)}; the model has ids below {vocab_size}")
