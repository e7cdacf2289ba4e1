"""Model folders: what is read from them, and one sentence for each way in which they are broken."""

import json
import logging
import shutil
from pathlib import Path

import pytest

from slipway_process.model_folder.checkpoint import CheckpointError, read
from slipway_process.model_folder.quantization.reading import quantization_of
from slipway_process.model_folder.quantization.schemes import Awq, Gptq


@pytest.fixture
def copy(tiny_v1: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_v1, tmp_path / "model"))


def test_a_language_model(tiny_v1: Path) -> None:
    found = read(tiny_v1)
    assert (found.task, found.context_tokens, found.stop_token_ids) == ("generate", 512, (2, 0))


def test_a_sentence_encoder(encoder: Path) -> None:
    found = read(encoder)
    assert (found.task, found.context_tokens) == ("embed", 256)


def test_the_marker_is_followed(tiny_v1: Path, tmp_path: Path) -> None:
    (tmp_path / "slipway-model.json").write_text(json.dumps({"path": str(tiny_v1)}))
    assert read(tmp_path).folder == tiny_v1


def test_a_missing_shard_is_named(tiny_broken: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors is missing \(1 of the 2 shards"):
        read(tiny_broken)


def breakages() -> dict[str, tuple[str, object]]:
    def remove(name: str) -> object:
        return lambda folder: (folder / name).unlink()

    def cut(size: int) -> object:
        return lambda folder: (folder / "model.safetensors").write_bytes(
            (folder / "model.safetensors").read_bytes()[:size]
        )

    def pickled(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")

    def write(name: str, text: str) -> object:
        return lambda folder: (folder / name).write_text(text)

    outside = '{"weight_map": {"a": "../x.safetensors"}}'
    return {
        "no config": ("no config.json", remove("config.json")),
        "no tokenizer": ("no tokenizer.json", remove("tokenizer.json")),
        "no weights": ("has no weights", remove("model.safetensors")),
        "pickles only": ("only pickled weights \\(pytorch_model.bin\\)", pickled),
        "cut weights": ("the file is truncated", cut(100_000)),
        "cut header": ("header is cut", cut(500)),
        "empty weights": ("header is cut", cut(0)),
        "no safetensors": ("header is cut", write("model.safetensors", "x" * 1000)),
        "bad config": ("cannot be read as JSON", write("config.json", "{")),
        "index that leads out": ("not a plain file name", write("model.safetensors.index.json", outside)),
        "marker to nowhere": ("which is not there", write("slipway-model.json", '{"path": "/nowhere"}')),
    }


@pytest.mark.parametrize("name", list(breakages()))
def test_broken_folders_are_refused(copy: Path, name: str) -> None:
    sentence, break_it = breakages()[name]
    break_it(copy)  # type: ignore[operator]
    with pytest.raises(CheckpointError, match=sentence):
        read(copy)


def test_a_missing_folder() -> None:
    with pytest.raises(CheckpointError, match="no folder"):
        read(Path("/nowhere"))


def edit(folder: Path, name: str, **change: object) -> None:
    path = folder / name
    found = json.loads(path.read_bytes()) if path.is_file() else {}
    path.write_text(json.dumps(found | change))


def quantized(method: str, **fields: object) -> dict[str, object]:
    return {"quantization_config": {"quant_method": method, **fields}}


def compressed(kind: str, **weights: object) -> dict[str, object]:
    return quantized("compressed-tensors", format=kind, config_groups={"group_0": {"weights": weights}})


NOT_SERVED: dict[str, tuple[dict[str, object], str]] = {
    "3 bits": (quantized("gptq", bits=3), "quantized with bits 3 of gptq; 4 and 8 are read"),
    "marlin": (quantized("gptq", checkpoint_format="marlin"), "'marlin' of gptq; 'gptq' and 'gptq_v2' are read"),
    "layers of their own": (quantized("gptq", dynamic={"a": {"bits": 8}}), "dynamic of gptq"),
    "gemv": (quantized("awq", version="gemv"), "version 'gemv' of awq; the version 'gemm' is read"),
    "no group": (quantized("awq", group_size=0), "group_size 0"),
    "a negative group": (quantized("awq", group_size=-2), r"makes no sense: .*>= -1 - at `\$\.group_size`"),
    "a group that is a text": (quantized("gptq", group_size="128"), r"Expected `int`, got `str` - at `\$\.group_size`"),
    "an unknown field": (quantized("awq", outliers=True), "'outliers' in the quantization_config of awq"),
    "mxfp4": (quantized("mxfp4"), "quantized with mxfp4; awq .gemm., gptq, compressed-tensors, fp8 and bitsandbytes"),
    "e5m2": (quantized("fp8", fmt="e5m2"), "fmt 'e5m2' of fp8; 'e4m3' is read"),
    "blocks of one side": (quantized("fp8", weight_block_size=[128]), "blocks of .128.; two sizes"),
    "nvfp4": (compressed("nvfp4-pack-quantized", num_bits=4, type="float"), "format 'nvfp4-pack-quantized'"),
    "2 of 4": (compressed("pack-quantized", num_bits=2), "format 'pack-quantized' with int of 2 bits"),
    "no groups of layers": (quantized("compressed-tensors"), "compressed-tensors without config_groups"),
    "a cache": (quantized("compressed-tensors", kv_cache_scheme={"num_bits": 8}), "kv_cache_scheme"),
    "4 and 8 bits": (
        quantized("bitsandbytes", load_in_4bit=True, load_in_8bit=True),
        "neither or both of load_in_4bit and load_in_8bit",
    ),
    "no method": ({"quantization_config": {"bits": 4}}, "quantized with a method that it does not name"),
    "no object": ({"quantization_config": [4]}, "a quantization_config that is no object"),
    "a part of the model": ({"text_config": {"quantization_config": {"quant_method": "awq"}}}, "quantized with awq"),
    "reranker": ({"architectures": ["Qwen3ForSequenceClassification"]}, "a classifier or a reranker"),
    "several senses": ({"architectures": ["Gemma3ForConditionalGeneration"]}, "reads images or sound"),
    "vision": ({"vision_config": {"depth": 2}}, r"reads more than text \(vision_config"),
    "speech": ({"architectures": ["Wav2Vec2ForCTC"], "model_type": "wav2vec2"}, "recognises speech"),
    "images": ({"architectures": ["Dinov2Model"], "model_type": "dinov2"}, r"Dinov2Model \(model_type 'dinov2'"),
    "another head": ({"architectures": ["LlamaForCausalLMEagle3"]}, "LlamaForCausalLMEagle3"),
    "encoder and decoder": (
        {"architectures": ["T5WithLMHeadModel"], "is_encoder_decoder": True},
        "an encoder with a decoder",
    ),
    "no name": ({"architectures": None, "model_type": "unheard-of"}, "model_type 'unheard-of'"),
    "names that are none": ({"architectures": "LlamaForCausalLM"}, "not a list of names"),
}


@pytest.mark.finding(8, 9)
@pytest.mark.parametrize("task", ["auto", "generate", "embed"])
@pytest.mark.parametrize("name", list(NOT_SERVED))
def test_models_that_neither_generate_nor_embed_are_refused_for_every_task(copy: Path, name: str, task: str) -> None:
    """Safety 8 and 9: it was served as mean-pooled nonsense, or loaded as if it were whole numbers."""
    change, sentence = NOT_SERVED[name]
    edit(copy, "config.json", **change)
    with pytest.raises(CheckpointError, match=sentence) as refused:
        read(copy, task=task)
    assert "\n" not in str(refused.value) and str(refused.value).endswith(".")


TOOL_FILES = {
    "quantize_config.json": (
        {"bits": 4, "group_size": 64, "desc_act": True},
        Gptq(4, 64, act_order=True, zero_offset=1),
    ),
    "quant_config.json": ({"w_bit": 4, "q_group_size": 64, "version": "GEMM", "zero_point": True}, Awq(64)),
}


@pytest.mark.parametrize("name", TOOL_FILES)
def test_quantized_weights_are_known_by_the_files_of_the_tools_too(copy: Path, name: str) -> None:
    fields, scheme = TOOL_FILES[name]
    (copy / name).write_text(json.dumps(fields))
    quantization = quantization_of(read(copy).config)
    assert quantization and quantization.schemes == (scheme,)
    edit(copy, "config.json", quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True})
    assert quantization_of(read(copy).config) != quantization, "config.json is first"


def test_modelopt_is_known_by_its_file(copy: Path) -> None:
    (copy / "hf_quant_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"quantized with ModelOpt \(hf_quant_config\.json\)"):
        read(copy)


def test_quantized_encoders_are_refused(encoder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(encoder, tmp_path / "encoder"))
    edit(folder, "config.json", **quantized("bitsandbytes", load_in_8bit=True))
    with pytest.raises(CheckpointError, match="quantized with bitsandbytes"):
        read(folder)


def test_numbers_of_eight_bits_are_refused_by_the_files_themselves(copy: Path) -> None:
    header = json.dumps({"w": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}).encode()
    (copy / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"1234")
    with pytest.raises(CheckpointError, match="quantized with F8_E4M3"):
        read(copy)


def test_a_task_that_the_model_is_not_made_for_is_refused(tiny_v1: Path, encoder: Path) -> None:
    assert read(tiny_v1, task="embed").task == "embed"
    with pytest.raises(CheckpointError, match=r"BertModel .* generates no text"):
        read(encoder, task="generate")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"max_position_embeddings": "many"}, "max_position_embeddings is many"),
        ({"max_position_embeddings": 10**12}, "must be a whole number from 1 to"),
        ({"eos_token_id": {"a": 1}}, "eos_token_id of model"),
    ],
)
def test_numbers_that_make_no_sense_are_named(copy: Path, change: dict[str, object], sentence: str) -> None:
    edit(copy, "config.json", **change)
    (copy / "generation_config.json").unlink(missing_ok=True)
    with pytest.raises(CheckpointError, match=sentence):
        read(copy)


def test_deep_json_is_a_sentence(copy: Path) -> None:
    (copy / "config.json").write_text('{"a":' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(CheckpointError, match="cannot be read as JSON"):
        read(copy)


@pytest.mark.finding("S13")
@pytest.mark.attack_class(21)
@pytest.mark.parametrize("kind", ["file", "folder", "dangling"])
def test_links_out_of_the_folder_are_refused(copy: Path, tmp_path: Path, kind: str) -> None:
    """stories S13: `slipway-server --model` alone followed them."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "token").write_text("{}")
    targets = {"file": tmp_path / "secret" / "token", "folder": tmp_path / "secret", "dangling": tmp_path / "gone"}
    (copy / "more.json").symlink_to(targets[kind])
    with pytest.raises(CheckpointError, match=r"more\.json is a link that leads out"):
        read(copy)


@pytest.mark.attack_class(21)
def test_the_cache_of_the_hub_may_link_to_its_own_blobs_and_nowhere_else(tiny_v1: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models--org--name"
    snapshot, blobs = repository / "snapshots" / "abc", repository / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate(sorted(tiny_v1.iterdir())):
        shutil.copy(path, blobs / str(number))
        (snapshot / path.name).symlink_to(Path("../../blobs") / str(number))
    assert read(snapshot).task == "generate"
    (tmp_path / "models--other--name").mkdir()
    (tmp_path / "models--other--name" / "x").write_text("{}")
    (snapshot / "extra.json").symlink_to("../../../models--other--name/x")
    with pytest.raises(CheckpointError, match=r"extra\.json is a link"):
        read(snapshot)


@pytest.mark.finding("S13")
@pytest.mark.attack_class(4)
def test_pickles_beside_safetensors_are_named_and_not_read(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    """stories S13: they were passed over in silence."""
    (copy / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with caplog.at_level(logging.WARNING):
        assert read(copy).task == "generate"
    assert "never read" in caplog.text and "pytorch_model.bin" in caplog.text


@pytest.mark.attack_class(5)
def test_code_of_the_folder_is_named(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    edit(copy, "config.json", auto_map={"AutoConfig": "configuration_evil.EvilConfig"})
    (copy / "modeling_evil.py").write_text("raise SystemExit('it ran')")
    with caplog.at_level(logging.WARNING):
        read(copy)
    assert "never run: configuration_evil.EvilConfig, modeling_evil.py" in caplog.text
