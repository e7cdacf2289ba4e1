"""Linear layers as published tools pack them, whole models in each layout, and what strangers put in their place."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode

from slipway_process.model_folder import checkpoint
from slipway_process.model_folder.quantization.reading import quantization_of
from slipway_server.kernels.weights import GroupedInt4, dense
from slipway_server.models.devices import LoadError
from slipway_server.models.generator import load_generator
from slipway_server.models.layouts.tensors import UnreadableWeight
from slipway_server.models.weights import CheckpointWeights
from tests.conftest import MODELS
from tests.server.kernels.batches import a_batch, needs_native
from tests.server.models.layout_writers import LAYOUTS
from tests.server.models.record_layouts import LAYERS, RECORDED

pytestmark = [pytest.mark.integration]

KEPT = {"awq", "gptq", "gptq-asymmetric", "gptq-v2", "compressed-int4", "compressed-int4-asymmetric"}
KEPT |= {"compressed-int4-channel"}  # in 4 bits in memory
OUTPUTS, INPUTS = 32, 64
NEAR = 0.01  # of logits: root of the mean square, as a share


def take(folder: Path, config: dict[str, Any], module: str = "layer") -> Any:
    with CheckpointWeights(folder, quantization=quantization_of({"quantization_config": config})) as weights:
        weight = weights.take_linear(module, OUTPUTS, INPUTS)
        assert weights.left == []
    return weight


def recorded(name: str, folder: Path) -> tuple[dict[str, torch.Tensor], torch.Tensor, dict[str, Any]]:
    """The tensors of a layer as a tool wrote them, also as a file in `folder`; its weight, and its config."""
    with safe_open(RECORDED / f"{name}.safetensors", framework="pt") as file:
        config = json.loads(file.metadata()["quantization_config"])
    tensors = load_file(RECORDED / f"{name}.safetensors")
    exact = tensors.pop("dequantized")
    save_file(tensors, folder / "model.safetensors")
    return tensors, exact, config


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_what_the_tool_itself_dequantizes(name: str, tmp_path: Path) -> None:
    _, exact, config = recorded(name, tmp_path)
    weight = take(tmp_path, config)
    assert isinstance(weight, GroupedInt4) == (name in KEPT)
    # bitsandbytes dequantizes int8 to float16; all others compute in float32.
    tolerance = 2**-10 if name == "bitsandbytes-int8" else 1e-6
    torch.testing.assert_close(dense(weight), exact, rtol=tolerance, atol=1e-8)
    assert exact.std() > 0.01


# --- whole models -----------------------------------------------------------------------------------------------------


def as_layout(name: str, folder: Path) -> tuple[Path, Path]:
    """Copies of tiny-v1: in a layout, and with the weights that it stands for in float32."""
    write, config = LAYOUTS[name]
    torch.manual_seed(1)
    tensors = load_file(MODELS / "tiny-v1" / "model.safetensors")
    packed, plain = {}, {}
    for key, tensor in tensors.items():
        if not key.endswith("_proj.weight"):
            packed[key] = plain[key] = tensor
            continue
        layer, exact = write(tensor.float())
        packed |= {f"{key.removesuffix('weight')}{part}": value.contiguous() for part, value in layer.items()}
        plain[key] = exact.contiguous()
    folders = folder / "packed", folder / "plain"
    for path, content in zip(folders, (packed, plain), strict=True):
        shutil.copytree(MODELS / "tiny-v1", path)
        save_file(content, path / "model.safetensors")
    about = json.loads((folders[0] / "config.json").read_bytes())
    (folders[0] / "config.json").write_text(json.dumps(about | {"quantization_config": config}))
    return folders


def logits(folder: Path, dtype: str, **more: Any) -> torch.Tensor:
    torch.set_num_threads(1)
    given = {"quantization": "none", "device": "cpu", "context_tokens": 64, "threads": 2} | more
    decoder = load_generator(folder, checkpoint.read(folder).config, dtype=dtype, **given)
    decoder.kernels.reserve(8)
    batch = a_batch([(0, 40)], width=2)
    ids = torch.arange(40) * 37 % decoder.vocab_size
    result: torch.Tensor = decoder.logits(replace(batch, ids=ids, rows=torch.arange(40)))
    return result


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_model_in_a_layout_is_the_model_that_it_stands_for(name: str, tmp_path: Path) -> None:
    packed, plain = as_layout(name, tmp_path)
    torch.testing.assert_close(logits(packed, "float32"), logits(plain, "float32"), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", LAYOUTS)
@needs_native
def test_the_c_kernels_are_near_in_each_layout(name: str, tmp_path: Path) -> None:
    """Weights of 4 bits stay so; others are bfloat16. The distance includes that of bfloat16 itself."""
    packed, plain = as_layout(name, tmp_path)
    exact = logits(plain, "float32")
    ours, half = (float((logits(path, "bfloat16") - exact).norm() / exact.norm()) for path in (packed, plain))
    print(f"{name}: {ours:.4f}, bfloat16 {half:.4f}")
    assert ours < NEAR


# --- what strangers write ---------------------------------------------------------------------------------------------

Change = Callable[[dict[str, torch.Tensor]], None]


def put(name: str, value: float, index: int = 3) -> Change:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"layer.{name}"].view(-1)[index] = value

    return change


def cut(name: str) -> Change:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"layer.{name}"] = tensors[f"layer.{name}"][:-1].contiguous()

    return change


def drop(name: str) -> Change:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[f"layer.{name}"]

    return change


def state(text: str) -> Change:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        raw = torch.tensor(list(text.encode()), dtype=torch.uint8)
        tensors["layer.weight.quant_state.bitsandbytes__nf4"] = raw

    return change


def as_type(name: str, dtype: torch.dtype) -> Change:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"layer.{name}"] = tensors[f"layer.{name}"].to(dtype)

    return change


def add(name: str, tensor: torch.Tensor) -> Change:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"layer.{name}"] = tensor

    return change


STRANGE: dict[str, tuple[str, Change, str]] = {
    "a scale that is no number": ("awq", put("scales", math.nan), r"layer\.scales has a scale that is not finite"),
    "an infinite scale": ("gptq", put("scales", math.inf), r"layer\.scales has a scale that is not finite"),
    "a group beyond the last": ("gptq-act-order", put("g_idx", 2), r"layer\.g_idx names a group that is none of 2"),
    "a group before the first": ("gptq", put("g_idx", -1), r"layer\.g_idx names a group that is none of 2"),
    "no groups of inputs": ("gptq-act-order", drop("g_idx"), r"layer\.g_idx is missing, and config.json says desc_act"),
    "too few words": ("awq", cut("qweight"), r"layer\.qweight is \[63, 4\], and by config.json \[64, 4\]"),
    "too few zero points": ("gptq", cut("qzeros"), r"layer\.qzeros is \[1, 4\], and by config.json \[2, 4\]"),
    "no zero points": ("gptq", drop("qzeros"), r"layer lacks qzeros"),
    "words of another type": ("awq", as_type("qweight", torch.int64), r"qweight has numbers of type I64, not I32"),
    "another shape than it says": ("compressed-int4", put("weight_shape", 128, 1), r"weight_shape says \[32, 128\]"),
    "a float8 that is no number": ("fp8-block", as_type("weight", torch.float8_e5m2), "has a weight of type F8_E5M2"),
    "a scale of blocks": ("fp8-block", put("weight_scale_inv", -math.inf), "weight_scale_inv has a scale that is not"),
    "a scale that overflows": (
        "compressed-float8-channel",
        put("weight_scale", 3e38),
        "weight has numbers that are not",
    ),
    "a state that is no JSON": (
        "bitsandbytes-nf4",
        state('{"quant_type": 4'),
        "quant_state.bitsandbytes__nf4 makes no sense",
    ),
    "a state of another layer": (
        "bitsandbytes-nf4",
        state('{"quant_type": "nf4", "blocksize": 64, "shape": [32, 640000000000]}'),
        r"says \[32, 640000000000\], and config.json \[32, 64\]",
    ),
    "a negative block": (
        "bitsandbytes-nf4",
        state('{"quant_type": "nf4", "blocksize": -64, "shape": [32, 64]}'),
        r"blocksize",
    ),
    "a codebook of another size": ("bitsandbytes-nf4", cut("weight.quant_map"), r"quant_map is \[15\]"),
    "a codebook without numbers": ("bitsandbytes-nf4", put("weight.quant_map", math.nan), "quant_map has a scale that"),
    "rows in another order": (
        "bitsandbytes-int8",
        put("weight_format", 1, 0),
        "weight_format is 1; 0, rows as they are",
    ),
    # What several schemes in one config.json make of a layer of the second one.
    "zero points that it calls none": (
        "compressed-int4",
        add("weight_zero_point", torch.full((4, 2), 0x11111111, dtype=torch.int32)),
        "weight_zero_point has zero points, and config.json says symmetric",
    ),
    "a zero point of int8 that it calls none": (
        "compressed-int8-channel",
        add("weight_zero_point", torch.full((32, 1), 3, dtype=torch.int8)),
        "weight_zero_point has zero points, and config.json says symmetric",
    ),
    "whole numbers without an explanation": ("awq", drop("qweight"), "layer has no weight, which config.json does not"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_tensors_that_their_layout_excludes_are_named(name: str, tmp_path: Path) -> None:
    layout, change, sentence = STRANGE[name]
    tensors, _, config = recorded(layout, tmp_path)
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UnreadableWeight, match=sentence):
        take(tmp_path, config)


@pytest.mark.parametrize("stored", [0, 0x88888888 - 2**32])
def test_zero_points_that_are_none_change_nothing(stored: int, tmp_path: Path) -> None:
    tensors, exact, config = recorded("compressed-int4", tmp_path)
    tensors["layer.weight_zero_point"] = torch.full((4, 2), stored, dtype=torch.int32)
    save_file(tensors, tmp_path / "model.safetensors")
    torch.testing.assert_close(dense(take(tmp_path, config)), exact, rtol=1e-6, atol=1e-8)


def test_an_odd_count_of_numbers_has_no_whole_bytes(tmp_path: Path) -> None:
    tensors, _, config = recorded("bitsandbytes-nf4", tmp_path)
    state('{"quant_type": "nf4", "blocksize": 3, "shape": [15, 15]}')(tensors)
    tensors |= {"layer.weight": torch.zeros(112, 1, dtype=torch.uint8), "layer.weight.absmax": torch.ones(75)}
    save_file(tensors, tmp_path / "model.safetensors")
    with (
        CheckpointWeights(tmp_path, quantization=quantization_of({"quantization_config": config})) as weights,
        pytest.raises(UnreadableWeight, match="cannot hold 225 numbers in whole blocks and bytes"),
    ):
        weights.take_linear("layer", 15, 15)


def test_blocks_wider_than_a_row_take_no_more_memory(tmp_path: Path) -> None:
    """Rows of 1 and blocks of 2^20 inputs: scales repeated so often would take a thousand times the weight."""
    tensors, _, config = recorded("fp8-block", tmp_path)
    tensors["layer.weight_scale_inv"] = torch.linspace(1.0, 2.0, OUTPUTS)[:, None].contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    largest = 0

    class Sizes(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            made = func(*args, **(kwargs or {}))
            largest = max(largest, made.numel() if isinstance(made, torch.Tensor) else 0)
            return made

    with Sizes():  # type: ignore[no-untyped-call]
        weight = take(tmp_path, config | {"weight_block_size": [1, 1 << 20]})
    assert largest <= OUTPUTS * INPUTS
    exact = tensors["layer.weight"].float() * tensors["layer.weight_scale_inv"]
    torch.testing.assert_close(dense(weight), exact)


def test_groups_that_do_not_divide_the_inputs_are_refused(tmp_path: Path) -> None:
    _, _, config = recorded("awq", tmp_path)
    with pytest.raises(UnreadableWeight, match="layer has 64 inputs, which groups of 48 do not divide"):
        take(tmp_path, config | {"group_size": 48})


def test_a_stranger_in_a_model_ends_the_load_with_one_sentence(tmp_path: Path) -> None:
    packed, _ = as_layout("awq", tmp_path)
    tensors = load_file(packed / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.scales"][0, 5] = math.inf
    save_file(tensors, packed / "model.safetensors")
    with pytest.raises(
        LoadError, match=r"packed: model\.layers\.1\.mlp\.up_proj\.scales has a scale that is not finite\."
    ):
        logits(packed, "float32")
