"""Decodes images and makes the tensors of a model of them, one at a time, in a process of its own.

A decompression bomb or a crash in that process ends one request.
"""

from pathlib import Path

from ..description import ModelDescription
from ..images import preprocessing
from ..images.decoding import ImageError, decode, versions
from ..images.pixels import pixels
from ..images.question import IMAGE, MAX_PIXELS, PIXELS
from ..tensors import BYTES, Tensor, TensorError, TensorSpec
from . import ModelError


class ImageDecoder:
    """`run` takes the bytes of an image and a limit of its pixels, and returns an array of channels, height, width."""

    def __init__(self, steps: preprocessing.Preprocessing) -> None:
        self._steps = steps
        inputs = [TensorSpec(IMAGE, BYTES, (1,)), TensorSpec(MAX_PIXELS, "INT64", (1,))]
        outputs = [TensorSpec(PIXELS, "FP32", (preprocessing.CHANNELS, steps.height, steps.width))]
        self.description = ModelDescription("pillow", versions(), inputs, outputs, batched=False)

    def run(self, inputs: list[Tensor], outputs: list[str]) -> list[Tensor]:
        image, limit = inputs[0].array[0], int(inputs[1].array[0])
        try:
            found = pixels(decode(image, limit), self._steps, limit)
        except ImageError as error:
            raise TensorError(str(error)) from None
        except MemoryError:
            raise TensorError("needs more memory than an image may take") from None
        return [Tensor(PIXELS, "FP32", found)]


def load(path: Path, threads: int) -> ImageDecoder:
    steps = preprocessing.read(path.parent)
    if steps is None:
        raise ModelError(f"{path.name} is gone.")
    return ImageDecoder(steps)
