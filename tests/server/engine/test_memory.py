"""What is left of a GPU's memory for keys and values."""

from slipway_server.engine.execution.memory import SLACK_BYTES, DeviceMemory, for_cache
from slipway_server.models.families import shape_of

GIB = 2**30


def test_memory_of_other_processes_counts_too() -> None:
    alone = for_cache(DeviceMemory(total=80 * GIB, free=64 * GIB), 0.9, GIB)
    assert alone == 72 * GIB - 16 * GIB - GIB - SLACK_BYTES
    beside = for_cache(DeviceMemory(total=80 * GIB, free=54 * GIB), 0.9, GIB)
    assert alone - beside == 10 * GIB


def test_a_full_device_has_room_for_nothing() -> None:
    assert for_cache(DeviceMemory(total=16 * GIB, free=GIB), 0.9, GIB) == 0


def test_a_step_is_charged_its_widest_layer_and_the_logits_of_all_rows() -> None:
    config = {
        "model_type": "qwen3", "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936, "num_hidden_layers": 28,
    }  # fmt: skip
    shape = shape_of(config, 8192)
    # Gate, up and product beside the residual stream and its norm; logits in half precision and four times in float32.
    assert shape.step_bytes(8192, 0, 2) == 8192 * (2 * 1024 + 3 * 3072) * 2
    assert shape.step_bytes(0, 256, 2) == 256 * 151936 * 18
