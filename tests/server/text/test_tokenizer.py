"""Tokenizer, detokenizer and chat template against transformers' own."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from slipway_server.text.chat_template import ChatTemplate, ChatTemplateError
from slipway_server.text.detokenizer import detokenizer
from slipway_server.text.tokenizer import Tokenizer, TokenizerError
from tests.conftest import MODELS

pytestmark = pytest.mark.integration

TOKENIZER = Tokenizer(MODELS / "tiny-v1")
TEXTS = [
    "In the beginning",
    " leading space",
    "Ünïcödé 漢字 🚢 ⚓",
    "line\n\nbreak\t.",
    "<|im_start|>user\nhi<|im_end|>",
]


def streamed(tokens: list[int], prompt: tuple[int, ...] = ()) -> str:
    text = detokenizer(TOKENIZER, prompt)
    return "".join(text.push(token) for token in tokens) + text.flush()


@pytest.mark.parametrize("model", ["tiny-v1", "minilm"])
def test_token_ids_equal_those_of_transformers(model: str, tiny_v1: Path, encoder: Path) -> None:
    folder = tiny_v1 if model == "tiny-v1" else encoder
    reference, ours = AutoTokenizer.from_pretrained(folder), Tokenizer(folder)
    for text in [*TEXTS, "long " * 400]:
        assert list(ours.encode_now(text)) == reference(text, truncation=False, padding=False).input_ids


@given(st.text(max_size=40))
def test_deltas_join_to_the_text(text: str) -> None:
    assert streamed(list(TOKENIZER.encode_now(text))) == TOKENIZER.decode(list(TOKENIZER.encode_now(text)))


@given(st.lists(st.integers(0, 2047), max_size=30))
def test_deltas_of_any_tokens_join_to_their_text(tokens: list[int]) -> None:
    assert streamed(tokens) == TOKENIZER.decode(tokens)


def test_a_broken_tokenizer_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json of .* cannot be read"):
        Tokenizer(tmp_path)


def test_characters_come_whole() -> None:
    text = detokenizer(TOKENIZER, TOKENIZER.encode_now("A ship:"))
    deltas = [text.push(token) for token in TOKENIZER.encode_now(" 🚢⚓")]
    assert "".join(deltas) == " 🚢⚓" and not any("\ufffd" in delta for delta in deltas)
    assert text.flush() == ""


def test_chat_prompts_equal_those_of_transformers(tiny_v1: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße\n"}]
    reference = AutoTokenizer.from_pretrained(tiny_v1)
    expected = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ChatTemplate.read(tiny_v1).render(messages) == expected


def test_a_template_in_the_tokenizer_config_is_found(tmp_path: Path) -> None:
    templates = [
        {"name": "other", "template": "no"},
        {"name": "default", "template": "{{ bos_token }}{{ messages|length }}"},
    ]
    config = {"chat_template": templates, "bos_token": {"content": "<s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert ChatTemplate.read(tmp_path).render([{"role": "user", "content": "x"}]) == "<s>1"


@pytest.mark.parametrize(
    "source",
    [None, "{{ raise_exception('roles must alternate') }}", "{{ messages.__class__.__mro__ }}", "{{ nothing() }}"],
)
def test_a_template_error_is_a_refusal(source: str | None) -> None:
    with pytest.raises(ChatTemplateError):
        ChatTemplate(source, {}).render([])
