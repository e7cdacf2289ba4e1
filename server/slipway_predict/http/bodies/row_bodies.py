"""Bodies with rows as people write them, KServe's V1 among them, and the JSON of their predictions (pure)."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from slipway_process.serving.bodies import ModelName, decoded
from slipway_process.serving.bodies import checked as as_type
from slipway_process.serving.errors import invalid
from slipway_process.serving.priority import priority_of

from ...description import ModelDescription
from ...executor import InferRequest
from ...tensors import Tensor
from ..identity import ModelIdentity
from . import rows
from .infer_answer import WrittenAnswer
from .limits import MAX_ROWS, Limits

MAX_TOP_K = 1000
MAX_LIKELY = 1 << 18  # labels with their confidence in all rows of an answer
SIMPLE, NAMED, V1 = "simple", "named", "v1"

Rows = Annotated[list[Any], Meta(max_length=MAX_ROWS)]
Input = dict[str, Any] | str
TopK = Annotated[int, Meta(ge=1, le=MAX_TOP_K)]  # labels of each row, the most likely one first
_encoder = msgspec.json.Encoder()


class PredictRequest(Struct, forbid_unknown_fields=True):
    """The body of /api/v1/predict: one row in `input`, or several in `inputs`."""

    model: ModelName
    input: Input | None = None
    inputs: Rows | None = None
    top_k: TopK | None = None


class PredictParams(Struct, forbid_unknown_fields=True):
    """`version`: a served version, or its revision."""

    version: str | None = None
    top_k: TopK | None = None


class NamedPredictRequest(Struct, forbid_unknown_fields=True):
    """The body of /api/v1/models/{name}/predict."""

    inputs: Rows
    params: PredictParams | None = None


class V1Request(Struct, forbid_unknown_fields=True):
    """The body of KServe's V1 `:predict`."""

    instances: Rows
    parameters: dict[str, Any] | None = None


class RowsAnswer(Struct, frozen=True, tag=True):
    """How the predictions of rows are shown. `param`: the field with the rows, `count`: their number."""

    kind: str
    param: str
    count: int
    top_k: int = 0

    def check(self, outputs: Sequence[Tensor], limits: Limits) -> None:
        """Raises TooLarge for an answer above the limits."""
        limits.check_rows(self.count)
        limits.check_values(self.count * self.top_k + sum(one.array.size for one in outputs))

    def written(
        self,
        identity: ModelIdentity,
        description: ModelDescription,
        outputs: Sequence[Tensor],
        shared: Mapping[str, Any],
    ) -> WrittenAnswer:
        """`shared`: fields beside the predictions, or in each one. Raises HttpError for what JSON cannot hold."""
        found = rows.predictions(description, outputs, self.count, self.top_k)
        values = [one.value for one in found]
        if self.kind == V1:
            return WrittenAnswer(_encoder.encode({"predictions": values}))
        fields = {"model_version": identity.version, **shared}
        if self.kind == NAMED:
            shown = {"predictions": values, **fields}
            return WrittenAnswer(_encoder.encode(shown | ({"top_k": [one.top for one in found]} if self.top_k else {})))
        each = [_shown(one) | fields for one in found]
        return WrittenAnswer(_encoder.encode(each[0] if self.param == "input" else each))


def read(
    kind: str, body: bytes, headers: Mapping[str, str], description: ModelDescription, limits: Limits
) -> tuple[InferRequest, RowsAnswer]:
    """The request in a body.

    Raises:
        HttpError: with the field that is wrong.
        TooLarge: it is above the limits.
    """
    limits.check_json(body)
    param, given, top_k = _READERS[kind](decoded(body))
    limits.check_rows(len(given), param)
    if top_k:
        _check_top_k(description, len(given), top_k)
    request = rows.to_request(description, given, param)
    request = InferRequest(request.inputs, request.outputs, priority=priority_of(headers))
    return request, RowsAnswer(kind, param, len(given), top_k)


def _check_top_k(description: ModelDescription, count: int, top_k: int) -> None:
    if not (description.labels and description.probabilities):
        raise invalid("top_k is for classifiers that return a probability of each label.", "top_k")
    if (total := count * min(top_k, len(description.labels))) > MAX_LIKELY:
        raise invalid(f"top_k makes {total} labels of {count} rows; {MAX_LIKELY} is the limit.", "top_k")


def _simple(fields: dict[str, Any]) -> tuple[str, list[Any], int]:
    body = as_type(fields, PredictRequest)
    if (body.input is None) == (body.inputs is None):
        raise invalid("Write input for one row, or inputs for several.", "input")
    if body.inputs is None:
        return "input", [body.input], body.top_k or 0
    return "inputs", body.inputs, body.top_k or 0


def _named(fields: dict[str, Any]) -> tuple[str, list[Any], int]:
    body = as_type(fields, NamedPredictRequest)
    return "inputs", body.inputs, (body.params and body.params.top_k) or 0


def _v1(fields: dict[str, Any]) -> tuple[str, list[Any], int]:
    body = as_type(fields, V1Request)
    if body.parameters:
        raise invalid("parameters are not supported by this model.", "parameters")
    return "instances", body.instances, 0


_READERS = {SIMPLE: _simple, NAMED: _named, V1: _v1}


def _shown(prediction: rows.Prediction) -> dict[str, Any]:
    found: dict[str, Any] = {"prediction": prediction.value}
    if prediction.confidence is not None:
        found["confidence"] = prediction.confidence
    if prediction.top:
        found["top_k"] = prediction.top
    return found
