"""Loading: a weight that is not there is an error, never a random tensor."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from slipway_server.models.devices import LoadError
from slipway_server.models.loader import load

pytestmark = pytest.mark.integration


def test_a_missing_weight_is_named(tiny_v1: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_v1, tmp_path / "model"))
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(LoadError, match=r"lacks 1 weights of its architecture, first model\.layers\.1\.mlp\.up_proj"):
        load(folder, task="generate", dtype="auto", device="cpu")


def test_the_type_can_be_chosen(tiny_v1: Path) -> None:
    assert load(tiny_v1, task="generate", dtype="bfloat16", device="cpu").dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("model_type", "no-such-model", "cannot be loaded"),
        ("layer_types", ["linear_attention"] * 3, "linear_attention"),
    ],
)
def test_a_model_that_cannot_be_served_is_an_error(
    tiny_v1: Path, tmp_path: Path, field: str, value: object, sentence: str
) -> None:
    folder = Path(shutil.copytree(tiny_v1, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_bytes()) | {field: value}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(LoadError, match=sentence):
        load(folder, task="generate", dtype="auto", device="cpu")
