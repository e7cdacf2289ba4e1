"""Hugging Face's image classifiers from safetensors, by torch and transformers: code of the folder is never run."""

from pathlib import Path
from typing import Any

import numpy
import torch
import transformers

from ..description import CLASSIFICATION, ModelDescription
from ..images.classifier import with_images
from ..images.preprocessing import CHANNELS, CONFIG
from ..tensors import Tensor, TensorSpec
from . import ModelError

PIXELS, SCORES = "pixel_values", "logits"  # names that Hugging Face's exports have, too


class TransformersModel:
    def __init__(self, model: Any, description: ModelDescription) -> None:
        self._model = model
        self.description = description

    def run(self, inputs: list[Tensor], outputs: list[str]) -> list[Tensor]:
        with torch.inference_mode():
            rows = torch.from_numpy(
                numpy.array(inputs[0].array)
            )  # a copy of its own: torch warns of memory that it may not write
            scores = self._model(pixel_values=rows).logits
        return [Tensor(SCORES, "FP32", scores.numpy()) for _ in outputs]


def load(path: Path, threads: int) -> TransformersModel:
    torch.set_num_threads(threads)
    model = loaded(transformers.AutoModelForImageClassification, path.parent)
    labels = int(model.config.num_labels)
    description = with_images(_described(labels), path.parent)
    if description.image is None:
        raise ModelError(f"{path.parent.name} has no {CONFIG}, which says how images become tensors.")
    if description.task != CLASSIFICATION:
        raise ModelError(f"config.json has no id2label for the {labels} labels of the model.")
    found = TransformersModel(model, description)
    _try(found)
    return found


def _described(labels: int) -> ModelDescription:
    inputs = [TensorSpec(PIXELS, "FP32", (-1, CHANNELS, -1, -1))]
    outputs = [TensorSpec(SCORES, "FP32", (-1, labels))]
    return ModelDescription("pytorch", f"transformers {transformers.__version__}", inputs, outputs)


def loaded(kind: Any, folder: Path) -> Any:
    """The model in float32. ModelError for weights that are missing or have other sizes: they would be random."""
    try:
        model, found = kind.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, use_safetensors=True, dtype=torch.float32,
            output_loading_info=True,
        )  # fmt: skip
    except MemoryError:
        raise
    except Exception as error:  # it raises what the classes raise that it builds
        raise ModelError(
            f"transformers cannot load {folder.name}: {type(error).__name__}: {str(error)[:300]}"
        ) from None
    for problem in ("missing_keys", "mismatched_keys"):
        if names := sorted(map(str, found.get(problem) or ())):
            raise ModelError(
                f"The weights of {folder.name} lack {', '.join(names)[:300]}, which its config.json needs."
            )
    return model.eval()


def _try(model: TransformersModel) -> None:
    """Run one image, so that a processor of another size than the model's is found before the first request."""
    [spec] = model.description.inputs
    try:
        model.run([Tensor(PIXELS, "FP32", numpy.zeros((1, *spec.shape[1:]), "f4"))], [SCORES])
    except Exception as error:
        raise ModelError(
            f"The model does not take images of {spec.shape[2]} x {spec.shape[3]} pixels, which {CONFIG} makes: "
            f"{type(error).__name__}: {str(error)[:200]}"
        ) from None
