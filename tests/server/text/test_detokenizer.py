"""Deltas of tokens are their text, in every kind of tokenizer: the library's own decoder is the measure."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_server.text.detokenizer import MAX_PENDING_TOKENS, detokenizer
from slipway_server.text.tokenizer import BYTE_FALLBACK, BYTE_LEVEL, OTHER, Tokenizer
from tests.conftest import MODELS
from tests.server.text.tokenizers_made import byte_fallback, word_piece

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
SHIP = "漢字🚢漢字漢字"


BY_BYTES = ("sentencepiece", "gemma", "byte-level")


@pytest.fixture(scope="module", params=[*BY_BYTES, "word-piece"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return made(request.param, tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module", params=BY_BYTES)
def by_bytes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return made(request.param, tmp_path_factory.mktemp("tokenizer"))


def made(kind: str, folder: Path) -> Tokenizer:
    match kind:
        case "sentencepiece" | "gemma":
            return byte_fallback(folder, strips=kind == "sentencepiece")
        case "byte-level":
            return Tokenizer(MODELS / "tiny-v1")
        case _:
            return word_piece(folder)


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return byte_fallback(tmp_path_factory.mktemp("tokenizer"))


def deltas(
    tokenizer: Tokenizer, tokens: tuple[int, ...], prompt: tuple[int, ...] = (), *, skip: bool = True
) -> list[str]:
    text = detokenizer(tokenizer, prompt, skip_special_tokens=skip)
    return [*(text.push(token) for token in tokens), text.flush()]


def test_the_kinds_of_tokenizers_are_distinguished(tmp_path: Path) -> None:
    assert Tokenizer(MODELS / "tiny-v1").kind is BYTE_LEVEL
    assert word_piece(tmp_path).kind is OTHER
    made = byte_fallback(tmp_path)
    assert made.kind is BYTE_FALLBACK and made.leading.count == 1
    assert byte_fallback(tmp_path, strips=False).leading.count == 0


@pytest.mark.finding(6)
def test_safety_6_characters_made_of_single_bytes_are_whole(sentencepiece: Tokenizer) -> None:
    """A window of six tokens was cut in the middle of a character, and the text was replacement characters."""
    tokens = sentencepiece.encode_now(SHIP)
    found = deltas(sentencepiece, tokens)
    assert "".join(found) == SHIP == sentencepiece.decode(list(tokens))
    assert [delta for delta in found if delta] == list(SHIP)


@pytest.mark.finding(6)
@given(st.data())
def test_safety_6_the_joined_deltas_equal_the_text(tokenizer: Tokenizer, data: st.DataObject) -> None:
    tokens = tokenizer.encode_now(data.draw(TEXTS))
    assert "".join(deltas(tokenizer, tokens)) == tokenizer.decode(list(tokens))


@given(st.data())
def test_an_answer_continues_its_prompt(by_bytes: Tokenizer, data: st.DataObject) -> None:
    """Only where a text begins, spaces are taken away."""
    tokenizer = by_bytes
    prompt, answer = tokenizer.encode_now("a ship"), tokenizer.encode_now(data.draw(TEXTS))
    whole = tokenizer.decode([*prompt, *answer])
    assert "".join(deltas(tokenizer, answer, prompt)) == whole[len(tokenizer.decode(list(prompt))) :]


@given(st.data())
def test_special_tokens_are_part_of_the_text_when_requested(by_bytes: Tokenizer, data: st.DataObject) -> None:
    tokenizer = by_bytes
    special = sorted(tokenizer.special_ids)
    texts = st.lists(
        st.one_of(st.sampled_from(special).map(lambda id: (id,)), TEXTS.map(tokenizer.encode_now)), max_size=6
    )
    tokens = tuple(token for part in data.draw(texts) for token in part)
    for skip in (True, False):
        whole = tokenizer.decode(list(tokens), skip_special_tokens=skip)
        assert "".join(deltas(tokenizer, tokens, skip=skip)) == whole


@given(st.lists(st.integers(0, 2047), max_size=30), st.booleans())
def test_any_tokens_of_a_byte_level_tokenizer(tokens: list[int], skip: bool) -> None:
    tokenizer = _byte_level()
    assert "".join(deltas(tokenizer, tuple(tokens), skip=skip)) == tokenizer.decode(tokens, skip_special_tokens=skip)


@given(st.data())
def test_broken_bytes_are_replaced_and_nothing_else_is(sentencepiece: Tokenizer, data: st.DataObject) -> None:
    """Of bytes that are no UTF-8 each becomes one character, as in the library; whole characters beside them stay."""
    tokens = data.draw(st.lists(st.integers(0, 330), max_size=30))
    found, whole = "".join(deltas(sentencepiece, tuple(tokens))), sentencepiece.decode(tokens)
    assert found.replace("\ufffd", "") == found.replace("\ufffd", "").encode().decode()
    if "\ufffd" not in whole:
        assert found == whole
    else:
        assert found.count("\ufffd") <= whole.count("\ufffd")
        assert [c for c in whole if c != "\ufffd"] == _without(found, whole)


def _without(found: str, whole: str) -> list[str]:
    """The characters of `whole` that the library found too: it may have withdrawn characters."""
    rest = iter(found)
    return [c for c in whole if c != "\ufffd" and any(c == other for other in rest)]


def test_invalid_bytes_are_not_held_back_for_ever(tmp_path: Path) -> None:
    for tokenizer in (byte_fallback(tmp_path), _byte_level()):
        broken = next(id for id in range(300) if tokenizer.bytes_of(id) == b"\xff")
        found = deltas(tokenizer, (broken,) * 100)
        assert "".join(found) == "\ufffd" * 100 and len([delta for delta in found if delta]) > 100 / MAX_PENDING_TOKENS


def test_bytes_of_single_tokens(sentencepiece: Tokenizer) -> None:
    """Log probabilities name tokens as they stand in the text: with their space, and with their bytes."""
    ship = sentencepiece.encode_now("a ship")[-1]
    assert any(sentencepiece.text_of(token).startswith(" ") for token in sentencepiece.encode_now("a ship"))
    assert sentencepiece.bytes_of(3 + 0xE6) == b"\xe6" and sentencepiece.text_of(3 + 0xE6) == "\ufffd"
    assert sentencepiece.text_of(0) == "<s>" and sentencepiece.bytes_of(99_999) == b""
    assert sentencepiece.text_of(ship)


def _byte_level() -> Tokenizer:
    return _BYTE_LEVEL


_BYTE_LEVEL = Tokenizer(MODELS / "tiny-v1")
