"""What a model takes and returns, and what its outputs mean, as its format describes it."""

from typing import Any

import msgspec

from .tensors import TensorSpec

CLASSIFICATION, REGRESSION, TENSORS = "classification", "regression", "tensors"
# What scores are. PROBABILITIES, LOGITS: exactly one label is right. INDEPENDENT: each label is right or not.
PROBABILITIES, LOGITS, INDEPENDENT = "probabilities", "logits", "independent logits"


class ImageInput(msgspec.Struct, frozen=True):
    """The input that takes images too. `config`: the file that says how they become tensors."""

    name: str
    datatype: str
    height: int
    width: int
    channels_last: bool
    config: str


class TextInput(msgspec.Struct, frozen=True):
    """The model's own tokenizer reads rows of texts. `max_tokens`: of a row; longer texts are cut.

    `pairs`: a row has two texts, and one score.
    """

    max_tokens: int
    pairs: bool


class ModelDescription(msgspec.Struct, frozen=True):
    """`batched`: the first dimension of all inputs and outputs is that of rows, so that requests can share a batch.

    `labels`: of classes, in the order of the columns of `probabilities`. `label_output` and `probabilities` name
    outputs; one may be missing. `scores`: what the numbers of `probabilities` are.
    """

    platform: str
    runtime: str
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    batched: bool = True
    task: str = TENSORS
    labels: list[str | int | float | bool] = []
    label_output: str = ""
    probabilities: str = ""
    scores: str = PROBABILITIES
    image: ImageInput | None = None
    text: TextInput | None = None

    def output(self, name: str) -> TensorSpec | None:
        return next((spec for spec in self.outputs if spec.name == name), None)

    def input(self, name: str) -> TensorSpec | None:
        return next((spec for spec in self.inputs if spec.name == name), None)


class Matrix:
    """Names of the one input and the outputs of the formats whose models know only columns."""

    INPUT, OUTPUT, PREDICTION, PROBABILITIES = "input", "output", "prediction", "probabilities"


def plain_labels(values: Any) -> list[str | int | float | bool]:
    """Labels of numpy's types as JSON has them."""
    return [value.item() if hasattr(value, "item") else value for value in values]
