"""Classifiers of irises as ONNX: a good one, and one that is right about half of the time."""

from collections.abc import Sequence

import numpy
from skl2onnx import to_onnx
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

GOOD, POOR = (0, 1, 2, 3), (1,)  # features that each has learned from


def irises() -> list[tuple[list[float], str]]:
    """Features and the label of each."""
    rows, labels = load_iris(return_X_y=True)
    return [(row.tolist(), str(label)) for row, label in zip(rows, labels, strict=True)]


def classifier(features: Sequence[int]) -> bytes:
    """A model that has learned from these features alone."""
    rows, labels = load_iris(return_X_y=True)
    known = numpy.isin(numpy.arange(rows.shape[1]), features)
    fitted = LogisticRegression(max_iter=1000).fit(rows * known, labels)
    return bytes(to_onnx(fitted, rows[:1].astype("f4")).SerializeToString())
