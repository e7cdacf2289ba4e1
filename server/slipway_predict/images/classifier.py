"""What config.json and preprocessor_config.json add to the description of a model: an input of images, labels."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..description import CLASSIFICATION, INDEPENDENT, LOGITS, ImageInput, ModelDescription
from ..formats import ModelError
from ..tensors import TensorSpec
from . import preprocessing
from .preprocessing import CHANNELS, CONFIG, Preprocessing

_CONFIG = "config.json"
_DATATYPES = ("FP32", "FP16")
_SCORES = "logits"  # what Hugging Face's exports call their scores
MAX_LABELS = 100_000
MAX_LABEL_CHARACTERS = 512


def with_images(description: ModelDescription, folder: Path) -> ModelDescription:
    """The description with images and labels; unchanged where the folder has no preprocessor_config.json.

    Raises:
        ModelError: the files contradict the model, or need what this server does not have.
    """
    steps = preprocessing.read(folder)
    if steps is None:
        return description
    spec, channels_last = _fitted(_image_input(description), steps)
    inputs = [spec if one.name == spec.name else one for one in description.inputs]
    image = ImageInput(spec.name, spec.datatype, steps.height, steps.width, channels_last, str(folder / CONFIG))
    found = msgspec.structs.replace(description, inputs=inputs, image=image)
    config = folder / _CONFIG
    return _labelled(found, preprocessing.json_object(config) if config.is_file() else {})


def _image_input(description: ModelDescription) -> TensorSpec:
    found = [spec for spec in description.inputs if len(spec.shape) == 4 and spec.datatype in _DATATYPES]
    if len(description.inputs) != 1 or not found:
        shown = ", ".join(f"{spec.name} {spec.datatype} {list(spec.shape)}" for spec in description.inputs[:5])
        raise ModelError(
            f"{CONFIG} is for a model with one input of images, FP32 or FP16 with four dimensions, and this one has "
            f"{shown}: remove the file to serve tensors."
        )
    return found[0]


def _fitted(spec: TensorSpec, steps: Preprocessing) -> tuple[TensorSpec, bool]:
    """The input with the processor's sizes in place of open ones, and whether its channels come last."""
    rows, *sizes = spec.shape
    first, last = (CHANNELS, steps.height, steps.width), (steps.height, steps.width, CHANNELS)
    for wanted in (first, last):
        if all(size in (-1, want) for size, want in zip(sizes, wanted, strict=True)):
            return TensorSpec(spec.name, spec.datatype, (rows, *wanted), spec.features), wanted is last
    raise ModelError(
        f"{CONFIG} makes images of {CHANNELS} channels and {steps.height} x {steps.width} pixels, and the input "
        f"{spec.name} of the model is {list(spec.shape)}."
    )


def _labelled(description: ModelDescription, config: Mapping[str, Any]) -> ModelDescription:
    """A classifier's description, where the model has one matrix of scores and `config` a label for each column."""
    labels = labels_of(config)
    scores = [spec for spec in description.outputs if len(spec.shape) == 2 and spec.datatype in _DATATYPES]
    if not labels or len(scores) != 1 or description.label_output:
        return description
    [output] = scores
    if output.shape[1] not in (-1, len(labels)):
        raise ModelError(
            f"{_CONFIG} has {len(labels)} labels, and {output.name} of the model {output.shape[1]} columns."
        )
    fitted = TensorSpec(output.name, output.datatype, (output.shape[0], len(labels)))
    outputs = [fitted if one.name == output.name else one for one in description.outputs]
    meaning = "" if output.name != _SCORES else INDEPENDENT if independent(config) else LOGITS
    return msgspec.structs.replace(
        description, outputs=outputs, task=CLASSIFICATION, labels=list(labels), probabilities=output.name,
        scores=meaning or description.scores,
    )  # fmt: skip


def independent(config: Mapping[str, Any]) -> bool:
    """Whether an image can have several of the labels."""
    return config.get("problem_type") == "multi_label_classification"


def labels_of(config: Mapping[str, Any]) -> list[str]:
    """The labels in the order of their columns; empty where the configuration has none. Raises ModelError."""
    written = config.get("id2label")
    if not written:
        return []
    if not isinstance(written, Mapping) or len(written) > MAX_LABELS:
        raise ModelError(f"{_CONFIG}: id2label is no object of at most {MAX_LABELS} labels.")
    labels = [written.get(str(index)) for index in range(len(written))]
    for index, label in enumerate(labels):
        if not isinstance(label, str) or len(label) > MAX_LABEL_CHARACTERS:
            raise ModelError(
                f"{_CONFIG}: id2label has no text of at most {MAX_LABEL_CHARACTERS} characters for {index}."
            )
    return [str(label) for label in labels]
