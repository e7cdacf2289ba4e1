"""Compiles a client's grammar to a matcher of llguidance, within limits. Refusals are sentences for the client."""

import json
import re
from pathlib import Path

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, grammar_from

from slipway_process.model_folder.added_tokens import completed

MAX_REASON_CHARACTERS = 300  # of llguidance's own error message
# A mask usually costs 10 to 400 microseconds. With these limits, the slowest mask that a client can provoke costs about
# 5 ms, and a matcher takes at most about 10 MB.
LIMITS = LLParserLimits(
    max_items_in_row=2500,  # about 600 properties of one object that are not required
    initial_lexer_fuel=500_000,
    step_lexer_fuel=60_000,
    step_max_items=20_000,
    max_lexer_states=8192,
    max_grammar_size=200_000,
    verbose_errors=False,
)
_UNSUPPORTED = re.compile(r"Unimplemented keys: \[(.*?)\]")
_FORMAT = re.compile(r"Unknown format: (\S+)")
# What llguidance calls its limits of one place in an answer (LIMITS), which it meets there and not as it compiles.
_LIMIT = re.compile(r"items; max is|[Tt]oo many (?:items|lexer states)|fuel|limit")


class GrammarError(Exception):
    """Why a grammar cannot be used: one sentence for a client."""


def load_tokenizer(file: Path, vocabulary: int, stop_token_ids: tuple[int, ...]) -> LLTokenizer:
    """Loads a tokenizer for llguidance: seconds for a large vocabulary. `vocabulary`: columns of the model's logits.

    Raises:
        GrammarError: the bytes of the tokens are not known, or the model has no stop token.
    """
    if not stop_token_ids:
        raise GrammarError("This model has no stop token, so that no answer with a grammar could end.")
    text = completed(file.parent)
    try:
        own = LLTokenizer(text, eos_token=list(stop_token_ids))
        return own if own.vocab_size >= vocabulary else LLTokenizer(text, vocabulary, list(stop_token_ids))
    except Exception as error:  # the library raises ValueError; its panics are no Exception and end the process
        raise GrammarError(f"Grammars need a tokenizer whose tokens are bytes: {_short(str(error))}") from None


def compile_grammar(tokenizer: LLTokenizer, kind: str, text: str) -> LLMatcher:
    """Compiles `text`. `kind`: json_schema, regex, choice (a JSON list) or grammar (Lark, or llama.cpp's EBNF).

    Raises:
        GrammarError: the grammar cannot be used.
    """
    try:
        matcher = LLMatcher(tokenizer, _serialized(kind, text), log_level=0, limits=LIMITS)
    except Exception as error:
        raise GrammarError(_sentence(kind, str(error))) from None
    check(matcher, kind)
    return matcher


def check(matcher: LLMatcher, kind: str = "grammar") -> None:
    """Raises GrammarError for a matcher that has failed: its masks would allow only the end of the answer."""
    if matcher.is_error():
        raise GrammarError(_sentence(kind, matcher.get_error()))


def limit_met(matcher: LLMatcher, kind: str = "grammar") -> str:
    """Which of LIMITS the matcher has met, as a sentence for the client; "" for none: a token was not allowed."""
    error = matcher.get_error()
    return _sentence(kind, error) if _LIMIT.search(error) else ""


def _serialized(kind: str, text: str) -> str:
    if kind == "regex":
        return LLMatcher.grammar_from_regex(text)
    if kind == "choice":
        return LLMatcher.grammar_from_regex("|".join(map(re.escape, json.loads(text))))
    if kind == "grammar":
        return grammar_from("grammar", text)
    schema = json.loads(text)
    if not isinstance(schema, dict):
        schema = {} if schema else {"not": {}}
    # The server sets the schema's white space (see http/requests/structured.py); `lenient` would ignore keywords.
    return LLMatcher.grammar_from_json_schema(schema, overrides={"lenient": False, "coerce_one_of": False})


def _sentence(kind: str, error: str) -> str:
    error = error.removesuffix("<non-verbose/>").strip()
    if found := _UNSUPPORTED.search(error):
        keywords = [f"{name.strip()}" for name in found[1].split(",")]
        plural = "keywords" if len(keywords) > 1 else "keyword"
        return f"The JSON schema has the {plural} {', '.join(keywords)}, which this server does not support."
    if found := _FORMAT.search(error):
        return f'The JSON schema has the format "{found[1]}", which this server does not support.'
    if error.startswith("oneOf"):
        return (
            'The JSON schema has the keyword "oneOf" with alternatives that one value could match together, which this '
            'server does not support: use anyOf, or give each alternative a property with its own "const".'
        )
    if "not present in a registry" in error:
        return f'The JSON schema has a "$ref" to another document: only references within it are supported. {error}'
    names = {"json_schema": "JSON schema", "regex": "regular expression", "choice": "choice"}
    name = names.get(kind, "grammar")
    if _LIMIT.search(error):
        return (
            f"The {name} allows more at one place of an answer than this server follows (about 600 properties of one "
            f"object that are not required): make it smaller. {_short(error)}"
        )
    return f"The {name} cannot be used: {_short(error)}"


def _short(error: str) -> str:
    text = " ".join(error.split())
    return text if len(text) <= MAX_REASON_CHARACTERS else text[:MAX_REASON_CHARACTERS] + "…"
