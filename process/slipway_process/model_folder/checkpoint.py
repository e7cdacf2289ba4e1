"""Reads and checks a model folder without torch; errors are sentences for a person."""

import json
import logging
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from slipway_process.model_folder import architectures, end_tokens
from slipway_process.model_folder.added_tokens import misnumbered, vocabulary
from slipway_process.model_folder.json_files import BadFile, read_object
from slipway_process.model_folder.quantization.reading import from_tool_file, quantization_of
from slipway_process.model_folder.rope import longest_contexts
from slipway_process.model_folder.tokenizer_files import TokenizerFiles

log = logging.getLogger(__name__)

MARKER = "slipway-model.json"
INDEX = "model.safetensors.index.json"
PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib"})
HEADER_LIMIT_BYTES = 100_000_000  # safetensors' own limit
ENTRIES_LIMIT = 100_000  # files and folders in a model folder
CONTEXT_LIMIT = 10_000_000
# Files in which tools describe their quantization; config.json may not mention it.
TOOL_FILES = ("quantize_config.json", "quant_config.json")  # AutoGPTQ's and AutoAWQ's
REFUSED_TOOL_FILES = {"hf_quant_config.json": "ModelOpt"}
# The dtypes of tensors, in safetensors' names, that this server reads. Integers occur in old checkpoints, as masks and
# positions.
READABLE = frozenset({"F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL"})
FLOAT8 = frozenset({"F8_E4M3"})  # where config.json says so


class CheckpointError(Exception):
    """Why a folder cannot be served: one sentence for a person."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete model folder and its description.

    `longest_context_tokens`: the most that may be requested in place of `context_tokens`. `tokenizer_files`: what the
    folder has beside tokenizer.json.
    """

    folder: Path
    config: dict[str, Any]
    task: str  # generate | embed
    context_tokens: int
    stop_token_ids: tuple[int, ...]
    longest_context_tokens: int = 0
    tokenizer_files: TokenizerFiles = field(default_factory=TokenizerFiles)


def read(folder: Path, *, task: str = "auto") -> Checkpoint:
    """Follows the fetcher's marker, checks that the weights are complete, and reads what the HTTP process needs.

    Raises:
        CheckpointError: the folder cannot be served, or not for this `task`.
    """
    folder = resolve(folder)
    check_links(folder)
    config = read_config(folder)
    task = _task(folder, config, task)
    quantization = quantization_of(config)  # `_task` has refused what is not read
    check_weights(folder, READABLE | FLOAT8 if quantization and quantization.has_float8 else READABLE)
    if not (folder / "tokenizer.json").is_file():
        raise CheckpointError(f"{folder.name} has no tokenizer.json: save the model with a fast tokenizer.")
    _log_ignored_files(folder, config)
    context_tokens, longest_tokens = _contexts(folder, config, task)
    files = _tokenizer_files(folder)
    stops = _stop_token_ids(folder, config, files)
    return Checkpoint(folder, config, task, context_tokens, stops, longest_tokens, files)


def read_config(folder: Path) -> dict[str, Any]:
    """The content of config.json, with `quantization_config` from a tool's own file where it lacks that.

    Raises:
        CheckpointError: one of the files cannot be read.
    """
    config = _json(folder / "config.json")
    for name in () if config.get("quantization_config") else TOOL_FILES:
        if (folder / name).is_file():
            return config | {"quantization_config": from_tool_file(name, _json(folder / name))}
    return config


def resolve(folder: Path) -> Path:
    folder = follow_marker(folder)
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder} is not a model folder: it has no config.json.")
    return folder


def follow_marker(folder: Path) -> Path:
    """The folder that the fetcher's marker in `folder` names, or `folder` itself. Raises CheckpointError."""
    if not folder.is_dir():
        raise CheckpointError(f"There is no folder {folder}.")
    marker = folder / MARKER
    if marker.is_file():
        target = Path(str(_json(marker).get("path") or folder))
        folder = target if target.is_absolute() else folder / target
        if not folder.is_dir():
            raise CheckpointError(f"The marker {marker} names {folder}, which is not there.")
    return folder


def source_uri(folder: Path) -> str:
    """Where the fetcher's marker in `folder` says that the model is from; empty without one. Raises CheckpointError."""
    marker = folder / MARKER
    return str(_json(marker).get("uri") or "") if marker.is_file() else ""


def check_links(folder: Path) -> None:
    """Raises CheckpointError for links out of the folder: they could expose any file that this process can read.

    In the cache of huggingface_hub, a snapshot's files are links to blobs of the same repository: these are allowed.
    """
    root = folder.resolve()
    cached = root.parent.name == "snapshots" and root.parents[1].name.startswith("models--")
    roots = [root, root.parents[1] / "blobs"] if cached else [root]
    seen = 0
    for parent, folders, files in os.walk(root):
        seen += len(folders) + len(files)
        if seen > ENTRIES_LIMIT:
            raise CheckpointError(f"{folder.name} has more than {ENTRIES_LIMIT} files: it is no model folder.")
        for path in (Path(parent, name) for name in (*folders, *files)):
            if path.is_symlink() and not any(Path(os.path.realpath(path)).is_relative_to(top) for top in roots):
                name = path.relative_to(root)
                raise CheckpointError(
                    f"{name} is a link that leads out of the model folder {folder.name}: copy the file."
                )


def _log_ignored_files(folder: Path, config: dict[str, Any]) -> None:
    """Warns of pickles and code beside complete safetensors: the model is served, and these files are never read."""
    names = sorted(path.name for path in folder.iterdir())
    pickles = [name for name in names if PurePosixPath(name).suffix in PICKLE_SUFFIXES]
    if pickles:
        log.warning("pickled files are never read, the safetensors beside them are: %s", ", ".join(pickles[:8]))
    code = [*architectures.custom_code(config), *(name for name in names if name.endswith(".py"))]
    if code:
        log.warning("code of the model folder is never run: %s", ", ".join(code[:8]))


def check_weights(folder: Path, readable: frozenset[str] = READABLE) -> None:
    """Checks that each file is whole and has tensors of `readable` dtypes only. Raises CheckpointError."""
    for name in weight_files(folder):
        check_safetensors(folder / name, readable)


def weight_files(folder: Path) -> list[str]:
    """The names of the safetensors files to load.

    Raises:
        CheckpointError: the folder has none, or lacks shards that its index names.
    """
    index = folder / INDEX
    if index.is_file():
        return _shards(folder, _json(index))
    names = sorted(path.name for path in folder.glob("*.safetensors") if path.is_file())
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
    if not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(f"{INDEX} in {folder.name} names a file that is not a text.")
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


def check_safetensors(path: Path, readable: frozenset[str] = READABLE) -> None:
    """Compares the header with the size of the file, to detect an incomplete download. Raises CheckpointError."""
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        header_bytes = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else HEADER_LIMIT_BYTES + 1
        if header_bytes > min(HEADER_LIMIT_BYTES, size - 8):
            raise CheckpointError(f"{path.name} is not a whole safetensors file: its header is cut or damaged.")
        try:
            header = json.loads(file.read(header_bytes))
            tensors = [tensor for name, tensor in header.items() if name != "__metadata__"]
            ends = [int(tensor["data_offsets"][1]) for tensor in tensors]
            numbers = {str(tensor["dtype"]) for tensor in tensors}
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            raise CheckpointError(f"{path.name} is not a safetensors file: its header cannot be read.") from None
    expected = 8 + header_bytes + max(ends, default=0)
    if size != expected:
        raise CheckpointError(f"{path.name} is {size} bytes long, its header says {expected}: the file is truncated.")
    if strange := sorted(numbers - readable):
        raise CheckpointError(f"{path.name}: {architectures.quantized(strange[0][:64], 'type of its tensors')}.")


def _task(folder: Path, config: dict[str, Any], requested: str) -> str:
    try:
        for name, method in REFUSED_TOOL_FILES.items():
            if (folder / name).is_file():
                raise architectures.NotServable(architectures.quantized(method, name))
        return architectures.task_of(config, requested=requested, pooled=(folder / "modules.json").is_file())
    except architectures.NotServable as reason:
        raise CheckpointError(f"{folder.name}: {reason}.") from None


def _contexts(folder: Path, config: dict[str, Any], task: str) -> tuple[int, int]:
    """The context in tokens, and the most that may be requested."""
    names = ("max_position_embeddings", "n_positions", "max_sequence_length")
    context = next((_count(config, name) for name in names if config.get(name)), 2048)
    sentence = folder / "sentence_bert_config.json"
    if task != "embed":
        return longest_contexts(config, context)
    if sentence.is_file():
        described = _json(sentence)
        context = min(context, _count(described, "max_seq_length") if described.get("max_seq_length") else context)
    return context, context


def _count(config: dict[str, Any], name: str) -> int:
    value = config[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= CONTEXT_LIMIT:
        raise CheckpointError(f"{name} is {str(value)[:64]}: it must be a whole number from 1 to {CONTEXT_LIMIT}.")
    return value


def _stop_token_ids(folder: Path, config: dict[str, Any], files: TokenizerFiles) -> tuple[int, ...]:
    text = config.get("text_config")
    configs = (_optional(folder, "generation_config.json"), config, text if isinstance(text, dict) else {})
    try:
        named = end_tokens.named_ids(*configs)
    except end_tokens.BadEndToken as reason:
        raise CheckpointError(f"eos_token_id of {folder.name} {reason}") from None
    tokens = vocabulary(folder, files)
    if strange := misnumbered(tokens, files):
        log.warning("added tokens have other numbers than the files list: %s", ", ".join(strange[:8]))
    ids = (*named, *end_tokens.tokenizer_ids(tokens, files.texts.get("eos_token")))
    return tuple(dict.fromkeys(ids)) or end_tokens.found_ids(tokens)


def _tokenizer_files(folder: Path) -> TokenizerFiles:
    try:
        return TokenizerFiles.read(folder)
    except BadFile as reason:
        raise CheckpointError(str(reason)) from None


def _optional(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    return _json(path) if path.is_file() else {}


def _json(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except BadFile as reason:
        raise CheckpointError(str(reason)) from None
