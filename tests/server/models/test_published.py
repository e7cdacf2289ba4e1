"""Models as published (docs/models.yaml): each verdict is what loading does, and small ones give the same tokens.

config.json stays as published, but for sizes: what today's transformers would add to it is not there (safety 8).
"""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from docs.models_page import published
from slipway_process.model_folder import architectures
from slipway_server.engine.engine import EngineCore
from slipway_server.engine.execution.runner import DecoderRunner
from slipway_server.engine.scheduling.config import SchedulerConfig
from slipway_server.engine.scheduling.scheduler import Scheduler
from slipway_server.models.devices import LoadError
from slipway_server.models.families import shape_of
from slipway_server.models.generator import load_generator, self_test
from tests.server.engine.test_families import CONTEXT, VOCABULARY, answers, expected

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300), pytest.mark.finding(8)]

ENTRIES = {f"{entry.repository} {entry.note}".strip(): entry for entry in published()}
NATIVE = [name for name, entry in ENTRIES.items() if entry.served == "native"]
REFUSED = [name for name, entry in ENTRIES.items() if entry.served == "refused"]
FALLBACK = [name for name, entry in ENTRIES.items() if entry.served == "fallback"]

SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "vocab_size": VOCABULARY,
    "max_position_embeddings": 256, "max_window_layers": 1, "sliding_window": 16, "query_pre_attn_scalar": 32,
    "original_max_position_embeddings": 256, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 16, "n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 256, "n_ctx": 256,
    "ffn_dim": 96, "word_embed_proj_dim": 64, "d_model": 64, "n_heads": 4, "n_layers": 3, "max_seq_len": 256,
}  # fmt: skip
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "torch_dtype": "float32"}
# So many that each kind of layer is there: the sixth of gemma3 sees everything, the fourth of smollm3 has no rotation.
LAYERS = {"gemma3_text": 7, "smollm3": 5}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def shrunk(config: dict[str, Any]) -> dict[str, Any]:
    """The same flags and the same fields, with small numbers where they are sizes."""
    layers = LAYERS.get(config["model_type"], 3)
    small = {name: SIZES[name] if value and name in SIZES else value for name, value in config.items()} | TOKENS
    if "num_hidden_layers" in config:
        small["num_hidden_layers"] = layers
    if "head_dim" in config:
        small["head_dim"] = 32 if config["head_dim"] * config["num_attention_heads"] != config["hidden_size"] else 16
    if "num_key_value_heads" in config:
        small["num_key_value_heads"] = _heads(config)
    if "layer_types" in config:
        small["layer_types"] = config["layer_types"][:layers]
    if config.get("rope_scaling"):
        small["rope_scaling"] = _rope(config)
    return small


def _heads(config: dict[str, Any]) -> int:
    given, heads = config["num_key_value_heads"], config["num_attention_heads"]
    return {1: 1, heads: 4}.get(given, 2)


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    rope = dict(config["rope_scaling"])
    if "original_max_position_embeddings" in rope:
        rope["original_max_position_embeddings"] = 64
    frequencies = int(16 * config.get("partial_rotary_factor", 1.0)) // 2
    for name in {"short_factor", "long_factor"} & rope.keys():
        rope[name] = rope[name][-frequencies:]
    return rope


def saved(folder: Path, config: dict[str, Any]) -> Any:
    """A random model of transformers in a folder whose config.json is as it was published, but small."""
    given = {name: value for name, value in config.items() if name not in ("architectures", "auto_map", "model_type")}
    made = transformers.AutoConfig.for_model(config["model_type"], **given)
    with torch.device("meta"):
        size = sum(part.numel() for part in transformers.AutoModelForCausalLM.from_config(made).parameters())
    assert size < 2_000_000, f"{size} parameters are too many for a test: shrunk() misses a field"
    torch.manual_seed(len(json.dumps(config)))
    model = transformers.AutoModelForCausalLM.from_config(made, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or ".ln_" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            elif name.endswith("bias"):
                parameter.copy_(torch.randn_like(parameter) * 0.3)
            else:
                parameter.mul_(6.0)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    return model


def load(folder: Path, config: dict[str, Any]) -> Any:
    return load_generator(
        folder, config, dtype="float32", quantization="none", device="cpu", context_tokens=CONTEXT, threads=1
    )


def tokens_of(decoder: Any) -> list[list[int]]:
    runner = DecoderRunner(decoder, slots=16, context_tokens=CONTEXT, blocks=64)
    self_test(decoder, VOCABULARY)
    return answers(
        EngineCore(Scheduler(SchedulerConfig(slots=16, step_tokens=48, kv_tokens=2048), hash_key=bytes(32)), runner),
        lambda index: index,
    )


@pytest.mark.parametrize("name", NATIVE)
def test_missing_fields_have_the_defaults_of_transformers(name: str) -> None:
    """Full size: the published fields give the shape that all fields of transformers' class give."""
    config = ENTRIES[name].config
    given = {field: value for field, value in config.items() if field not in ("auto_map", "model_type")}
    whole = json.loads(transformers.AutoConfig.for_model(config["model_type"], **given).to_json_string(use_diff=False))
    context = min(8192, config["max_position_embeddings"])
    assert shape_of(config, context) == shape_of(whole, context)


@pytest.mark.parametrize("name", NATIVE)
def test_published_native_models_give_transformers_tokens(name: str, tmp_path: Path) -> None:
    config = shrunk(ENTRIES[name].config)
    model = saved(tmp_path, config)
    decoder = load(tmp_path, config)
    assert decoder.kernels.name == "torch"
    assert tokens_of(decoder) == expected(model)


@pytest.mark.parametrize("name", FALLBACK)
def test_published_fallback_models_give_transformers_tokens_and_log_the_reason(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = shrunk(ENTRIES[name].config)
    model = saved(tmp_path, config)
    with caplog.at_level(logging.WARNING):
        decoder = load(tmp_path, config)
    assert decoder.kernels.name == "transformers"
    assert f"transformers computes the model, slower than a built-in family: model_type '{config['model_type']}'" in (
        caplog.text
    )
    assert tokens_of(decoder) == expected(model)


INCOMPATIBLE = [name for name in REFUSED if ENTRIES[name].config["model_type"] in architectures.INCOMPATIBLE]


@pytest.mark.parametrize("name", INCOMPATIBLE)
def test_an_incompatible_model_type_would_fail_the_self_test(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of architectures that are refused beforehand names none that could be served."""
    config = shrunk({field: value for field, value in ENTRIES[name].config.items() if field != "auto_map"})
    saved(tmp_path, config)
    with pytest.raises(LoadError, match="cannot be served: model_type"):
        load(tmp_path, config)
    monkeypatch.setattr(architectures, "INCOMPATIBLE", {})
    with pytest.raises((LoadError, AttributeError, TypeError)):
        tokens_of(load(tmp_path, config))
