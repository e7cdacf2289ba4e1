"""Which tokens end an answer, of every file that names one: present, absent, null, contradicting."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipway_process.model_folder.added_tokens import vocabulary
from slipway_process.model_folder.end_tokens import BadEndToken, found_ids, named_ids, tokenizer_ids
from slipway_process.model_folder.tokenizer_files import TokenizerFiles

ABSENT = object()


def config(value: object, name: str = "eos_token_id") -> dict[str, Any]:
    return {} if value is ABSENT else {name: value}


@pytest.mark.parametrize(
    ("generation", "own", "nested"),
    [*itertools.product([ABSENT, None, -1, 0, [7, 8], [-1]], [ABSENT, None, 2], [ABSENT, 5])],
)
def test_the_first_config_that_names_some_counts(generation: object, own: object, nested: object) -> None:
    """reports.md, 4: -1 made every request fail; it is none, as transformers writes it."""
    names = {0: (0,)} if generation == 0 else {7: (7, 8)} if generation == [7, 8] else {}
    expected = next(iter(names.values()), None)
    if expected is None:
        expected = (2,) if own == 2 else (5,) if nested == 5 else ()
    assert named_ids(config(generation), config(own), config(nested)) == expected


@pytest.mark.parametrize("value", ["2", True, [2, "a"], {"a": 1}, 2.0])
def test_what_is_no_id_is_refused(value: object) -> None:
    with pytest.raises(BadEndToken, match="it must be a token's number, or a list"):
        named_ids({}, {"eos_token_id": value})


Write = Callable[[dict[str, Any]], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a folder's files; tokenizer.json is there already."""
    added = [{"id": 4, "content": "<|im_end|>", "special": True, "lstrip": False}]
    vocab = {"a": 0, '"</s>': 1, "</s>": 2, "é\n": 3}
    model = {"type": "BPE", "vocab": vocab, "merges": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added, "model": model}))

    def written(files: dict[str, Any]) -> Path:
        for name, content in files.items():
            (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
        return tmp_path

    return written


def end_of(folder: Path) -> tuple[int, ...]:
    files = TokenizerFiles.read(folder)
    return tokenizer_ids(vocabulary(folder, files), files.texts.get("eos_token"))


LISTED = {"added_tokens_decoder": {"5": {"content": "<|end|>", "special": True}}}


@pytest.mark.parametrize(
    ("tokenizer_config", "special_tokens_map", "expected"),
    [
        ({"eos_token": "<|im_end|>"}, {}, (4,)),
        ({"eos_token": {"content": "<|im_end|>", "lstrip": False}}, {}, (4,)),
        ({}, {"eos_token": "<|im_end|>"}, (4,)),
        ({"eos_token": None}, {"eos_token": {"content": "</s>"}}, (2,)),
        ({"eos_token": "</s>"}, {"eos_token": "<|im_end|>"}, (4,)),
        ({"eos_token": "<|end|>"} | LISTED, {"eos_token": "<|im_end|>"}, (5,)),
        ({"eos_token": "é\n"}, {}, (3,)),
        ({"eos_token": "unknown"}, {}, (5,)),
        ({"eos_token": ""}, {}, ()),
        ({}, {}, ()),
    ],
)
def test_the_tokenizers_end_token_ends_a_chat_too(
    write: Write, tokenizer_config: dict[str, Any], special_tokens_map: dict[str, Any], expected: tuple[int, ...]
) -> None:
    """reports.md, 3: fine-tunes of chats name the base model's token in generation_config.json."""
    folder = write({"tokenizer_config.json": tokenizer_config, "special_tokens_map.json": special_tokens_map})
    assert end_of(folder) == expected


def test_a_vocabulary_may_be_a_list(write: Write) -> None:
    model = {"type": "Unigram", "vocab": [["</s>", 0.0], ["a", -1.5]]}
    own = {"tokenizer.json": {"added_tokens": [], "model": model}, "tokenizer_config.json": {"eos_token": "</s>"}}
    assert end_of(write(own)) == (0,)


@pytest.mark.parametrize("content", ["{", "[]", '{"added_tokens": 1}', ""])
def test_a_broken_tokenizer_is_for_whoever_loads_it(write: Write, content: str) -> None:
    folder = write({"tokenizer.json": content, "tokenizer_config.json": {"eos_token": "</s>"}})
    assert end_of(folder) == ()
    (folder / "tokenizer.json").unlink()
    assert end_of(folder) == ()


def test_where_no_file_names_an_end_token_those_with_a_known_name_end_a_text(write: Write) -> None:
    """As llama.cpp does. </s> of this vocabulary is an ordinary word of it, not an added token."""
    folder = write({"added_tokens.json": {"<|eot_id|>": 5, "<other>": 6}})
    assert found_ids(vocabulary(folder, TokenizerFiles.read(folder))) == (5, 4)
