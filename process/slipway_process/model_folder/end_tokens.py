"""Which tokens end an answer: those that generation_config.json or config.json name, and the tokenizer's own.

Many fine-tunes of chats name the base model's token in their configs and the chat's in the tokenizer: vLLM, SGLang and
llama.cpp end an answer at either.
"""

from collections.abc import Mapping
from typing import Any

from slipway_process.model_folder.added_tokens import Vocabulary

# Names of tokens that end a turn or a text, in published tokenizers: llama.cpp finds them so too.
KNOWN = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>",
    "<|end_of_turn|>", "<end_of_turn>", "<turn|>", "<|END_OF_TURN_TOKEN|>", "<end_of_utterance>", "<EOT>", "_<EOT>",
    "[EOT]", "</s>", "<eos>", "[EOS]", "<|eos|>", "<｜end▁of▁sentence｜>", "<|endofassistant|>",
)  # fmt: skip


class BadEndToken(Exception):
    """What is wrong with the end tokens of a folder: the predicate of a sentence for a person."""


def named_ids(*configs: Mapping[str, Any]) -> tuple[int, ...]:
    """The IDs in `eos_token_id` of the first of these configs that names some. -1 is none, as transformers writes it.

    Raises:
        BadEndToken: a value is no ID and no list of IDs.
    """
    for config in configs:
        written = config.get("eos_token_id")
        ids = written if isinstance(written, list) else [] if written is None else [written]
        if not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
            raise BadEndToken(f"is {str(written)[:64]}: it must be a token's number, or a list.")
        if known := tuple(token for token in ids if token >= 0):
            return known
    return ()


def tokenizer_ids(tokens: Vocabulary, eos_token: str | None) -> tuple[int, ...]:
    """The ID of the tokenizer's end token; empty without one, or where the tokenizer has no such token."""
    token = tokens.id_of(eos_token) if eos_token else None
    return () if token is None else (token,)


def found_ids(tokens: Vocabulary) -> tuple[int, ...]:
    """The IDs of tokens with a known name, for a folder in which no file names an end token."""
    return tuple(token.id for name in KNOWN if (token := tokens.added.get(name)) is not None)
