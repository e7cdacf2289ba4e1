"""The numbers of an RGB image that a model gets, bit for bit those of transformers' processors on Pillow."""

import math
from typing import Any

import numpy
from PIL import Image

from ..tensors import Array
from .decoding import ImageError
from .preprocessing import Preprocessing


def pixels(image: Image.Image, steps: Preprocessing, max_pixels: int) -> Array:
    """A float32 array of channels, height, width. Raises ImageError for sides whose ratio makes a resize too large."""
    found: Any = numpy.asarray(_resized(image, steps, max_pixels)).transpose(2, 0, 1)
    if steps.crop:
        found = _cropped(found, *steps.crop)
    if steps.scale is not None:
        found = (found.astype(numpy.float64) * steps.scale).astype(numpy.float32) + numpy.float32(steps.offset)
    found = found.astype(numpy.float32)
    if steps.mean:
        found = _normalized(found, steps.mean, steps.deviation)
    if steps.deviation_twice:
        found = _normalized(found, (0.0, 0.0, 0.0), steps.deviation)
    return numpy.ascontiguousarray(found[::-1] if steps.bgr else found)


def _resized(image: Image.Image, steps: Preprocessing, max_pixels: int) -> Image.Image:
    if steps.resize:
        height, width = steps.resize
    elif steps.shortest_edge:
        short, long = sorted(image.size)
        new_long = int(steps.shortest_edge * long / short)
        height, width = (
            (new_long, steps.shortest_edge) if image.width <= image.height else (steps.shortest_edge, new_long)
        )
        if height * width > max(max_pixels, steps.height * steps.width):
            raise ImageError(
                f"is {image.width} x {image.height} pixels and would be {width} x {height} for the model; "
                f"{max_pixels} are the limit"
            )
    else:
        return image
    return image.resize((width, height), Image.Resampling(steps.resample))


def _cropped(found: Array, height: int, width: int) -> Array:
    """The centre of an image; pixels that a smaller image lacks are 0, before numbers are scaled."""
    rows, columns = found.shape[1:]
    if rows < height or columns < width:
        wide = numpy.zeros((found.shape[0], max(rows, height), max(columns, width)), found.dtype)
        top, left = (math.ceil((wide.shape[axis] - found.shape[axis]) / 2) for axis in (1, 2))
        # As transformers: with an odd rest the image is one pixel lower, and the window with it.
        wide[:, top : top + rows, left : left + columns] = found
        top, left = (rows - height) // 2 + top, (columns - width) // 2 + left
        return wide[:, max(0, top) : top + height, max(0, left) : left + width]
    top, left = (rows - height) // 2, (columns - width) // 2
    return found[:, top : top + height, left : left + width]


def _normalized(found: Array, mean: tuple[float, ...], deviation: tuple[float, ...] | None) -> Array:
    assert deviation, "a mean has a deviation"
    less, by = (numpy.array(values, numpy.float32).reshape(-1, 1, 1) for values in (mean, deviation))
    return (found - less) / by
