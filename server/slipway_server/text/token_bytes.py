"""The most bytes of a text that one of its tokens can stand for, where a tokenizer has such a bound (pure).

A text of more bytes than a context has tokens times this bound cannot fit, and need not be tokenized to know it. Most
byte-level and byte-fallback BPE tokenizers have a bound: the longest entry of their vocabulary. There is none where
something may stand for any number of bytes, or for bytes that it drops:

- an unknown token that stands for a whole word (WordPiece, WordLevel), or for several characters (Unigram, `fuse_unk`);
- a BPE without a token for each byte, which drops characters that it does not know;
- a normalizer or a pre-tokenizer that removes characters: blanks, accents, runs of blanks;
- an added token that takes the blanks beside it (`lstrip`, `rstrip`).
"""

from collections.abc import Iterable, Mapping
from typing import Any

Part = Mapping[str, Any]  # a part of tokenizer.json

BYTE_LEVEL = "ByteLevel"
# NFC joins characters: seven bytes to two at most (U+1FBE with two accents to U+0390). The others only add bytes.
NFC_FACTOR = 4
_ADD_BYTES = frozenset({"Prepend", BYTE_LEVEL})
# Pre-tokenizers that split and drop nothing, where `behavior` does not say so.
_KEEP_ALL = frozenset({BYTE_LEVEL, "Digits", "Metaspace", "Split", "Punctuation"})


def most_bytes(
    normalizer: Part | None,
    pre_tokenizer: Part | None,
    model: Part,
    vocabulary: Iterable[str],
    added: Iterable[Part],
) -> int | None:
    """The bound in bytes; None where there is none.

    Args:
        model: its `type`, and of a BPE `byte_fallback`.
        vocabulary: the tokens of the model, as the file has them.
        added: `content`, `lstrip` and `rstrip` of each added token.
    """
    tokens, special = set(vocabulary), list(added)
    splits = _parts(pre_tokenizer, "pretokenizers")
    steps = _parts(normalizer, "normalizers")
    factor = _shrinks_by(steps)
    by_byte = any(part["type"] == BYTE_LEVEL for part in (*splits, *steps))
    complete = model["type"] == "BPE" and (
        tokens >= BYTES if by_byte else bool(model.get("byte_fallback")) and tokens >= FALLBACKS
    )
    if factor is None or not complete or not all(map(_keeps_all, splits)):
        return None
    if any(token["lstrip"] or token["rstrip"] for token in special):
        return None
    # In a byte-level vocabulary each character stands for one byte.
    longest = max(len(token) if by_byte else len(token.encode()) for token in tokens)
    return factor * max([longest, *(len(token["content"].encode()) for token in special)])


def _parts(whole: Part | None, name: str) -> list[Part]:
    if whole is None:
        return []
    return list(whole[name]) if whole["type"] == "Sequence" else [whole]


def _shrinks_by(normalizers: Iterable[Part]) -> int | None:
    """How many bytes of a text may become one byte; None for any number."""
    factor = 1
    for part in normalizers:
        if part["type"] == "NFC":
            factor *= NFC_FACTOR
        elif part["type"] == "Replace":
            pattern = part["pattern"].get("String", "")
            if not pattern or len(part["content"].encode()) < len(pattern.encode()):
                return None
        elif part["type"] not in _ADD_BYTES:
            return None
    return factor


def _keeps_all(split: Part) -> bool:
    return split["type"] in _KEEP_ALL and split.get("behavior") != "Removed"


def byte_characters() -> dict[str, int]:
    """The byte of each character in the names of byte-level tokens.

    Each byte is written as a printable character: the byte's own where it is printable, else one from 256 on.
    """
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + n): byte for n, byte in enumerate(hidden)}


BYTES = byte_characters().keys()
FALLBACKS = {f"<0x{byte:02X}>" for byte in range(256)}
