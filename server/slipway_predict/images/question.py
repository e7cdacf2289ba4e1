"""The inputs that the process that decodes images gets for one image, and the name of its output."""

import numpy

from ..tensors import BYTES, Tensor

IMAGE, MAX_PIXELS, PIXELS = "image", "max_pixels", "pixels"


def question(image: bytes, max_pixels: int) -> list[Tensor]:
    """The inputs for one image."""
    content = numpy.empty(1, object)
    content[0] = image
    return [Tensor(IMAGE, BYTES, content), Tensor(MAX_PIXELS, "INT64", numpy.array([max_pixels], "<i8"))]
