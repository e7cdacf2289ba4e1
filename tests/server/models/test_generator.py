"""Which kernels compute on a GPU, and what is refused there: slow ones only on request (safety 7, 12)."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from slipway_server.kernels.low_rank import NO_ADAPTERS
from slipway_server.kernels.triton import pointwise
from slipway_server.models import generator
from slipway_server.models.devices import LoadError
from slipway_server.models.generator import _on_gpu, _Options, load_generator

pytestmark = pytest.mark.integration

LLAMA = {"model_type": "llama", "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48, "vocab_size": 64}
LLAMA |= {"num_hidden_layers": 1}


class NoCompiler:
    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        raise RuntimeError("Failed to find C compiler.")


def options(*, allow_slow: bool = False) -> _Options:
    return _Options(torch.float32, "none", "cpu", 64, 1, kv_int8=False, allow_slow=allow_slow, adapters=NO_ADAPTERS)


def load(folder: Path, config: dict[str, Any], **more: Any) -> Any:
    given = {"dtype": "auto", "quantization": "none", "device": "cuda", "context_tokens": 64, "threads": 1}
    return load_generator(folder, config, **(given | more))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """One GPU, as far as torch.cuda is queried before a computation."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.set_device", lambda device: None)


def test_triton_is_used_where_it_works() -> None:
    assert _on_gpu(options()).name == "triton"


@pytest.mark.finding(12)
def test_where_triton_cannot_start_a_kernel_the_server_ends_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Safety 12: pods served torch's loops on a GPU with one warning, because the image has no C compiler."""
    monkeypatch.setattr(pointwise, "rms_norm", NoCompiler())
    with pytest.raises(LoadError, match=r"Failed to find C compiler.*install gcc.*--allow-slow"):
        _on_gpu(options())


def test_a_trial_may_be_slow_and_the_reason_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pointwise, "rms_norm", NoCompiler())
    with caplog.at_level(logging.WARNING):
        assert _on_gpu(options(allow_slow=True)).name == "torch"
    assert "Failed to find C compiler" in caplog.text and "install gcc" in caplog.text


@pytest.mark.finding(7)
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_int8_is_refused_on_a_gpu(device: str, tmp_path: Path) -> None:
    """Safety 7: it ran on the CPU."""
    with pytest.raises(LoadError, match=r"--quantization int8 is for CPUs.*cuda:0.*--device cpu"):
        load(tmp_path, LLAMA, quantization="int8", device=device)


@pytest.mark.usefixtures("gpu")
def test_a_foreign_family_is_refused_on_a_gpu_without_allow_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = LLAMA | {"model_type": "olmo2"}
    with pytest.raises(LoadError, match=r"none of the built-in families.*'olmo2'.*--allow-slow"):
        load(tmp_path, config)
    monkeypatch.setattr("slipway_server.models.loader.load", lambda *_, **__: "loaded")
    monkeypatch.setattr("slipway_server.models.foreign.ForeignDecoder", lambda model: model)
    assert load(tmp_path, config, allow_slow=True) == "loaded"


def test_a_missing_gpu_does_not_fall_back_to_the_cpu(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(LoadError, match="no GPU here"):
        load(tmp_path, LLAMA)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, not a whole number from 1 to"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"hidden_size": "32"}, "hidden_size is '32'"),
        ({"rope_theta": "many"}, "makes no sense as a llama model"),
        ({"rope_scaling": [1]}, "makes no sense as a llama model"),
    ],
)
def test_a_config_that_no_model_can_have_is_refused(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=sentence):
        load(tmp_path, LLAMA | change, device="cpu")


@pytest.mark.parametrize("rope", [{"rope_type": "dynamic", "factor": 2.0}, {"type": "dynamic", "factor": 2.0}])
def test_a_rotation_that_depends_on_the_neighbours_is_refused(rope: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"rotary embedding \(dynamic\) depends on the longest request"):
        load(tmp_path, LLAMA | {"rope_scaling": rope}, device="cpu")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"vocab_size": 4096}, r"model\.embed_tokens\.weight is \[.*by config\.json \[4096, "),
        ({"intermediate_size": 4096}, r"gate_proj\.weight is "),
        ({"num_key_value_heads": 1}, r"k_proj\.weight is "),
    ],
)
def test_weights_of_another_size_than_in_the_config_are_refused(
    change: dict[str, Any], sentence: str, tiny_v1: Path
) -> None:
    """Kernels read as far as the sizes in config.json, which was beyond the end."""
    config = json.loads((tiny_v1 / "config.json").read_bytes()) | change
    with pytest.raises(LoadError, match=f"config.json and weights do not fit: .*{sentence}"):
        load(tiny_v1, config, device="cpu")


def test_no_state_is_kept_between_models() -> None:
    """structure 8: tables of rotations lay in a dict of the module, for ever."""
    from slipway_server.models import decoder

    kept = [name for name, value in vars(decoder).items() if isinstance(value, dict) and not name.startswith("__")]
    assert not kept
    assert generator.TOLERANCE  # a table that is written down may stay
