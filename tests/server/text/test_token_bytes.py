"""How many bytes a token can stand for: never less than any tokenizer makes of any text."""

import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from slipway_server.text.token_bytes import BYTES, FALLBACKS, NFC_FACTOR
from slipway_server.text.tokenizer import Tokenizer as Ours
from tests.conftest import MODELS
from tests.server.text.tokenizers_made import byte_fallback, word_piece

Change = Callable[[Tokenizer], None]
BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)


def byte_level(*, missing: str = "", **model: Any) -> Tokenizer:
    pieces = [*sorted(BYTES - set(missing)), "th", "the"]
    merges = [("t", "h"), ("th", "e")]
    made = Tokenizer(models.BPE(vocab={piece: at for at, piece in enumerate(pieces)}, merges=merges, **model))
    made.pre_tokenizer = BYTE_LEVEL
    return made


def fallback(*, missing: str = "", **model: Any) -> Tokenizer:
    pieces = [*sorted(FALLBACKS - {missing}), "▁", "a", "語"]
    vocabulary = {piece: at for at, piece in enumerate(pieces)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[], **({"byte_fallback": True} | model)))
    made.normalizer = normalizers.Replace(" ", "▁")
    return made


def read(made: Tokenizer, folder: Path) -> Ours:
    made.save(str(folder / "tokenizer.json"))
    return Ours(folder)


def normalizing(*parts: Any) -> Tokenizer:
    made = byte_level()
    made.normalizer = normalizers.Sequence(list(parts))
    return made


def splitting(*parts: Any) -> Tokenizer:
    made = byte_level()
    made.pre_tokenizer = pre_tokenizers.Sequence([*parts, BYTE_LEVEL])
    return made


def adding(token: AddedToken) -> Tokenizer:
    made = byte_level()
    made.add_special_tokens([token])
    return made


BOUNDED = {
    "byte-level": (byte_level(), 3),
    "with an added token": (adding(AddedToken("<|user|>")), 8),
    "split": (splitting(pre_tokenizers.Split(" ", "isolated"), pre_tokenizers.Digits()), 3),
    "NFC": (normalizing(normalizers.NFC()), 3 * NFC_FACTOR),
    "byte-fallback": (fallback(), 6),  # the name of a byte is its longest token
}


@pytest.mark.parametrize(("made", "most"), BOUNDED.values(), ids=BOUNDED)
def test_the_bound_is_the_longest_token(made: Tokenizer, most: int, tmp_path: Path) -> None:
    assert read(made, tmp_path).max_bytes(7) == 7 * most


UNBOUNDED = {
    "a byte is missing": byte_level(missing="a"),
    "a byte is missing and unknown tokens are fused": byte_level(missing="a", unk_token="the", fuse_unk=True),
    "no fallback": fallback(byte_fallback=False),
    "a fallback is missing": fallback(missing="<0x41>"),
    "accents are removed": normalizing(normalizers.NFC(), normalizers.StripAccents()),
    "blanks are removed": normalizing(normalizers.Replace(" ", "")),
    "runs are collapsed": normalizing(normalizers.Replace("  ", " ")),
    "compatible forms": normalizing(normalizers.NFKC()),
    "splits are removed": splitting(pre_tokenizers.Split(" ", "removed")),
    "words alone": splitting(pre_tokenizers.Whitespace()),
    "an added token takes blanks": adding(AddedToken("<|user|>", rstrip=True)),
    "a mask takes blanks": adding(AddedToken("<mask>", lstrip=True)),
    "unigrams": Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0, byte_fallback=False)),
}


@pytest.mark.parametrize("made", UNBOUNDED.values(), ids=UNBOUNDED)
def test_there_is_no_bound_where_a_token_may_stand_for_anything(made: Tokenizer, tmp_path: Path) -> None:
    assert read(made, tmp_path).max_bytes(7) is None


def test_published_kinds(tmp_path: Path) -> None:
    assert byte_fallback(tmp_path).max_bytes(1) == 8 and word_piece(tmp_path).max_bytes(1) is None
    assert Ours(MODELS / "tiny-v1").max_bytes(100) == 1400


@given(st.text(max_size=60) | st.text(alphabet=" ath\u0301\u212a\u1fbe語<|user|>", max_size=60))
def test_no_token_stands_for_more(text: str) -> None:
    for made, most in BOUNDED.values():
        tokens = made.encode_batch_fast([text])[0].ids
        assert len(text.encode("utf-8", "replace")) <= most * len(tokens), text


def test_nfc_joins_so_many_bytes_to_one_at_most() -> None:
    """The longest way to write each character: its decomposition, with the longest equal of each part."""
    characters = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    parts = {character: unicodedata.normalize("NFD", character) for character in characters}
    longest: dict[str, int] = {}
    for character, part in parts.items():
        if len(part) == 1:
            longest[part] = max(longest.get(part, 0), len(character.encode()), len(part.encode()))
    sizes = {character: sum(longest.get(one, len(one.encode())) for one in part) for character, part in parts.items()}
    assert all(len(character.encode()) <= sizes[character] for character in characters)
    composed = [character for character in characters if unicodedata.normalize("NFC", character) == character]
    ratios = [sizes[character] / len(character.encode()) for character in composed]
    assert 3 < max(ratios) <= NFC_FACTOR
