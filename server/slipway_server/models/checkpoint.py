"""What a model folder holds, read without torch, and the sentences for what is wrong with it."""

import json
import struct
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

MARKER = "slipway-model.json"
INDEX = "model.safetensors.index.json"
PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib"})
HEADER_LIMIT_BYTES = 100_000_000  # safetensors' own limit


class CheckpointError(Exception):
    """Why a folder cannot be served: one sentence for a person."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder whose files are all there, and what they say of the model."""

    folder: Path
    config: dict[str, Any]
    task: str  # generate | embed
    context_tokens: int
    stop_token_ids: tuple[int, ...]


def read(folder: Path, *, task: str = "auto") -> Checkpoint:
    """Follows the fetcher's marker, checks that the weights are whole, and reads what the HTTP process must know."""
    folder = resolve(folder)
    check_weights(folder)
    config = _json(folder / "config.json")
    if not (folder / "tokenizer.json").is_file():
        raise CheckpointError(f"{folder.name} has no tokenizer.json: save the model with a fast tokenizer.")
    task = _task(folder, config) if task == "auto" else task
    return Checkpoint(folder, config, task, _context(folder, config, task), _stop_tokens(folder, config))


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a folder that was read before."""
    return _json(folder / "config.json")


def resolve(folder: Path) -> Path:
    if not folder.is_dir():
        raise CheckpointError(f"There is no folder {folder}.")
    marker = folder / MARKER
    if marker.is_file():
        target = Path(_json(marker).get("path") or folder)
        folder = target if target.is_absolute() else folder / target
        if not folder.is_dir():
            raise CheckpointError(f"The marker {marker} names {folder}, which is not there.")
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder} is not a model folder: it has no config.json.")
    return folder


def check_weights(folder: Path) -> None:
    for name in weight_files(folder):
        check_safetensors(folder / name)


def weight_files(folder: Path) -> list[str]:
    """Names of the safetensors files to load; refuses folders without, or with fewer than their index names."""
    index = folder / INDEX
    if index.is_file():
        return _shards(folder, _json(index))
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    if names:
        return names
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLE_SUFFIXES)
    if pickles:
        raise CheckpointError(
            f"{folder.name} has only pickled weights ({', '.join(pickles[:3])}), which can run any code when loaded: "
            "convert them to safetensors."
        )
    raise CheckpointError(f"{folder.name} has no weights: expected model.safetensors or {INDEX} with its shards.")


def _shards(folder: Path, index: dict[str, Any]) -> list[str]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{INDEX} in {folder.name} has no weight_map.")
    names = sorted(set(weight_map.values()))
    for name in names:
        if PurePosixPath(name).name != name:
            raise CheckpointError(f"{INDEX} in {folder.name} names {name!r}, which is not a plain file name.")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(
            f"The weights of {folder.name} are incomplete: {missing[0]} is missing "
            f"({len(missing)} of the {len(names)} shards that {INDEX} names)."
        )
    return names


def check_safetensors(path: Path) -> None:
    """Compares the header with the size of the file: a download that was cut is told from a whole one."""
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        header_bytes = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else HEADER_LIMIT_BYTES + 1
        if header_bytes > min(HEADER_LIMIT_BYTES, size - 8):
            raise CheckpointError(f"{path.name} is not a whole safetensors file: its header is cut or damaged.")
        try:
            header = json.loads(file.read(header_bytes))
            ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            raise CheckpointError(f"{path.name} is not a safetensors file: its header cannot be read.") from None
    expected = 8 + header_bytes + max(ends, default=0)
    if size != expected:
        raise CheckpointError(f"{path.name} is {size} bytes long, its header says {expected}: the file is truncated.")


def _task(folder: Path, config: dict[str, Any]) -> str:
    architectures = config.get("architectures") or []
    if (folder / "modules.json").is_file() or not any(
        name.endswith(("ForCausalLM", "LMHeadModel")) for name in architectures
    ):
        return "embed"
    return "generate"


def _context(folder: Path, config: dict[str, Any], task: str) -> int:
    known = (config.get("max_position_embeddings"), config.get("n_positions"), config.get("max_sequence_length"))
    context = next((int(tokens) for tokens in known if tokens), 2048)
    sentence = folder / "sentence_bert_config.json"
    if task == "embed" and sentence.is_file():
        context = min(context, int(_json(sentence).get("max_seq_length") or context))
    return context


def _stop_tokens(folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    generation = folder / "generation_config.json"
    stops = _json(generation).get("eos_token_id") if generation.is_file() else None
    stops = config.get("eos_token_id") if stops is None else stops
    if stops is None:
        return ()
    return tuple(stops) if isinstance(stops, list) else (int(stops),)


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path.name} in {path.parent.name} cannot be read as JSON: {error}.") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path.name} in {path.parent.name} is not a JSON object.")
    return content
