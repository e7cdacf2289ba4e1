"""Every file and key of a folder that transformers reads for a tokenizer: present, absent, null, contradicting.

Each folder is loaded by transformers too: numbers of tokens, names, end tokens, templates and refusals are its own.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from slipway_process.model_folder.added_tokens import misnumbered, vocabulary
from slipway_process.model_folder.end_tokens import tokenizer_ids
from slipway_process.model_folder.json_files import BadFile
from slipway_process.model_folder.tokenizer_files import TokenizerFiles
from slipway_server.text.chat_template import ChatTemplate, ChatTemplateError
from slipway_server.text.tokenizer import Tokenizer as Ours

pytestmark = pytest.mark.integration

Files = dict[str, Any]  # contents by file names
ABSENT: Any = object()
OWN = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")  # in tokenizer.json, from 256 on
LETTERS = 256
TEXT = "a<s></s> <|im_start|>b<|im_end|> <new> <extra> c<image>  <pad>d<|end|>"
CONFIG, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"


def flags(content: str, **changed: bool) -> dict[str, Any]:
    own = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    return {"content": content, **own, **changed}


def marked(content: str, **changed: bool) -> dict[str, Any]:
    """A token in tokenizer_config.json, as transformers writes it."""
    return {"__type": "AddedToken", **flags(content, **changed)}


def in_map(content: str, **changed: bool) -> dict[str, Any]:
    """A token in special_tokens_map.json, which has no `special`."""
    return {name: value for name, value in flags(content, **changed).items() if name != "special"}


def given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not ABSENT}


DECODERS = {
    "none": ABSENT,
    "own": {str(LETTERS + at): flags(text) for at, text in enumerate(OWN)},
    "more": {"260": flags("<new>"), "261": flags("<extra>", special=False, normalized=True)},
    "other numbers": {"300": flags("<new>"), "290": flags("<extra>", rstrip=True), "257": flags("<s>", special=False)},
}


def names_of_tokens() -> Iterator[tuple[str, Files]]:
    """eos_token and its like, in both files, with and without a list of added tokens."""
    in_config = [ABSENT, None, "<|im_end|>", marked("<new>", lstrip=True)]
    of_map = [ABSENT, None, "</s>", in_map("<new>", rstrip=True), "<|end|>"]
    for at, (own, other, (name, listed)) in enumerate(itertools.product(in_config, of_map, DECODERS.items())):
        config = given(eos_token=own, bos_token="<s>", pad_token=own, added_tokens_decoder=listed)
        yield f"eos {at} {name}", {CONFIG: config, MAP: given(eos_token=other, image_token=other)}


def lists_of_tokens() -> Iterator[tuple[str, Files]]:
    written = [ABSENT, {}, {"<new>": 260, "<extra>": 261}, {"<new>": 270}, {"</s>": 400, "<extra>": 256}]
    for at, (added, (name, listed), extra) in enumerate(
        itertools.product(written, list(DECODERS.items())[:3], [ABSENT, ["<extra>"]])
    ):
        files = {CONFIG: given(added_tokens_decoder=listed, additional_special_tokens=extra)}
        yield f"added {at} {name}", files if added is ABSENT else files | {ADDED: added}


def extra_tokens() -> Iterator[tuple[str, Files]]:
    extra = [ABSENT, None, [], ["<new>", "<s>"], {"image_token": "<|im_start|>", "boi_token": "<image>"}]
    older = [ABSENT, None, ["<extra>", "<|im_end|>"]]
    in_map_too = [{}, {"additional_special_tokens": ["<image>"]}, {"extra_special_tokens": ["<image>"]}]
    for at, (new, old, mapped) in enumerate(itertools.product(extra, older, in_map_too)):
        if new == [] and "extra_special_tokens" in mapped:
            continue
        config = given(
            extra_special_tokens=new, additional_special_tokens=old, add_bos_token=True, image_token=new and "<image>"
        )
        yield f"extra {at}", {CONFIG: {name: value for name, value in config.items() if value != ""}, MAP: mapped}


def templates() -> Iterator[tuple[str, Files]]:
    plain, tools = "C{{ bos_token }}{{ messages|length }}", "T{{ tools|length }}"
    in_config = [
        ABSENT,
        None,
        plain,
        [{"name": "default", "template": plain}],
        [{"name": "default", "template": plain}, {"name": "tool_use", "template": tools}],
        [{"name": "tool_use", "template": tools}],
        {"default": plain, "tool_use": tools},
    ]
    beside = [{}, {"chat_template.jinja": "J{{ eos_token }}\r\n{{ messages|length }}"}]
    folder = "additional_chat_templates/"
    more = [
        {},
        {f"{folder}tool_use.jinja": "U{{ tools|length }}"},
        {f"{folder}default.jinja": "D{{ messages|length }}"},
        {f"{folder}rag.jinja": "R", f"{folder}tool_use.jinja": "U"},
        {f"{folder}rag.jinja": "R"},
    ]
    for at, (own, jinja, others) in enumerate(itertools.product(in_config, beside, more)):
        config = given(chat_template=own, bos_token="<s>", eos_token="</s>")
        yield f"template {at}", {CONFIG: config, **jinja, **others}


def damaged() -> Iterator[tuple[str, Files]]:
    """What transformers refuses."""
    configs: list[dict[str, Any]] = [
        {"eos_token": 2},
        {"eos_token": False},
        {"pad_token": ["<s>"]},
        {"extra_special_tokens": {"image_token": 3}},
        {"extra_special_tokens": 3},
        {"added_tokens_decoder": {"x": flags("<new>")}},
        {"added_tokens_decoder": {"1" * 5000: flags("<new>")}},
        {"added_tokens_decoder": {"260": "<new>"}},
        {"added_tokens_decoder": {"260": {"special": True}}},
        {"added_tokens_decoder": []},
        {"chat_template": [1]},
        {"chat_template": [{"name": "default"}]},
    ]
    for at, config in enumerate(configs):
        yield f"damaged {at}", {CONFIG: config}
    yield "damaged template", {CONFIG: {}, "chat_template.jinja": b"\xff\xfe"}
    yield "damaged config", {CONFIG: b"{"}
    yield "damaged map", {CONFIG: {}, MAP: b"[1"}
    yield "damaged added", {CONFIG: {}, ADDED: {"<new>": "a"}}
    yield "damaged list", {CONFIG: b"[]"}


SOUND = dict(itertools.chain(names_of_tokens(), lists_of_tokens(), extra_tokens(), templates()))
DAMAGED = dict(damaged())


@pytest.fixture(scope="module")
def tokenizer_json() -> str:
    """A byte-level tokenizer, as most published ones are."""
    letters = {letter: at for at, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab=letters, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_tokens([AddedToken(text, special=True, normalized=False) for text in OWN])
    return made.to_str()


Write = Callable[[Files], Path]


@pytest.fixture
def write(tmp_path: Path, tokenizer_json: str) -> Write:
    def written(files: Files) -> Path:
        (tmp_path / "tokenizer.json").write_text(tokenizer_json)
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            data = content if isinstance(content, bytes | str) else json.dumps(content)
            (tmp_path / name).write_bytes(data.encode() if isinstance(data, str) else data)
        return tmp_path

    return written


def rendered(render: Callable[[], str]) -> str | None:
    try:
        return render()
    except (ValueError, ChatTemplateError):
        return None


@pytest.mark.parametrize("name", SOUND)
def test_a_folder_is_read_as_transformers_reads_it(name: str, write: Write) -> None:
    from transformers import PreTrainedTokenizerFast

    folder = write(SOUND[name])
    theirs: Any = PreTrainedTokenizerFast.from_pretrained(folder)
    files, ours = TokenizerFiles.read(folder), Ours(folder)
    assert files.texts == theirs.special_tokens_map
    assert list(ours.encode_now(TEXT)) == theirs(TEXT)["input_ids"]
    tokens = list(range(ours.vocabulary_size))
    assert ours.vocabulary_size == len(theirs)
    for skip in (True, False):
        assert ours.decode(tokens, skip_special_tokens=skip) == theirs.decode(tokens, skip_special_tokens=skip)
    ends = [] if theirs.eos_token is None else [theirs.eos_token_id]
    numbers = vocabulary(folder, files)
    assert list(tokenizer_ids(numbers, files.texts.get("eos_token"))) == ends
    assert {text: entry.id for text, entry in numbers.added.items()} == theirs.get_added_vocab()
    template, messages = ChatTemplate.read(folder), [{"role": "user", "content": "x"}]
    for tools in (None, [{"type": "function", "function": {"name": "f"}}]):
        given: dict[str, Any] = {"tools": tools, "tokenize": False}
        assert rendered(lambda given=given: theirs.apply_chat_template(messages, **given)) == rendered(  # type: ignore[misc]
            lambda tools=tools: template.render(messages, tools=tools, add_generation_prompt=False)  # type: ignore[misc]
        )


@pytest.mark.parametrize("name", DAMAGED)
def test_what_transformers_refuses_is_refused_by_name(name: str, write: Write) -> None:
    from transformers import PreTrainedTokenizerFast

    folder = write(DAMAGED[name])
    with pytest.raises(BadFile, match=r"tokenizer_config\.json|special_tokens_map|added_tokens|chat_template"):
        TokenizerFiles.read(folder)
    with pytest.raises((TypeError, ValueError, KeyError, AttributeError)):
        PreTrainedTokenizerFast.from_pretrained(folder).apply_chat_template([], tokenize=False)


def test_a_number_that_is_not_kept_is_named(write: Write) -> None:
    folder = write({CONFIG: {"added_tokens_decoder": DECODERS["other numbers"]}})
    files = TokenizerFiles.read(folder)
    assert sorted(misnumbered(vocabulary(folder, files), files)) == ["<extra>", "<new>", "<s>"]


def test_the_grammars_of_a_model_know_its_added_tokens(write: Write) -> None:
    """The process of grammars reads the same tokens as the one that serves."""
    from slipway_server.engine.grammars.compiler import load_tokenizer

    folder = write({CONFIG: {"eos_token": "<|end|>"}})
    assert Ours(folder).vocabulary_size == 261
    assert load_tokenizer(folder / "tokenizer.json", 261, (260,)).vocab_size == 261
