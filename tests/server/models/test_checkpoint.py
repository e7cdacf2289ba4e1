"""Model folders: what is read from them, and one sentence for each way in which they are broken."""

import json
import shutil
from pathlib import Path

import pytest

from slipway_server.models.checkpoint import CheckpointError, read


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
