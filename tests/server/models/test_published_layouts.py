"""Folders with the files and keys of published chat models, small: prompts and ends are those of transformers.

Names and flags of tokens, and which file has which key, are as on the hub; vocabularies are cut, and templates are
written for these tests.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from slipway_process.model_folder.added_tokens import vocabulary
from slipway_process.model_folder.end_tokens import named_ids, tokenizer_ids
from slipway_process.model_folder.tokenizer_files import TokenizerFiles
from slipway_server.text.chat import Chat
from slipway_server.text.chat_template import ChatTemplate
from slipway_server.text.rendering import render
from slipway_server.text.tokenizer import Tokenizer as Ours
from tests.server.process import ServerProcess, post

pytestmark = pytest.mark.integration

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TURNS = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>{{ message.role }}\n{{ message.content | trim }}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
HEADERS = (
    "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n"
    "{{ message.content | trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant"
    "<|end_header_id|>\n\n{% endif %}"
)
INSTRUCT = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'user' %}[INST] {{ message.content }} [/INST]"
    "{% else %} {{ message.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
ROLES = (
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
)
NAMED_ROLES = (
    "{{ bos_token }}{% for m in messages %}<｜{{ m.role | capitalize }}｜>{{ m.content }}{% if m.role == 'assistant' %}"
    "<｜end▁of▁sentence｜>{% endif %}{% endfor %}<｜Assistant｜>"
)
UTTERANCES = (
    "{{ image_token }}{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}{{ end_of_utterance_token }}"
    "{% endfor %}"
)
EOS_ROLES = (
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MESSAGES = [
    {"role": "user", "content": " Is it dark? <s>"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Why?</s>"},
]


def flags(content: str, **changed: bool) -> dict[str, Any]:
    own = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    return {"content": content, **own, **changed}


def in_map(content: str, **changed: bool) -> dict[str, Any]:
    return {name: value for name, value in flags(content, **changed).items() if name != "special"}


def numbered(first: int, *tokens: str | dict[str, Any]) -> dict[str, Any]:
    described = [flags(token) if isinstance(token, str) else token for token in tokens]
    return {str(first + at): token for at, token in enumerate(described)}


def byte_level(*added: str | AddedToken, bos: str = "") -> Tokenizer:
    letters = {letter: at for at, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab=letters, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    return _finished(made, added, bos)


def sentence_piece(
    *added: str | AddedToken, bos: str = "<s>", first: tuple[str, ...] = ("<unk>", "<s>", "</s>")
) -> Tokenizer:
    pieces = [*first, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefghijklmnopqrstuvwxyzIYW?."]
    vocab = {piece: at for at, piece in enumerate(pieces)}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    strip = decoders.Strip(" ", 1, 0)
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    return _finished(made, (*first, *added), bos)


def _finished(made: Tokenizer, added: tuple[str | AddedToken, ...], bos: str) -> Tokenizer:
    made.add_tokens([AddedToken(one, special=True, normalized=False) if isinstance(one, str) else one for one in added])
    if bos:
        made.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, made.token_to_id(bos))]
        )
    return made


QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|vision_start|>")
PLAIN = [AddedToken(name, special=False, normalized=False) for name in ("<tool_call>", "</tool_call>")]
LLAMA3 = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
)
PHI = ("<|endoftext|>", "<|assistant|>", "<|system|>", "<|end|>", "<|user|>")
GEMMA = ("<pad>", "<eos>", "<bos>", "<unk>")
DEEPSEEK = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>")
PHI_ADDED = {name: 291 + at for at, name in enumerate(PHI)}

# The tokenizer, the model's type, the texts that end an answer, and the other files.
LAYOUTS: dict[str, tuple[Tokenizer, str, set[str], dict[str, Any]]] = {
    "Qwen2.5-Instruct": (
        byte_level(*QWEN, *PLAIN),
        "qwen2",
        {"<|im_end|>", "<|endoftext|>"},
        {
            "generation_config.json": {"eos_token_id": [258, 256], "pad_token_id": 256},
            "tokenizer_config.json": {
                "add_bos_token": False,
                "add_prefix_space": False,
                "bos_token": None,
                "eos_token": "<|im_end|>",
                "pad_token": "<|endoftext|>",
                "unk_token": None,
                "errors": "replace",
                "split_special_tokens": False,
                "additional_special_tokens": ["<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|vision_start|>"],
                "added_tokens_decoder": numbered(
                    256, *QWEN, *(flags(f"<{end}tool_call>", special=False) for end in ("", "/"))
                ),
                "tokenizer_class": "Qwen2Tokenizer",
                "chat_template": CHATML,
                "model_max_length": 131072,
                "clean_up_tokenization_spaces": False,
            },
        },
    ),
    "a fine-tune of Qwen2.5 that names the base model's end": (
        byte_level(*QWEN),
        "qwen2",
        {"<|im_end|>", "<|endoftext|>"},
        {
            "generation_config.json": {"eos_token_id": 256},
            "added_tokens.json": {name: 256 + at for at, name in enumerate(QWEN)},
            "special_tokens_map.json": {
                "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
                "eos_token": in_map("<|im_end|>"),
                "pad_token": in_map("<|endoftext|>"),
            },
            "tokenizer_config.json": {
                "eos_token": "<|im_end|>",
                "pad_token": "<|endoftext|>",
                "bos_token": None,
                "added_tokens_decoder": numbered(256, *QWEN),
                "tokenizer_class": "Qwen2Tokenizer",
            },
            "chat_template.jinja": CHATML,
        },
    ),
    "Llama-3.1-Instruct": (
        byte_level(*LLAMA3, bos="<|begin_of_text|>"),
        "llama",
        {"<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"},
        {
            "generation_config.json": {"bos_token_id": 256, "eos_token_id": [257, 260, 261]},
            "special_tokens_map.json": {"bos_token": in_map("<|begin_of_text|>"), "eos_token": in_map("<|eot_id|>")},
            "tokenizer_config.json": {
                "added_tokens_decoder": numbered(256, *LLAMA3),
                "bos_token": "<|begin_of_text|>",
                "eos_token": "<|eot_id|>",
                "chat_template": HEADERS,
                "clean_up_tokenization_spaces": True,
                "tokenizer_class": "PreTrainedTokenizerFast",
                "model_input_names": ["input_ids", "attention_mask"],
                "model_max_length": 131072,
            },
        },
    ),
    "Mistral-7B-Instruct": (
        sentence_piece("[INST]", "[/INST]"),
        "mistral",
        {"</s>"},
        {
            "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2},
            "special_tokens_map.json": {
                name: in_map(text)
                for name, text in (("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>"))
            },
            "tokenizer_config.json": {
                "add_bos_token": True,
                "add_eos_token": False,
                "added_tokens_decoder": numbered(0, "<unk>", "<s>", "</s>"),
                "bos_token": "<s>",
                "eos_token": "</s>",
                "unk_token": "<unk>",
                "pad_token": None,
                "legacy": False,
                "sp_model_kwargs": {},
                "spaces_between_special_tokens": False,
                "use_default_system_prompt": False,
                "model_max_length": 1000000000000000019884624838656,
                "tokenizer_class": "PreTrainedTokenizerFast",
                "chat_template": [
                    {"name": "default", "template": INSTRUCT},
                    {"name": "tool_use", "template": INSTRUCT + "{{ tools }}"},
                ],
            },
        },
    ),
    "Phi-3-mini-instruct": (
        sentence_piece(*PHI),
        "phi3",
        {"<|endoftext|>", "<|end|>", "<|assistant|>"},
        {
            "generation_config.json": {"bos_token_id": 1, "eos_token_id": [291, 292, 294], "pad_token_id": 291},
            "added_tokens.json": PHI_ADDED,
            "special_tokens_map.json": {
                "bos_token": in_map("<s>"),
                "eos_token": in_map("<|endoftext|>"),
                "pad_token": in_map("<|endoftext|>"),
                "unk_token": in_map("<unk>"),
            },
            "tokenizer_config.json": {
                "add_bos_token": False,
                "add_eos_token": False,
                "bos_token": "<s>",
                "eos_token": "<|endoftext|>",
                "added_tokens_decoder": {
                    **numbered(0, "<unk>", "<s>", flags("</s>", rstrip=True, special=False)),
                    **numbered(291, PHI[0], *(flags(name, rstrip=True) for name in PHI[1:])),
                },
                "pad_token": "<|endoftext|>",
                "unk_token": "<unk>",
                "tokenizer_class": "LlamaTokenizer",
                "chat_template": ROLES,
                "padding_side": "left",
                "legacy": False,
                "sp_model_kwargs": {},
                "use_default_system_prompt": False,
            },
        },
    ),
    "Gemma-2-it": (
        sentence_piece("<start_of_turn>", "<end_of_turn>", bos="<bos>", first=GEMMA),
        "gemma2",
        {"<eos>", "<end_of_turn>"},
        {
            "generation_config.json": {"bos_token_id": 2, "eos_token_id": [1, 293], "pad_token_id": 0},
            "special_tokens_map.json": {
                "additional_special_tokens": ["<start_of_turn>", "<end_of_turn>"],
                "bos_token": in_map("<bos>"),
                "eos_token": in_map("<eos>"),
                "pad_token": in_map("<pad>"),
                "unk_token": in_map("<unk>"),
            },
            "tokenizer_config.json": {
                "add_bos_token": True,
                "added_tokens_decoder": numbered(0, *GEMMA),
                "bos_token": "<bos>",
                "eos_token": "<eos>",
                "additional_special_tokens": ["<start_of_turn>", "<end_of_turn>"],
                "unk_token": "<unk>",
                "pad_token": "<pad>",
                "tokenizer_class": "PreTrainedTokenizerFast",
                "spaces_between_special_tokens": False,
                "chat_template": TURNS,
            },
        },
    ),
    "SmolLM2-Instruct": (
        byte_level("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        "llama",
        {"<|im_end|>"},
        {
            "generation_config.json": {"bos_token_id": 257, "eos_token_id": 258, "pad_token_id": 258},
            "special_tokens_map.json": {
                "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
                "bos_token": in_map("<|im_start|>"),
                "eos_token": in_map("<|im_end|>"),
                "pad_token": in_map("<|im_end|>"),
                "unk_token": in_map("<|endoftext|>"),
            },
            "tokenizer_config.json": {
                "add_prefix_space": False,
                "bos_token": "<|im_start|>",
                "eos_token": "<|im_end|>",
                "pad_token": "<|im_end|>",
                "added_tokens_decoder": numbered(256, "<|endoftext|>", "<|im_start|>", "<|im_end|>"),
                "vocab_size": 259,
                "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
                "unk_token": "<|endoftext|>",
                "tokenizer_class": "GPT2Tokenizer",
                "chat_template": CHATML,
            },
        },
    ),
    "TinyLlama-Chat": (
        sentence_piece(),
        "llama",
        {"</s>"},
        {
            "generation_config.json": {"eos_token_id": 2, "pad_token_id": 0},
            "special_tokens_map.json": {
                "bos_token": in_map("<s>"),
                "eos_token": in_map("</s>"),
                "pad_token": in_map("</s>"),
                "unk_token": in_map("<unk>"),
            },
            "tokenizer_config.json": {
                "added_tokens_decoder": numbered(0, "<unk>", "<s>", "</s>"),
                "bos_token": "<s>",
                "eos_token": "</s>",
                "pad_token": "</s>",
                "padding_side": "right",
                "unk_token": "<unk>",
                "tokenizer_class": "PreTrainedTokenizerFast",
                "chat_template": EOS_ROLES,
            },
        },
    ),
    "DeepSeek-R1-Distill": (
        byte_level(*DEEPSEEK, bos=DEEPSEEK[0]),
        "llama",
        {DEEPSEEK[1]},
        {
            "generation_config.json": {"bos_token_id": 256, "eos_token_id": 257},
            "tokenizer_config.json": {
                "add_bos_token": True,
                "add_eos_token": False,
                "unk_token": None,
                "legacy": True,
                "sp_model_kwargs": {},
                **{
                    name: {"__type": "AddedToken", **in_map(text, normalized=True)}
                    for name, text in (
                        ("bos_token", DEEPSEEK[0]),
                        ("eos_token", DEEPSEEK[1]),
                        ("pad_token", DEEPSEEK[1]),
                    )
                },
                "tokenizer_class": "LlamaTokenizerFast",
                "chat_template": NAMED_ROLES,
            },
        },
    ),
    "a fine-tune of Llama-2 by axolotl": (
        sentence_piece(),
        "llama",
        {"</s>", "<|im_end|>"},
        {
            "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2},
            "added_tokens.json": {"<|im_end|>": 291, "<|im_start|>": 292, "[PAD]": 293},
            "special_tokens_map.json": {
                "bos_token": in_map("<s>"),
                "eos_token": in_map("<|im_end|>"),
                "pad_token": "[PAD]",
                "unk_token": in_map("<unk>"),
            },
            "tokenizer_config.json": {
                "bos_token": "<s>",
                "eos_token": "<|im_end|>",
                "unk_token": "<unk>",
                "pad_token": "[PAD]",
                "legacy": False,
                "tokenizer_class": "PreTrainedTokenizerFast",
                "chat_template": CHATML,
                "trust_remote_code": False,
            },
        },
    ),
    "SmolVLM's text side, as transformers 5 writes it": (
        byte_level("<|im_start|>", "<end_of_utterance>", "<image>"),
        "llama",
        {"<end_of_utterance>"},
        {
            "generation_config.json": {"eos_token_id": 257},
            "tokenizer_config.json": {
                "backend": "tokenizers",
                "bos_token": "<|im_start|>",
                "eos_token": "<end_of_utterance>",
                "is_local": False,
                "extra_special_tokens": {"image_token": "<image>", "end_of_utterance_token": "<end_of_utterance>"},
                "tokenizer_class": "TokenizersBackend",
            },
            "chat_template.jinja": UTTERANCES,
            "additional_chat_templates/tool_use.jinja": "{{ tools }}",
        },
    ),
}


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    made, kind, _, files = LAYOUTS[request.param]
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "eos_token_id": 2}))
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return tmp_path


@pytest.mark.parametrize(("folder", "name"), [(name, name) for name in LAYOUTS], indirect=["folder"])
def test_prompts_and_ends_are_those_of_transformers(folder: Path, name: str) -> None:
    from transformers import AutoTokenizer

    theirs: Any = AutoTokenizer.from_pretrained(folder)
    ours, files = Ours(folder), TokenizerFiles.read(folder)
    text = render(ChatTemplate.read(folder), Chat(messages=MESSAGES), "m")
    assert text == theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert list(ours.encode_now(text, special_tokens=False)) == theirs(text, add_special_tokens=False)["input_ids"]
    assert list(ours.encode_now(" dark")) == theirs(" dark")["input_ids"]
    generation = json.loads((folder / "generation_config.json").read_text())
    tokens = vocabulary(folder, files)
    ends = {*named_ids(generation), *tokenizer_ids(tokens, files.texts.get("eos_token"))}
    assert ends == {theirs.convert_tokens_to_ids(end) for end in LAYOUTS[name][2]}
    assert ends == {*named_ids(generation), theirs.eos_token_id}


# In every run: an end that generation_config.json names, and one that the tokenizer's files alone have.
SERVED = ("Qwen2.5-Instruct", "a fine-tune of Llama-2 by axolotl")
EACH = [
    pytest.param(name, name, marks=() if name in SERVED else pytest.mark.extended, id=name) for name in LAYOUTS
]  # the others take the same path
STEPS = 12


def random_model(theirs: Any) -> Any:
    """It writes letters alone: what is no UTF-8 has no one text."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=len(theirs) + 1, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=512, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6.0)
        for token in range(len(theirs) + 1):
            if not theirs.decode([token]).strip().isalnum():
                model.lm_head.weight[token] = 0.0
    return model


def ends_at_a_step(model: Any, prompt: list[int], end: int) -> list[int]:
    """Changes the head so that the model writes `end` where it wrote another token; returns the tokens before."""
    import torch

    tokens: list[int] = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=STEPS)[0].tolist()
    written = tokens[len(prompt) :]
    at = next(at for at in range(3, STEPS) if written[at] not in written[:at] and end not in written[:at])
    with torch.no_grad():
        rows = model.lm_head.weight
        rows[[written[at], end]] = rows[[end, written[at]]]
    ended = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=STEPS, eos_token_id=end)
    assert ended[0].tolist() == [*prompt, *written[:at], end]
    return written[:at]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("folder", "name"), EACH, indirect=["folder"])
def test_a_chat_ends_by_itself_with_the_text_of_transformers(folder: Path, name: str) -> None:
    from transformers import AutoTokenizer

    theirs: Any = AutoTokenizer.from_pretrained(folder)
    text = theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    prompt = theirs(text, add_special_tokens=False)["input_ids"]
    model = random_model(theirs)
    written = ends_at_a_step(model, prompt, theirs.convert_tokens_to_ids(max(LAYOUTS[name][2])))
    generation = (folder / "generation_config.json").read_text()
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(generation)  # as published
    with ServerProcess(folder, "--served-model-name", "chat", "--dtype", "float32", "--device", "cpu") as server:
        server.wait_ready()
        body = {"model": "chat", "messages": MESSAGES, "temperature": 0, "max_tokens": STEPS}
        status, _, answer = post(server.url + "/v1/chat/completions", body)
    assert status == 200, answer
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (len(prompt), len(written) + 1)
    content = answer["choices"][0]["message"]["content"]
    assert content.strip() == theirs.decode(written, skip_special_tokens=True).strip()
