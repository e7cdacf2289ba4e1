"""The tiny models as GGUF, for llama.cpp: the same weights and tokens, and two models that are wrong in one way each.

    python tiny_gguf.py MODELS OUT        # writes OUT/tiny-v1, /tiny-v2, /untrained and /cut, each with a model.gguf

llama.cpp's own converter needs torch and knows a tokenizer by a hash of its tokens, which those of our models are not
among. It runs in a stage of the image's build, and needs gguf, numpy and safetensors.
"""

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

ARCHITECTURE = gguf.MODEL_ARCH.QWEN3
TYPES = (gguf.TokenType.NORMAL, gguf.TokenType.CONTROL)  # a token of the text, one of the format
SEED = 1


def main(models: Path, out: Path) -> None:
    """All four, each by its name below `out`."""
    for name in ("tiny-v1", "tiny-v2"):
        convert(models / name, out / name)
    convert(models / "tiny-v1", out / "untrained", trained=False)
    whole = (out / "tiny-v1" / "model.gguf").read_bytes()
    (out / "cut").mkdir()
    (out / "cut" / "model.gguf").write_bytes(whole[: len(whole) // 2])


def convert(model: Path, folder: Path, *, trained: bool = True) -> None:
    """One model. Without training its matrices are noise, as when a conversion mixes up their names."""
    folder.mkdir(parents=True)
    config = _read(model / "config.json")
    writer = gguf.GGUFWriter(folder / "model.gguf", gguf.MODEL_ARCH_NAMES[ARCHITECTURE])
    _describe(writer, config)
    _add_tokens(writer, model)
    names = gguf.get_tensor_name_map(ARCHITECTURE, config["num_hidden_layers"])
    chance = np.random.default_rng(SEED)
    for name, tensor in sorted(load_file(model / "model.safetensors").items()):
        noise = not trained and tensor.ndim > 1
        values = chance.normal(0, 0.02, tensor.shape).astype(tensor.dtype) if noise else tensor
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: Any, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])


def _add_tokens(writer: Any, model: Path) -> None:
    """Byte-level BPE with GPT-2's splitting of text."""
    tokenizer = _read(model / "tokenizer.json")
    ids: dict[str, int] = tokenizer["model"]["vocab"]
    special = {token["id"] for token in tokenizer["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(sorted(ids, key=lambda token: ids[token]))
    writer.add_token_types([TYPES[number in special] for number in range(len(ids))])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(ids[_read(model / "tokenizer_config.json")["eos_token"]])
    writer.add_add_bos_token(False)
    writer.add_chat_template((model / "chat_template.jinja").read_text())


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
