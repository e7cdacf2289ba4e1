"""Vectors of embeddings as a response has them: cut to fewer dimensions, as numbers or as base64."""

import base64
import math
from array import array
from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from slipway_process.json_lists import json_list
from slipway_process.serving.errors import HttpError, invalid

VECTORS = 32  # that are encoded at once: thousands of numbers each


def check_dimensions(dimensions: int | None, config: dict[str, Any]) -> None:
    """Raises HttpError where the model's config.json does not allow shorter vectors, by the names that vLLM reads."""
    allowed = config.get("matryoshka_dimensions")
    if dimensions is None:
        return
    if not (allowed or config.get("is_matryoshka")):
        message = "dimensions is not supported: this model's config.json has no matryoshka_dimensions."
        raise HttpError(400, message, param="dimensions", code="unsupported_parameter")
    if isinstance(allowed, list) and allowed and dimensions not in allowed:
        raise invalid(f"dimensions must be one of {', '.join(map(str, allowed))}.", "dimensions")


def embedding_data(vectors: Sequence["array[float]"], dimensions: int | None, encoding: str) -> list[Any] | Raw:
    """The `data` of an embeddings response. Raises HttpError for more dimensions than the vectors have."""
    if dimensions is not None and dimensions > len(vectors[0]):
        raise invalid(f"dimensions must be at most {len(vectors[0])}.", "dimensions")
    cut = vectors if dimensions is None else [_shortened(vector, dimensions) for vector in vectors]
    as_text = encoding == "base64"
    entries = (
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(vector.tobytes()).decode() if as_text else vector.tolist(),
        }
        for index, vector in enumerate(cut)
    )
    return json_list(entries, VECTORS)


def _shortened(vector: "array[float]", dimensions: int) -> "array[float]":
    """The vector's first numbers, scaled to length 1 again."""
    first = vector[:dimensions]
    length = math.hypot(*first) or 1.0
    return array("f", (number / length for number in first))
