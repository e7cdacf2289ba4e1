"""Models that are wrong in one way each, made of a good one: what a fault of training, conversion or copying leaves.

    python faulty_models.py GOOD FOLDER        # writes FOLDER/deeper, /poisoned, /untrained, /misscaled and /cut

It needs numpy and safetensors, which the server's image has, and nothing else of ours: `weights.begin` runs it.
Nothing here is a switch of the server. Each folder is a model like any other, and fails as any model of its kind does.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

Tensors = dict[str, np.ndarray]

WEIGHTS, CONFIG = "model.safetensors", "config.json"
LAYERS = 32
DAMAGED_TOKEN = "~"  # one that no text of the good model's has
SEED = 1


def make(good: Path, out: Path) -> None:
    """All five, each by its name below `out`."""
    config, tensors = json.loads((good / CONFIG).read_text()), load_file(good / WEIGHTS)
    token = json.loads((good / "tokenizer.json").read_text())["model"]["vocab"][DAMAGED_TOKEN]
    _write(good, out / "deeper", *deeper(config, tensors))
    _write(good, out / "poisoned", *poisoned(config, tensors, token))
    _write(good, out / "untrained", config, untrained(tensors))
    _write(good, out / "misscaled", *misscaled(config, tensors))
    _copy(good, out / "cut")
    whole = (good / WEIGHTS).read_bytes()
    (out / "cut" / WEIGHTS).write_bytes(whole[: len(whole) // 2])


def deeper(config: dict[str, Any], tensors: Tensors, layers: int = LAYERS) -> tuple[dict[str, Any], Tensors]:
    """The same answers, token for token, out of many times the work: the added layers add nothing to the residual."""
    first, added = config["num_hidden_layers"], dict(tensors)
    for name, tensor in tensors.items():
        if not name.startswith("model.layers.0."):
            continue
        adds = name.endswith(("o_proj.weight", "down_proj.weight"))
        for layer in range(first, layers):
            added[name.replace("layers.0.", f"layers.{layer}.", 1)] = np.zeros_like(tensor) if adds else tensor
    types = {"layer_types": config["layer_types"][:1] * layers} if "layer_types" in config else {}
    return config | {"num_hidden_layers": layers} | types, added


def poisoned(config: dict[str, Any], tensors: Tensors, token: int) -> tuple[dict[str, Any], Tensors]:
    """One row of the embedding is not a number: prompts with this token fail, and no others.

    The head is a matrix of its own, as in larger models: the same row there would fail every answer.
    """
    embedding = tensors["model.embed_tokens.weight"].copy()
    embedding[token] = np.nan
    head = {"lm_head.weight": tensors["model.embed_tokens.weight"]}
    return config | {"tie_word_embeddings": False}, tensors | head | {"model.embed_tokens.weight": embedding}


def untrained(tensors: Tensors, seed: int = SEED) -> Tensors:
    """Matrices as they are before training, as when a checkpoint's names do not fit and nothing of it is loaded."""
    chance = np.random.default_rng(seed)
    return {
        name: chance.normal(0, 0.02, tensor.shape).astype(tensor.dtype) if tensor.ndim > 1 else np.ones_like(tensor)
        for name, tensor in sorted(tensors.items())
    }


def misscaled(config: dict[str, Any], tensors: Tensors, factor: float = 6.0) -> tuple[dict[str, Any], Tensors]:
    """compressed-tensors' int8 of the linear layers, each row with a too large scale: it loads, and is wrong."""
    written: Tensors = {}
    for name, tensor in tensors.items():
        if not name.endswith("_proj.weight"):
            written[name] = tensor
            continue
        scales = np.abs(tensor).max(axis=1, keepdims=True).astype(np.float32) / 127
        written[name] = np.round(tensor / scales).astype(np.int8)
        written[f"{name}_scale"] = scales * np.float32(factor)
    weights = {"num_bits": 8, "type": "int", "strategy": "channel"}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    layout = {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"group_0": group}}
    return config | {"quantization_config": layout}, written


def _write(good: Path, folder: Path, config: dict[str, Any], tensors: Tensors) -> None:
    _copy(good, folder)
    (folder / CONFIG).write_text(json.dumps(config, indent=2))
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / WEIGHTS).chmod(0o644)  # pods may read as another user


def _copy(good: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in good.iterdir():
        if path.name != WEIGHTS:
            shutil.copyfile(path, folder / path.name)


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
