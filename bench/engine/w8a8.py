"""A model with linear layers in int8, in the layout of compressed-tensors, which vLLM reads as W8A8.

Weights have one scale for each output; activations get one for each token when they are computed, as our int8 has.

python -m bench.engine.w8a8 MODEL_FOLDER OUT_FOLDER
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from devcluster.places import appears_whole

WEIGHTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
ACTIVATIONS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
GROUP = {"targets": ["Linear"], "weights": WEIGHTS, "input_activations": ACTIVATIONS}
SCHEME = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "config_groups": {"group_0": GROUP},
    "ignore": ["lm_head"],
}


def convert(model: Path, folder: Path) -> None:
    """Writes the folder: one file of weights for each one of the model."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    with appears_whole(folder) as path:
        path.mkdir()
        index: dict[str, str] = {}
        for source in sorted(model.glob("*.safetensors")):
            made: dict[str, Any] = {}
            with safe_open(str(source), "pt") as file:
                for name in file.keys():  # noqa: SIM118 - it is no mapping
                    made |= quantized(name, file.get_tensor(name))
            save_file(made, str(path / source.name), {"format": "pt"})
            index |= dict.fromkeys(made, source.name)
        for other in model.iterdir():
            if other.suffix != ".safetensors" and not other.name.endswith("index.json"):
                shutil.copy(other, path)
        if len(set(index.values())) > 1:
            whole = {"metadata": {}, "weight_map": index}
            (path / "model.safetensors.index.json").write_text(json.dumps(whole))
        config = json.loads((model / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(config | {"quantization_config": SCHEME}, indent=1))


def quantized(name: str, weight: Any) -> dict[str, Any]:
    """What becomes of a tensor: of a linear layer of the decoder int8 and a scale for each output, others stay."""
    import torch

    if not name.endswith("_proj.weight"):
        return {name: weight}
    scale = weight.float().abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
    whole = (weight.float() / scale).round().to(torch.int8)
    return {name: whole, name.replace(".weight", ".weight_scale"): scale.to(weight.dtype)}


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
