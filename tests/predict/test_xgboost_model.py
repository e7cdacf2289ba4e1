"""Predictions by XGBoost's C API are those of `Booster.inplace_predict`, bit for bit."""

from pathlib import Path
from typing import Any

import numpy
import pytest
import xgboost

from slipway_predict.description import Matrix
from slipway_predict.formats.xgboost_model import DensePrediction, load
from slipway_predict.tensors import Tensor

pytestmark = pytest.mark.integration

FEATURES = 7
KINDS: dict[str, dict[str, Any]] = {
    "regression": {"objective": "reg:squarederror"},
    "two classes": {"objective": "binary:logistic"},
    "a probability of each class": {"objective": "multi:softprob", "num_class": 3},
    "the most likely class": {"objective": "multi:softmax", "num_class": 3},
    "targets": {"objective": "reg:squarederror", "multi_strategy": "multi_output_tree"},
    "dart": {"objective": "binary:logistic", "booster": "dart", "rate_drop": 0.5},
}


def trained(kind: str) -> Any:
    random = numpy.random.default_rng(3)
    rows = random.standard_normal((200, FEATURES))
    labels = random.standard_normal((200, 2)) if kind == "targets" else random.integers(0, 2, 200)
    return xgboost.train(KINDS[kind] | {"nthread": 1}, xgboost.DMatrix(rows, labels), 5)


def some_rows(count: int) -> Any:
    rows = numpy.random.default_rng(count).standard_normal((count, FEATURES)).astype("<f4")
    if count > 3:
        rows[0, 0], rows[1, 1], rows[2, 2], rows[3] = numpy.nan, numpy.inf, -numpy.inf, numpy.nan
    return rows


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_those_of_inplace_predict(kind: str) -> None:
    booster = trained(kind)
    predict = DensePrediction(booster)
    for count in (1, 2, 65, 300):
        rows = some_rows(count)
        rows.flags.writeable = False  # as those of a request
        expected = booster.inplace_predict(rows, validate_features=False)
        found = predict(rows)
        assert (found.dtype, found.shape) == (numpy.dtype("<f4"), expected.shape), count
        assert found.tobytes() == expected.tobytes(), count


def test_a_prediction_stays_as_it_is_when_the_next_one_is_made() -> None:
    predict = DensePrediction(trained("regression"))
    first = predict(some_rows(2))
    bits = first.tobytes()
    predict(some_rows(3))
    assert first.tobytes() == bits


@pytest.mark.parametrize(("kind", "shape"), [("regression", (0,)), ("a probability of each class", (0, 3))])
def test_no_rows_have_no_predictions(kind: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    trained(kind).save_model(tmp_path / "model.ubj")
    model = load(tmp_path / "model.ubj", threads=1)
    names = [spec.name for spec in model.description.outputs]
    found = model.run([Tensor(Matrix.INPUT, "FP32", some_rows(0))], names)
    assert [one.shape for one in found] == [shape, (0,)][: len(names)]


def test_rows_may_begin_anywhere_in_a_message(tmp_path: Path) -> None:
    booster, rows = trained("regression"), some_rows(5)
    booster.save_model(tmp_path / "model.ubj")
    at_odd_address = numpy.frombuffer(b"." + rows.tobytes(), "<f4", offset=1).reshape(rows.shape)
    assert not at_odd_address.flags.aligned
    [found] = load(tmp_path / "model.ubj", threads=1).run(
        [Tensor(Matrix.INPUT, "FP32", at_odd_address)], [Matrix.OUTPUT]
    )
    assert found.array.tobytes() == booster.inplace_predict(rows).tobytes()


def test_an_error_has_the_message_of_xgboost() -> None:
    booster = trained("regression")
    rows = numpy.zeros((2, FEATURES + 1), "<f4")
    with pytest.raises(xgboost.core.XGBoostError) as theirs:
        booster.inplace_predict(rows, validate_features=False)
    with pytest.raises(xgboost.core.XGBoostError) as ours:
        DensePrediction(booster)(rows)
    assert reason(ours) == reason(theirs) != ""


def reason(raised: pytest.ExceptionInfo[xgboost.core.XGBoostError]) -> str:
    """The sentence of the check that failed; times and addresses of the message differ."""
    return next(line for line in str(raised.value).splitlines() if "Check failed" in line).partition("Check failed")[2]
