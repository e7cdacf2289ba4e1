"""Writes folders of adapters as peft does, with numbers that a test chooses."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from slipway_server.models.adapters.targets import Target

CONFIG = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "base",
    "r": 4,
    "lora_alpha": 8,
    "lora_dropout": 0.0,
    "bias": "none",
    "target_modules": ["q_proj", "v_proj"],
    "inference_mode": True,
}


def tensors_of(
    targets: dict[str, Target], rank: int = 4, seed: int = 0, scale: float = 0.2, modules: tuple[str, ...] = ("",)
) -> dict[str, torch.Tensor]:
    """Random updates of the modules whose names end with one of `modules`."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, target in targets.items():
        if name.endswith(modules):
            a = torch.randn(rank, target.inputs, generator=generator) / target.inputs**0.5
            tensors[f"base_model.model.{name}.lora_A.weight"] = a
            tensors[f"base_model.model.{name}.lora_B.weight"] = (
                torch.randn(target.outputs, rank, generator=generator) * scale
            )
    return tensors


def write(folder: Path, tensors: dict[str, torch.Tensor], **fields: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | fields))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "adapter_model.safetensors")
    return folder
