"""Reads an adapter's folder: checks everything by the header before a tensor is read, then reads each tensor once.

Files are read, not mapped: a mapped file that is shortened would end the process.
"""

import hashlib
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch

from slipway_process import json_bounds
from slipway_process.model_folder.checkpoint import CheckpointError, check_links, follow_marker

from ...kernels.low_rank import LowRank, Update
from .configuration import CONFIG, AdapterConfig, is_of_base, read_config
from .errors import AdapterError
from .targets import Target

WEIGHTS = "adapter_model.safetensors"
PICKLED = "adapter_model.bin"
CONFIG_LIMIT_BYTES, HEADER_LIMIT_BYTES = 1 << 20, 4 << 20
LARGEST = 65504.0  # of a number: it is finite in every dtype of a model
PREFIX = "base_model.model."
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# The suffixes of the tensors of a module.
A, B, MAGNITUDE = ".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector"


@dataclass(frozen=True, slots=True)
class AdapterLimits:
    """What an adapter may be: of which rank, how large, below which folder, for a base with which names."""

    rank: int
    size_bytes: int
    root: Path
    base_names: frozenset[str]  # empty: any


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the file: its first byte and its length, counted from the end of the header."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    length: int


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """A checked folder, of which no tensor was read yet."""

    folder: Path
    config: AdapterConfig
    config_bytes: bytes
    header: bytes
    tensors: tuple[Tensor, ...]  # in the order of the file

    @property
    def size_bytes(self) -> int:
        return sum(tensor.length for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class Adapter:
    """`digest`: of all that was read; of it cached keys and values are. `updates`: by layer and operation."""

    digest: str
    rank: int
    updates: Mapping[tuple[int, str], Update]


def resolve(path: str, root: Path) -> Path:
    """The folder of an adapter: `path` is below `root`, or relative to it. Follows the fetcher's marker.

    Raises:
        AdapterError: it is not below the root, or there is none.
    """
    if "\0" in path:
        raise AdapterError("lora_path has a character that no path has.", "lora_path")
    try:
        top = root.resolve(strict=True)
        folder = (top / path).resolve(strict=True)
        if folder.is_relative_to(top) and folder.is_dir():
            folder = follow_marker(folder).resolve(strict=True)
    except (OSError, RuntimeError, CheckpointError):
        raise AdapterError(f"There is no folder {path[:256]!r} below {root}.", "lora_path") from None
    if not folder.is_relative_to(top) or folder == top or not folder.is_dir():
        raise AdapterError(f"{path[:256]!r} is no folder below {root}.", "lora_path")
    return folder


def check(path: str, limits: AdapterLimits, targets: Mapping[str, Target]) -> AdapterFiles:
    """Checks an adapter without reading its tensors. Raises AdapterError."""
    folder = resolve(path, limits.root)
    try:
        check_links(folder)
    except CheckpointError as error:
        raise AdapterError(str(error), "lora_path") from None
    config_bytes = _read_config_file(folder)
    config = read_config(_object(config_bytes, CONFIG), limits.rank)
    if limits.base_names and not is_of_base(config.base, limits.base_names):
        names = ", ".join(sorted(limits.base_names)[:8])
        raise AdapterError(
            f"base_model_name_or_path is {config.base[:128]!r}, and this server's base is {names}.",
            "base_model_name_or_path",
        )
    if not (folder / WEIGHTS).is_file() and (folder / PICKLED).exists():
        raise AdapterError(
            f"{PICKLED} is pickled, and can run any code when it is loaded: convert it to {WEIGHTS}.", WEIGHTS
        )
    with _open(folder / WEIGHTS) as file:
        header, tensors = _read_header(file)
    for tensor in tensors:
        _check_tensor(tensor, config, targets)
    _check_whole(tensors, config)
    files = AdapterFiles(folder, config, config_bytes, header, tensors)
    if files.size_bytes > limits.size_bytes:
        raise AdapterError(f"The adapter has {files.size_bytes} bytes; {limits.size_bytes} are for all.", WEIGHTS)
    return files


def read(files: AdapterFiles, targets: Mapping[str, Target], parts: Mapping[str, int]) -> Adapter:
    """Reads the tensors of a checked folder. Raises AdapterError for numbers that are not finite, and changed files."""
    digest = hashlib.sha256(len(files.config_bytes).to_bytes(8, "little") + files.config_bytes + files.header)
    tensors: dict[str, torch.Tensor] = {}
    with _open(files.folder / WEIGHTS) as file:
        if file.read(len(files.header)) != files.header:
            raise AdapterError(f"{WEIGHTS} was changed while it was read.", WEIGHTS)
        for tensor in files.tensors:
            data = bytearray(tensor.length)
            if file.readinto(data) != tensor.length:
                raise AdapterError(f"{WEIGHTS} was changed while it was read.", WEIGHTS)
            digest.update(data)
            numbers = torch.frombuffer(data, dtype=tensor.dtype).view(tensor.shape)
            if not bool(numbers.abs().max() <= LARGEST):  # so that NaN fails
                raise AdapterError(f"{tensor.name} has a number that is not finite, or above {LARGEST:g}.", tensor.name)
            tensors[tensor.name.removesuffix(".weight")] = numbers
    ranks = [len(numbers) for name, numbers in tensors.items() if name.endswith(".lora_A")]
    return Adapter(digest.hexdigest(), max(ranks), dict(_updates(files.config, tensors, targets, parts)))


def _updates(
    config: AdapterConfig, tensors: Mapping[str, torch.Tensor], targets: Mapping[str, Target], parts: Mapping[str, int]
) -> Iterator[tuple[tuple[int, str], Update]]:
    updates: dict[tuple[int, str], list[LowRank | None]] = {}
    for name, a in tensors.items():
        if not name.endswith(".lora_A"):
            continue
        module = name.removeprefix(PREFIX).removesuffix(".lora_A")
        target, whole = targets[module], PREFIX + module
        sizes = [size for _, size in target.parts]
        magnitude = tensors.get(whole + MAGNITUDE)
        magnitudes = [None] * len(sizes) if magnitude is None else torch.split(magnitude.float() * target.factor, sizes)
        update = updates.setdefault((target.layer, target.operation), [None] * parts[target.operation])
        each = zip(target.parts, torch.split(tensors[f"{whole}.lora_B"], sizes), magnitudes, strict=True)
        for (number, _), b, own in each:
            update[number] = LowRank(a, b, config.scale_of(module) * target.factor, own)
    yield from ((key, tuple(update)) for key, update in updates.items())


# --- files ------------------------------------------------------------------------------------------------------------


def _open(path: Path) -> BufferedReader:
    """Opens a regular file, and waits for no other kind. Raises AdapterError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise AdapterError(f"{path.name} cannot be read: {error.strerror}.", path.name) from None
    file = open(descriptor, "rb")  # noqa: SIM115 - closed by the caller
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise AdapterError(f"{path.name} is no file.", path.name)
    return file


def _read_config_file(folder: Path) -> bytes:
    with _open(folder / CONFIG) as file:
        data = file.read(CONFIG_LIMIT_BYTES + 1)
    if len(data) > CONFIG_LIMIT_BYTES:
        raise AdapterError(f"{CONFIG} has more than {CONFIG_LIMIT_BYTES} bytes.", CONFIG)
    return data


def _object(data: bytes, name: str) -> dict[str, Any]:
    try:
        json_bounds.check(data)
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise AdapterError(f"{name} cannot be read as JSON: {str(error)[:128]}.", name) from None
    if not isinstance(content, dict):
        raise AdapterError(f"{name} is no JSON object.", name)
    return content


def _read_header(file: BufferedReader) -> tuple[bytes, tuple[Tensor, ...]]:
    """The bytes up to the first tensor, and the tensors, which fill the rest of the file without gaps.

    https://github.com/huggingface/safetensors#format
    """
    size = os.fstat(file.fileno()).st_size
    prefix = file.read(8)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or not 2 <= length <= min(HEADER_LIMIT_BYTES, size - 8):
        raise AdapterError(
            f"{WEIGHTS} is no whole safetensors file: its header would have {length} bytes; "
            f"{HEADER_LIMIT_BYTES} is the limit.",
            WEIGHTS,
        )
    data = file.read(length)
    content = _object(data, WEIGHTS)
    content.pop("__metadata__", None)
    tensors = sorted((_tensor(name, about) for name, about in content.items()), key=lambda tensor: tensor.begin)
    at = 0
    for tensor in tensors:
        if tensor.begin != at:
            raise AdapterError(f"{tensor.name} does not begin where the tensor before it ends.", tensor.name)
        at += tensor.length
    if size != 8 + length + at:
        raise AdapterError(f"{WEIGHTS} has {size} bytes, its header says {8 + length + at}.", WEIGHTS)
    return prefix + data, tuple(tensors)


def _tensor(name: str, about: Any) -> Tensor:
    shown = name[:128]
    try:
        dtype, shape, (begin, end) = about["dtype"], tuple(about["shape"]), about["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise AdapterError(f"{shown} has no dtype, shape and data_offsets.", shown) from None
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise AdapterError(f"{shown} is {str(dtype)[:32]}: adapters are F32, F16 or BF16.", shown)
    numbers = (*shape, begin, end)
    if len(shape) > 2 or not all(isinstance(value, int) and 0 < value < 1 << 40 for value in shape):
        raise AdapterError(f"{shown} has the shape {str(list(shape))[:64]}.", shown)
    if not all(isinstance(value, int) and value >= 0 for value in numbers):
        raise AdapterError(f"{shown} has offsets that are no numbers.", shown)
    if end - begin != math.prod(shape) * DTYPES[dtype].itemsize:
        raise AdapterError(f"{shown} has {end - begin} bytes for the shape {list(shape)}.", shown)
    return Tensor(shown, DTYPES[dtype], shape, begin, end - begin)


def _check_tensor(tensor: Tensor, config: AdapterConfig, targets: Mapping[str, Target]) -> None:
    name = tensor.name.removeprefix(PREFIX)
    for suffix in (A, B, f"{MAGNITUDE}.weight", MAGNITUDE):
        if name.endswith(suffix):
            module = name.removesuffix(suffix)
            break
    else:
        raise AdapterError(f"{tensor.name} is no tensor of a LoRA adapter of linear layers.", tensor.name)
    target = targets.get(module)
    if target is None or not tensor.name.startswith(PREFIX):
        raise AdapterError(f"target_modules: this model has no {module!r} that can be adapted.", "target_modules")
    rank = config.rank_of(module)
    wanted = {A: (rank, target.inputs), B: (target.outputs, rank)}.get(suffix, (target.outputs,))
    if tensor.shape != wanted:
        raise AdapterError(f"{tensor.name} is {list(tensor.shape)}, and must be {list(wanted)}.", tensor.name)


def _check_whole(tensors: tuple[Tensor, ...], config: AdapterConfig) -> None:
    """Each module has both of its matrices, and its magnitudes where it is DoRA."""
    suffixes = [".lora_A", ".lora_B", *([MAGNITUDE] if config.dora else [])]
    names = {tensor.name.removesuffix(".weight") for tensor in tensors}
    modules = {name.rpartition(".")[0] for name in names}
    for name in sorted(module + suffix for module in modules for suffix in suffixes):
        if name not in names:
            raise AdapterError(f"{WEIGHTS} lacks {name}.", name)
    if extra := [name for name in names if name.endswith(MAGNITUDE) and not config.dora]:
        raise AdapterError(f"use_dora is false, and {WEIGHTS} has {extra[0]}.", "use_dora")
    if len(names) != len(tensors) or not modules:
        raise AdapterError(f"{WEIGHTS} has no tensors of an adapter, or one of them twice.", WEIGHTS)
