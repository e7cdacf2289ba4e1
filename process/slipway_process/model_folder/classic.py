"""Which file of a folder is the model, and in which format: by names and first bytes. Pickles are refused by name."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slipway_process.model_folder.architectures import ENCODERS, NotServable, custom_code, refuse_quantized
from slipway_process.model_folder.checkpoint import (
    MARKER,
    CheckpointError,
    check_links,
    check_weights,
    follow_marker,
    read_config,
)

AUTO, ONNX, XGBOOST, LIGHTGBM, SKOPS = "auto", "onnx", "xgboost", "lightgbm", "skops"
TRANSFORMERS = "transformers"  # never found by itself: its folder may be that of a language model
# Of the format transformers, as `find` returns them: rows of one text, and of two.
TEXTS, PAIRS = "transformers texts", "transformers pairs"
RERANK = "rerank"  # the task
SUFFIXES = {ONNX: (".onnx",), XGBOOST: (".ubj", ".json"), LIGHTGBM: (".txt",), SKOPS: (".skops",)}
PREFERRED = "model"  # of several files the one with this stem
_PEEK_BYTES = 4096
_CONFIG, _PREPROCESSOR, _TOKENIZER = "config.json", "preprocessor_config.json", "tokenizer.json"
_OF_IMAGES, _OF_TEXTS = "ForImageClassification", "ForSequenceClassification"
_TORCHSCRIPT = "is TorchScript or a pickle of PyTorch: export the model to ONNX"
_PICKLE = (
    "is a pickle, which can run any code when it is loaded: save the model with skops.io.dump, or convert it to ONNX"
)
_PT2 = "is a program of torch.export, whose reader unpickles: export the model to ONNX"
REFUSED = {
    **dict.fromkeys((".pkl", ".pickle", ".joblib", ".sav", ".ckpt", ".bin", ".dill", ".cloudpickle"), _PICKLE),
    **dict.fromkeys((".pt", ".pth", ".torchscript", ".ts"), _TORCHSCRIPT),
    ".pt2": _PT2,
}


@dataclass(frozen=True, slots=True)
class ModelFile:
    format: str
    path: Path


def find(folder: Path, wanted: str = AUTO, task: str = "predict") -> ModelFile:
    """The model of a folder, or of the folder that the fetcher's marker names. A reranker is of transformers.

    Raises:
        CheckpointError: the folder has no model, several, or one that is not served; the sentence says what to do.
    """
    folder = follow_marker(folder)
    check_links(folder)
    if task == RERANK:
        return _reranker(folder)
    if wanted == TRANSFORMERS:
        return _transformers(folder)
    found = list(_candidates(folder, wanted))
    named = [file for file in found if file.path.stem == PREFERRED]
    chosen = found if len(found) == 1 else named
    if len(chosen) == 1:
        return chosen[0]
    if found:
        names = ", ".join(f"{file.path.name} ({file.format})" for file in found[:5])
        raise CheckpointError(
            f"{folder.name} has several models: {names}. Name one of them model with its suffix, or write "
            "spec.model.format."
        )
    raise CheckpointError(_why_none(folder, wanted))


def _reranker(folder: Path) -> ModelFile:
    found = _transformers(folder)
    if found.format != TEXTS:
        raise CheckpointError(
            f"{folder.name} is a classifier of images, and no reranker: write spec.model.task: classify."
        )
    return replace(found, format=PAIRS)


def _transformers(folder: Path) -> ModelFile:
    """The config.json of a Hugging Face folder with whole safetensors. Raises CheckpointError for any other folder."""
    if not (folder / _CONFIG).is_file():
        raise CheckpointError(f"{folder.name} has no {_CONFIG}: it is no model of the format transformers.")
    config = read_config(folder)
    of_texts = _is_classifier(config, _OF_TEXTS)
    needed = _TOKENIZER if of_texts else _PREPROCESSOR
    if not (folder / needed).is_file():
        raise CheckpointError(f"{folder.name} has no {needed}: it is no classifier of the format transformers.")
    if code := custom_code(config):
        raise CheckpointError(f"{folder.name} needs code of its own ({', '.join(code)[:200]}), which is never run.")
    if of_texts:
        _check_encoder(folder, config)
    elif not _is_classifier(config, _OF_IMAGES):
        raise CheckpointError(
            f"{folder.name} is no image classifier and no classifier of texts: no name in architectures of "
            f"config.json ends in {_OF_IMAGES} or {_OF_TEXTS}."
        )
    check_weights(folder)
    return ModelFile(TEXTS if of_texts else TRANSFORMERS, folder / _CONFIG)


def _check_encoder(folder: Path, config: dict[str, Any]) -> None:
    kind = str(config.get("model_type"))
    if kind not in ENCODERS:
        raise CheckpointError(
            f"{folder.name} is a classifier of the model_type {kind[:64]!r}; known ones are "
            f"{', '.join(sorted(ENCODERS))}."
        )
    try:
        refuse_quantized(config)
    except NotServable as reason:
        raise CheckpointError(f"{folder.name}: {reason}.") from None


def _is_classifier(config: dict[str, Any], suffix: str) -> bool:
    names = config.get("architectures")
    return isinstance(names, list) and any(isinstance(name, str) and name.endswith(suffix) for name in names)


def _candidates(folder: Path, wanted: str) -> Iterator[ModelFile]:
    for path in sorted(path for path in folder.iterdir() if path.is_file() and path.name != MARKER):
        for name, suffixes in SUFFIXES.items():
            if wanted in (AUTO, name) and path.suffix in suffixes and _looks_like(path, name):
                yield ModelFile(name, path)


def _looks_like(path: Path, name: str) -> bool:
    """Whether a file can be a model of the format. .json and .txt are many things: their first bytes decide."""
    if path.suffix not in (".json", ".txt"):
        return True
    with path.open("rb") as file:
        start = file.read(_PEEK_BYTES)
    return b'"learner"' in start if name == XGBOOST else start.lstrip().startswith(b"tree\n")


def _why_none(folder: Path, wanted: str) -> str:
    if wanted == AUTO and (folder / _CONFIG).is_file():
        config = read_config(folder)
        if any(_is_classifier(config, suffix) for suffix in (_OF_IMAGES, _OF_TEXTS)):
            return f"{folder.name} is a classifier of Hugging Face: write spec.model.format: {TRANSFORMERS}."
    for path in sorted(folder.iterdir()):
        if reason := REFUSED.get(path.suffix):
            return f"{path.name} {reason}."
    if wanted == AUTO:
        expected = "model.onnx, an XGBoost model (.ubj, .json), a LightGBM model (.txt) or model.skops"
    else:
        expected = f"a file of the format {wanted} ({', '.join(SUFFIXES[wanted])})"
    return f"{folder.name} has no model: expected {expected}."
