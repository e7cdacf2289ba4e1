"""What gateways read from responses of classic models: rows of each shape, and nothing from what is none."""

import json
import math
import struct
import time
import tracemalloc
from typing import Any

import pytest

from slipway_gateway.wire.predictions import (
    MAX_BYTES,
    MAX_ROWS,
    PredictedRow,
    first_prediction,
    label_text,
    only_label,
    read_predictions,
)

V2, V1, SIMPLE, NAMED = "/v2/models/m/infer", "/v1/models/m:predict", "/api/v1/predict", "/api/v1/models/m/predict"


def outputs(*found: dict[str, Any]) -> dict[str, Any]:
    return {"outputs": list(found)}


def read(path: str, body: object) -> tuple[Any, ...] | None:
    """The values of the rows."""
    found = read_predictions(path, {}, json.dumps(body).encode())
    return tuple(row.value if row else None for row in found.rows) if found else None


PROBABILITIES = {"datatype": "FP32", "shape": [2, 3], "data": [1, 5, 2, 9, 9, 0]}
SHAPES: list[tuple[str, Any, tuple[Any, ...]]] = [
    (SIMPLE, {"prediction": "cat", "confidence": 0.9}, ("cat",)),
    (SIMPLE, {"prediction": 2.5}, (2.5,)),
    (SIMPLE, [{"prediction": 2}, {"prediction": 3}], (2, 3)),
    (SIMPLE, {"prediction": True}, (True,)),
    (SIMPLE, {"prediction": {"low": 1.5, "high": 2.0}}, (1.5,)),
    (NAMED, {"predictions": [3, 4]}, (3, 4)),
    (V1, {"predictions": [[0.1, 0.7, 0.2], [0.8, 0.1, 0.1]]}, (1, 0)),
    (V1, {"predictions": [[7.5], [8.5]]}, (7.5, 8.5)),
    (V1, {"predictions": [{"label": "dog"}, {"label": "cat"}]}, ("dog", "cat")),
    (V2, outputs(PROBABILITIES), (1, 0)),
    (V2, outputs({"datatype": "FP32", "shape": [2, 1], "data": [1.5, 5]}), (1.5, 5)),
    (V2, outputs({"datatype": "FP32", "shape": [2], "data": [1.5, 5]}), (1.5, 5)),
    (V2, outputs({"datatype": "FP32", "shape": [1, 2], "data": [[0.9, 0.1]]}), (0,)),
    (V2, outputs(PROBABILITIES, {"datatype": "BYTES", "shape": [2], "data": ["dog", "cat"]}), ("dog", "cat")),
    (V2, outputs({"datatype": "FP64", "shape": [10**18, 10**18], "data": [1.5]}), (1.5,)),
    (V2, outputs({"datatype": "FP32", "shape": [2, 3], "data": [1, 5, 2, 9]}), (1, 9)),
]


RANKED = {"results": [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.2}]}
TEXTS: list[tuple[str, Any, tuple[Any, ...]]] = [
    ("/v1/rerank", RANKED, (0.2, 0.9)),
    ("/rerank", {**RANKED, "id": "a", "model": "m", "usage": {"total_tokens": 9}}, (0.2, 0.9)),
    ("/v1/rerank", {"results": [{"index": 4, "relevance_score": 1, "document": {"text": "a"}}]}, (1.0, 4)),
    ("/v1/score", {"object": "list", "data": [{"index": 0, "object": "score", "score": 0.5}]}, (0.5,)),
    ("/score", {"data": [{"index": 0, "score": -7.5}, {"index": 1, "score": 2.5, "truncated": True}]}, (-7.5, 2.5)),
    ("/classify", {"data": [{"index": 0, "label": "spam", "probs": [0.1, 0.9], "num_classes": 2}]}, ("spam",)),
]


@pytest.mark.parametrize(("path", "body", "values"), TEXTS)
def test_scores_and_labels_of_texts_are_read_in_the_order_of_the_texts(
    path: str, body: object, values: tuple[Any, ...]
) -> None:
    assert read(path, body) == values
    assert first_prediction(path, {}, json.dumps(body).encode()) == values[0]
    assert only_label(path, {}, json.dumps(body).encode()) == ("spam" if path == "/classify" else None)


@pytest.mark.parametrize(
    "body",
    [
        {"results": []}, {"results": None}, {"data": {}}, {"data": [{"score": 1}]}, {"results": [{"index": "0"}]},
        [], 7, {"prediction": 1}, {"data": [{"index": 0, "score": "high"}]},
        {"data": [{"index": 0, "embedding": [1, 2]}]},
    ],
)  # fmt: skip
def test_what_scores_no_texts_is_not_read(body: object) -> None:
    assert not (read("/v1/score", body) or (None,))[0]


def test_a_score_that_is_no_number_is_not_finite_and_keeps_its_place() -> None:
    found = read_predictions("/v1/rerank", {}, b'{"results": [{"index": 0, "relevance_score": null}]}')
    assert found and not found.finite and found.whole


def test_responses_that_rank_other_texts_differ() -> None:
    """`top_n` has the best alone: the same scores of other documents are no agreement."""
    one, other = ({"results": [{"index": place, "relevance_score": 0.5}]} for place in (0, 3))
    assert read("/v1/rerank", one) != read("/v1/rerank", other)


@pytest.mark.parametrize(("path", "body", "values"), SHAPES)
def test_rows_are_read_on_every_path(path: str, body: object, values: tuple[Any, ...]) -> None:
    assert read(path, body) == values
    assert first_prediction(path, {}, json.dumps(body).encode()) == values[0]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (SIMPLE, []), (V1, {"predictions": []}), (V1, {"predictions": {"a": 1}}), (V2, outputs()),
        (V2, outputs({"datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}})),
        (V2, outputs({"datatype": "INT64", "data": 7})), (V2, outputs({"datatype": 7, "data": [7]})),
        (V2, outputs({"datatype": "FP32", "shape": "wide", "data": [7]})), (V2, {"outputs": "none"}),
        ("/v1/chat/completions", {"prediction": 1}), (SIMPLE, {"prediction": "a" * MAX_BYTES}),
    ],
)  # fmt: skip
def test_what_is_no_prediction_is_not_read(path: str, body: object) -> None:
    assert read(path, body) is None


@pytest.mark.parametrize(
    "row", [10**30, -(10**30), ["a", 1], [[1, 2], [3, 4]], {}, [], {"a": {}}, {"a": [1, {"b": 2}]}]
)
def test_a_row_without_a_prediction_keeps_its_place(row: object) -> None:
    assert read(V1, {"predictions": [1, row, 2]}) == (1, None, 2)
    assert read(SIMPLE, {"prediction": row}) == (None,)
    assert only_label(SIMPLE, {}, json.dumps({"prediction": row}).encode()) is None


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff", b"[" * 10_000, b'{"prediction": ' + b"[" * 5000 + b"]" * 5000 + b"}", b'{"prediction": NaN}'],
)
def test_what_is_no_json_is_not_read(body: bytes) -> None:
    assert read_predictions(SIMPLE, {}, body) is None


@pytest.mark.parametrize("row", [b"null", b"[null, 0.5]", b"[0.5, null]"])
def test_null_is_a_number_that_is_not_finite(row: bytes) -> None:
    found = first_prediction(SIMPLE, {}, b'{"prediction": %s}' % row)
    assert isinstance(found, float) and math.isnan(found)


def test_rows_behind_the_bound_are_counted_and_not_read() -> None:
    found = read_predictions(V1, {}, json.dumps({"predictions": [1] * (MAX_ROWS + 9)}).encode())
    assert found and (len(found.rows), found.count) == (MAX_ROWS, MAX_ROWS + 9)
    flat = outputs({"datatype": "FP32", "shape": [1000, 2], "data": [0, 1] * 1000})
    found = read_predictions(V2, {}, json.dumps(flat).encode())
    assert found and (len(found.rows), found.count) == (MAX_ROWS, 1000)


def test_a_response_of_many_megabytes_costs_nothing() -> None:
    body = b'{"prediction": "' + b"a" * (20 << 20) + b'"}'
    tracemalloc.start()
    try:
        begun = time.process_time()
        assert read_predictions(SIMPLE, {}, body) is None
        assert time.process_time() - begun < 0.1 and tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_compressed_response_is_not_read() -> None:
    assert read_predictions(SIMPLE, {"Content-Encoding": "gzip"}, b'{"prediction": 1}') is None


# -- labels


@pytest.mark.parametrize(
    ("path", "body", "label"),
    [
        (SIMPLE, {"prediction": "cat"}, "cat"),
        (SIMPLE, {"prediction": 2, "confidence": 0.5}, "2"),
        (SIMPLE, {"prediction": True}, "true"),
        (SIMPLE, {"prediction": 2.5}, None),
        (SIMPLE, {"prediction": [0.1, 0.9]}, None),
        (SIMPLE, [{"prediction": 2}], "2"),
        (SIMPLE, [{"prediction": 2}, {"prediction": 2}], None),
        (V1, {"predictions": [2]}, "2"),
        (V1, {"predictions": [2, 2]}, None),
        (V1, {"predictions": [{"label": 2}]}, None),
        (NAMED, {"predictions": ["cat"]}, "cat"),
        (V2, outputs({"datatype": "INT64", "data": [7]}), "7"),
        (V2, outputs({"datatype": "BYTES", "data": ["cat"]}, {"datatype": "FP32", "data": [0.9]}), "cat"),
        (V2, outputs({"datatype": "FP32", "data": [7]}), None),
        (V2, outputs({"datatype": "INT64", "data": [7, 8]}), None),
        (V2, outputs({"datatype": "INT64", "data": [7]}, {"datatype": "BYTES", "data": ["cat"]}), None),
        (V2, outputs({"datatype": "INT64"}, {"datatype": "BYTES"}), None),
        ("/v1/chat/completions", {"prediction": "cat"}, None),
    ],
)
def test_the_label_of_one_row_is_read(path: str, body: object, label: str | None) -> None:
    assert only_label(path, {}, json.dumps(body).encode()) == label


def test_a_label_is_the_same_as_a_number_and_as_a_text() -> None:
    assert [label_text(one) for one in (2, "2", True, "true", 2.5)] == ["2", "2", "true", "true", "2.5"]


# -- the binary extension


def binary(*tensors: tuple[str, list[int], bytes]) -> tuple[dict[str, str], bytes]:
    """Headers and body of a response with binary outputs."""
    described = [
        {"name": "o", "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(data)}}
        for datatype, shape, data in tensors
    ]
    head = json.dumps({"outputs": described}).encode()
    return {"Inference-Header-Content-Length": str(len(head))}, head + b"".join(data for _, _, data in tensors)


FP = ("FP32", [2, 2], struct.pack("<4f", 0.2, 0.8, 0.6, 0.4))


@pytest.mark.parametrize(
    ("tensors", "rows"),
    [
        ((FP,), (1, 0)),
        ((FP, ("INT64", [2], struct.pack("<2q", 7, -1))), (7, -1)),
        ((("BYTES", [2], b"\3\0\0\0cat\0\0\0\0"),), ("cat", "")),
        ((("BOOL", [2], b"\1\0"),), (True, False)),
        ((("BF16", [1], struct.pack("<f", 1.5)[2:]),), (1.5,)),
        ((("FP16", [1], struct.pack("<e", 1.5)),), (1.5,)),
        ((("UINT8", [3, 1], b"\1\2\3"),), (1, 2, 3)),
    ],
)
def test_binary_tensors_are_read(tensors: tuple[tuple[str, list[int], bytes], ...], rows: tuple[Any, ...]) -> None:
    headers, body = binary(*tensors)
    found = read_predictions(V2, headers, body)
    assert found and tuple(row.value if row else None for row in found.rows) == rows


def test_a_number_that_is_no_number_makes_its_row_one() -> None:
    headers, body = binary(("FP32", [1, 2], struct.pack("<2f", math.nan, 1.0)))
    found = first_prediction(V2, headers, body)
    assert isinstance(found, float) and math.isnan(found)


@pytest.mark.parametrize(
    "tensor",
    [
        ("FP32", [1], b"\0\0\0"), ("BYTES", [1], b"\xff\xff\xff\xffa"), ("BYTES", [1], b"\1\0"),
        ("COMPLEX", [1], b"\0"), ("BF16", [1], b"\0"), ("FP32", [1], b""),
    ],
)  # fmt: skip
def test_a_tensor_that_its_type_contradicts_is_not_read(tensor: tuple[str, list[int], bytes]) -> None:
    headers, body = binary(tensor)
    assert read_predictions(V2, headers, body) is None


@pytest.mark.parametrize("size", [-1, 10**12, "8", 1.5, None, [8]])
def test_a_size_that_lies_is_not_believed(size: object) -> None:
    head = json.dumps(outputs({"datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": size}})).encode()
    assert read_predictions(V2, {"Inference-Header-Content-Length": str(len(head))}, head + b"\0" * 8) is None


@pytest.mark.parametrize("length", ["", "-5", "x", "9" * 400, "0", "１"])
def test_a_length_of_the_json_that_lies_is_not_believed(length: str) -> None:
    _, body = binary(FP)
    assert read_predictions(V2, {"Inference-Header-Content-Length": length}, body) is None


def test_a_row_of_the_only_output_with_labels_is_named() -> None:
    headers, body = binary(("INT64", [1], struct.pack("<q", 7)))
    found = read_predictions(V2, headers, body)
    assert found and found.rows == (PredictedRow(7, named=True),) and only_label(V2, headers, body) == "7"
