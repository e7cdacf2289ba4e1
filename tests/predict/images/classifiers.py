"""Tiny image classifiers of Hugging Face with random weights, saved as transformers saves them."""

import json
from pathlib import Path
from typing import Any

LABELS = {0: "cat", 1: "dog", 2: "newt"}


def vit(folder: Path, **more: Any) -> Path:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=8,
        id2label=LABELS, initializer_range=0.5, **more,
    )  # fmt: skip
    return _save(folder, ViTForImageClassification, config, {"image_processor_type": "ViTImageProcessor", "size": 32})


def resnet(folder: Path) -> Path:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", id2label=LABELS)
    processor = {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 48}, "crop_pct": 0.875}
    return _save(folder, ResNetForImageClassification, config, processor)


def _save(folder: Path, kind: Any, config: Any, processor: dict[str, Any]) -> Path:
    import torch

    torch.manual_seed(0)
    kind(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
