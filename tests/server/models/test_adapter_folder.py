"""Folders of adapters: what fits the model is read, and anything else is refused by the name of its field."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from slipway_server.models.adapters import folder
from slipway_server.models.adapters.configuration import read_config
from slipway_server.models.adapters.errors import AdapterError
from slipway_server.models.adapters.folder import Adapter, AdapterLimits
from slipway_server.models.adapters.targets import parts_of, targets_of
from slipway_server.models.families import shape_of
from tests.server.adapter_folders import CONFIG, tensors_of, write

pytestmark = pytest.mark.integration

SHAPE = shape_of(
    {
        "model_type": "qwen3",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "intermediate_size": 48,
        "vocab_size": 64,
    },
    64,
)
TARGETS, PARTS = targets_of(SHAPE), parts_of(SHAPE)
Q0 = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def read(
    root: Path, path: str = "a", size_bytes: int = 1 << 20, names: frozenset[str] = frozenset({"base"})
) -> Adapter:
    return folder.read(folder.check(path, AdapterLimits(8, size_bytes, root, names), TARGETS), TARGETS, PARTS)


def refused(root: Path, path: str = "a", **limits: Any) -> AdapterError:
    with pytest.raises(AdapterError) as error:
        read(root, path, **limits)
    return error.value


def test_an_adapter_is_read_with_its_scale_and_the_digest_of_its_files(tmp_path: Path) -> None:
    tensors = tensors_of(TARGETS)
    write(tmp_path / "a", tensors, use_rslora=True)
    write(tmp_path / "b", tensors, use_rslora=True)
    write(tmp_path / "c", tensors)
    adapter = read(tmp_path)
    assert adapter.rank == 4 and len(adapter.updates) == 2 * 4
    q, k, v = adapter.updates[0, "qkv"]
    assert q and k and v and q.scale == 8 / 2 and torch.equal(q.a, tensors[Q0]) and q.b.shape == (32, 4)
    assert read(tmp_path, "b").digest == adapter.digest != read(tmp_path, "c").digest
    assert read(tmp_path, str(tmp_path / "a")).digest == adapter.digest


def test_a_module_that_is_left_out_stays_as_it_is(tmp_path: Path) -> None:
    write(tmp_path / "a", tensors_of(TARGETS, modules=("0.self_attn.v_proj", "1.mlp.up_proj")))
    adapter = read(tmp_path)
    assert set(adapter.updates) == {(0, "qkv"), (1, "gated")}
    assert [part is None for part in adapter.updates[0, "qkv"]] == [True, True, False]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("peft_type", "IA3"),
        ("task_type", "SEQ_CLS"),
        ("bias", "all"),
        ("modules_to_save", ["lm_head"]),
        ("fan_in_fan_out", True),
        ("lora_bias", True),
        ("init_lora_weights", "pissa"),
        ("init_lora_weights", 3),
        ("layer_replication", [[0, 1]]),
        ("target_parameters", ["mlp.experts.gate_up_proj"]),
        ("trainable_token_indices", [1]),
        ("a_field_of_a_later_peft", {"on": 1}),
        ("target_modules", ["q_proj", "embed_tokens"]),
        ("target_modules", ["lm_head"]),
        ("target_modules", [3]),
        ("r", 0),
        ("r", 9),
        ("r", True),
        ("r", "4"),
        ("lora_alpha", float("nan")),
        ("lora_alpha", 1e300),
        ("rank_pattern", {"q_proj": 9}),
        ("rank_pattern", {"(a+)+$": 2}),
        ("alpha_pattern", {"q_proj": "x"}),
        ("alpha_pattern", ["q_proj"]),
        ("use_dora", "yes"),
        ("use_rslora", 1),
        ("base_model_name_or_path", ["base"]),
        ("base_model_name_or_path", "org/another"),
    ],
)
def test_fields_are_refused_by_their_name(tmp_path: Path, field: str, value: Any) -> None:
    write(tmp_path / "a", tensors_of(TARGETS), **{field: value})
    error = refused(tmp_path)
    assert error.field == field and field in str(error)


def test_fields_without_effect_are_taken() -> None:
    fields = CONFIG | {"loftq_config": {}, "peft_version": "1", "modules_to_save": None, "layers_to_transform": [0]}
    assert read_config(fields | {"lora_bias": False, "init_lora_weights": "gaussian"}, 8).rank == 4


def test_the_last_part_of_the_bases_name_counts(tmp_path: Path) -> None:
    for number, name in enumerate(("base", "org/Base", "/home/me/base/", "", None, "hf://org/base@main")):
        write(tmp_path / str(number), tensors_of(TARGETS), base_model_name_or_path=name)
        read(tmp_path, str(number))
    write(tmp_path / "a", tensors_of(TARGETS), base_model_name_or_path="other")
    assert read(tmp_path, names=frozenset()).rank == 4


def changed(key: str, tensor: torch.Tensor | None, name: str = "") -> Callable[[dict[str, torch.Tensor]], None]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        old = tensors.pop(key)
        if tensor is not None or name:
            tensors[name or key] = old if tensor is None else tensor

    return change


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (changed(Q0, torch.ones(4, 33)), Q0),
        (changed(Q0, torch.ones(5, 32)), Q0),
        (changed(Q0, torch.ones(32)), Q0),
        (changed(Q0, torch.ones(4, 32, dtype=torch.float64)), Q0),
        (changed(Q0, torch.ones(4, 32).int()), Q0),
        (changed(Q0, torch.full((4, 32), torch.nan)), Q0),
        (changed(Q0, torch.full((4, 32), -torch.inf, dtype=torch.bfloat16)), Q0),
        (changed(Q0, torch.full((4, 32), 1e38)), Q0),
        (changed(Q0, None), Q0.removesuffix(".weight")),
        (changed(Q0, None, Q0.replace("layers.0", "layers.7")), "target_modules"),
        (changed(Q0, None, Q0.replace("base_model.model.", "")), "target_modules"),
        (changed(Q0, None, "base_model.model.lm_head.lora_A.weight"), "target_modules"),
        (changed(Q0, None, Q0.replace("lora_A", "lora_embedding_A")), Q0.replace("lora_A", "lora_embedding_A")),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], None], named: str
) -> None:
    tensors = tensors_of(TARGETS)
    change(tensors)
    write(tmp_path / "a", tensors)
    assert refused(tmp_path).field == named


def test_dora_needs_its_magnitudes_and_nothing_else_has_them(tmp_path: Path) -> None:
    tensors = tensors_of(TARGETS, modules=("0.self_attn.q_proj",))
    write(tmp_path / "a", tensors, use_dora=True)
    assert "lora_magnitude_vector" in refused(tmp_path).field
    tensors[Q0.replace("lora_A.weight", "lora_magnitude_vector")] = torch.ones(32)
    write(tmp_path / "a", tensors, use_dora=True)
    (q, _, _) = read(tmp_path).updates[0, "qkv"]
    assert q and q.magnitude is not None and q.magnitude.shape == (32,)
    write(tmp_path / "a", tensors)
    assert refused(tmp_path).field == "use_dora"


def test_more_bytes_than_all_adapters_may_have_are_refused_unread(tmp_path: Path) -> None:
    write(tmp_path / "a", tensors_of(TARGETS))
    assert "bytes" in str(refused(tmp_path, size_bytes=1000))


def _with_header(path: Path, header: bytes, length: int | None = None, rest: bytes = b"") -> None:
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + rest)


def test_damaged_and_hostile_files_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "a", tensors_of(TARGETS)) / folder.WEIGHTS
    whole = file.read_bytes()
    one = json.dumps({Q0: {"dtype": "F32", "shape": [4, 32], "data_offsets": [0, 512]}}).encode()
    for header, length, rest in (
        (b"{}", 1 << 62, b""),  # a header of exabytes
        (b"x" * 100, None, b""),
        (b"[]", None, b""),
        (b"[" * 5000, None, b""),
        (b'{"a":{}}', None, b""),
        (one, None, b"\0" * 100),  # shorter than it says
        (one, None, b"\0" * 600),
        (one.replace(b"[0, 512]", b"[-512, 0]"), None, b""),
        (one.replace(b"[0, 512]", b"[0, 1e9]"), None, b""),
        (one.replace(b"[4, 32]", b"[4, 1e300]"), None, b"\0" * 512),
        (one.replace(b"[4, 32]", b"[4, 32, 1, 1]"), None, b"\0" * 512),
        (one.replace(b'"F32"', b'["F32"]'), None, b"\0" * 512),
    ):
        _with_header(file, header, length, rest)
        refused(tmp_path)
    for size in (0, 4, 100, len(whole) - 1):
        file.write_bytes(whole[:size])
        refused(tmp_path)
    file.unlink()
    (tmp_path / "a" / "adapter_model.bin").write_bytes(b"\x80\x04cos\nsystem\n.")
    assert "pickled" in str(refused(tmp_path))
    (tmp_path / "a" / "adapter_model.bin").unlink()
    os.mkfifo(file)  # nothing waits for its other end
    assert "no file" in str(refused(tmp_path))


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"[" * 100_000, b'{"r":' + b"9" * 5000 + b"}", b" " * (2 << 20)])
def test_a_config_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    (write(tmp_path / "a", tensors_of(TARGETS)) / "adapter_config.json").write_bytes(content)
    refused(tmp_path)


def test_no_path_leads_out_of_the_root(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", write(tmp_path / "outside", tensors_of(TARGETS))
    write(root / "a", tensors_of(TARGETS))
    (root / "link").symlink_to(outside)
    (root / "loop").symlink_to(root / "loop")
    marked = root / "marked"
    marked.mkdir()
    (marked / "slipway-model.json").write_text(json.dumps({"path": str(outside)}))
    for path in (
        "../outside",
        str(outside),
        "a/../../outside",
        "link",
        "loop",
        "marked",
        ".",
        "",
        "/",
        "nothing",
        "a\0",
    ):
        assert refused(root, path).field == "lora_path"
    (root / "a" / folder.WEIGHTS).unlink()
    (root / "a" / folder.WEIGHTS).symlink_to(outside / folder.WEIGHTS)
    assert "leads out" in str(refused(root))
    (marked / "slipway-model.json").write_text(json.dumps({"path": str(write(root / "b", tensors_of(TARGETS)))}))
    assert read(root, "marked").rank == 4
