"""Tensors: bytes and JSON of every datatype, and sizes that lie."""

import json

import msgspec
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_predict import json_data, tensors
from slipway_predict.tensors import (
    BINARY_ONLY,
    BYTES,
    INTEGERS,
    NUMPY,
    Tensor,
    TensorError,
    TensorSpec,
    finite,
    from_bytes,
    to_bytes,
)


def example(datatype: str) -> Tensor:
    if datatype == BYTES:
        items = numpy.empty(4, object)
        items[:] = [b"", b"\x00\xff", "ä".encode(), b"x" * 300]
        return Tensor("t", BYTES, items.reshape(2, 2))
    return Tensor("t", datatype, numpy.array([[0, 1], [1, 0]]).astype(NUMPY[datatype]))


@pytest.mark.parametrize("datatype", NUMPY)
def test_bytes_of_every_datatype_come_back(datatype: str) -> None:
    tensor = example(datatype)
    again = from_bytes("t", datatype, tensor.shape, to_bytes(tensor))
    assert again.array.tolist() == tensor.array.tolist() and again.shape == (2, 2)


def test_the_size_of_a_tensor_has_the_contents_of_bytes() -> None:
    assert example("FP32").size_bytes == 16
    assert example(BYTES).size_bytes == 4 * 8 + 2 + 2 + 300


@pytest.mark.parametrize("datatype", sorted(set(NUMPY) - BINARY_ONLY - {BYTES}))
@pytest.mark.parametrize("text", ["[0, 1, 1, 0]", "[[0, 1], [1, 0]]"])
def test_json_of_every_datatype_flat_and_nested(datatype: str, text: str) -> None:
    text = text.replace("0", "false").replace("1", "true") if datatype == "BOOL" else text
    tensor = json_data.read("x", datatype, (2, 2), text.encode())
    assert tensor.array.tolist() == example(datatype).array.tolist()
    assert json_data.write(tensor) == [0, 1, 1, 0]


@pytest.mark.parametrize("datatype", sorted(INTEGERS))
def test_whole_numbers_are_exact_to_their_bounds(datatype: str) -> None:
    bounds = numpy.iinfo(NUMPY[datatype])
    text = f"[{bounds.min}, {bounds.max}]"
    tensor = json_data.read("x", datatype, (2,), text.encode())
    assert json_data.write(tensor) == [bounds.min, bounds.max]
    for outside in (bounds.min - 1, bounds.max + 1):
        with pytest.raises(TensorError, match="'x'"):
            json_data.read("x", datatype, (1,), f"[{outside}]".encode())


def test_null_is_nan_of_numbers_and_comes_back_as_null() -> None:
    tensor = json_data.read("x", "FP32", (2,), b"[null, 1.5]")
    assert numpy.isnan(tensor.array[0]) and not finite(tensor)
    assert json.loads(msgspec.json.encode(json_data.write(tensor))) == [None, 1.5]
    with pytest.raises(TensorError):
        json_data.read("x", "INT32", (1,), b"[null]")


@pytest.mark.parametrize("shape, text", [((0,), "[]"), ((0, 4), "[]"), ((2, 0), "[[], []]"), ((), "[7]")])
def test_empty_tensors_and_scalars(shape: tuple[int, ...], text: str) -> None:
    assert json_data.read("x", "FP32", shape, text.encode()).shape == shape


@pytest.mark.parametrize(
    "datatype, shape, text, why",
    [
        ("FP32", (2,), "[1]", "1 elements"),
        ("FP32", (2, 2), "[[1, 2], [3]]", "different lengths"),
        ("FP32", (2, 2), "[[1, 2, 3, 4]]", "nested as"),
        ("FP32", (4,), "[[[1]]]", "nested 3 deep"),
        ("FP32", (1,), "[1e39]", "out of the range"),
        ("FP32", (2,), "[1e39, -1e39]", "out of the range"),
        ("FP32", (1,), '["a"]', "Expected"),
        ("INT8", (1,), "[1.5]", "Expected"),
        ("INT32", (1,), "[true]", "Expected"),
        ("BOOL", (1,), "[1]", "Expected"),
        ("BYTES", (1,), "[1]", "Expected"),
        ("FP16", (1,), "[1]", "binary data"),
        ("FP32", (1 << 20, 1 << 20), "[1]", "is the limit"),
        ("FP32", (0, 1 << 30, 1 << 30, 1 << 30), "[]", "is the limit"),
        ("FP32", (1,) * 17, "[1]", "dimensions"),
    ],
)
def test_json_that_is_no_such_tensor_is_named(datatype: str, shape: tuple[int, ...], text: str, why: str) -> None:
    with pytest.raises(TensorError, match=why):
        json_data.read("x", datatype, shape, text.encode())


def test_large_numbers_whose_sum_is_not_finite_are_in_range() -> None:
    assert json_data.read("x", "FP32", (2,), b"[3e38, 3e38]").array.max() < numpy.inf
    assert json_data.read("x", "FP64", (3,), b"[1e308, 1e308, null]").array[0] == 1e308


def test_a_shape_of_a_stranger_is_not_kept() -> None:
    kept = tensors._elements.cache_info().currsize
    with pytest.raises(TensorError, match="dimensions"):
        tensors.elements_of((1,) * 100_000, "x")
    assert tensors._elements.cache_info().currsize == kept


@pytest.mark.parametrize(
    "datatype, shape, data",
    [
        ("FP32", (2,), b"\0" * 7),
        ("FP32", (1 << 40,), b""),
        ("BYTES", (2,), b"\1\0\0\0a"),
        ("BYTES", (1,), b"\xff\xff\xff\xffa"),
        ("BYTES", (1,), b"\1\0\0\0ab"),
        ("BYTES", (1 << 20,), b"\0\0\0\0"),
        ("BOOL", (1,), b"\2"),
        ("FP12", (1,), b"\0"),
    ],
)
def test_bytes_that_contradict_their_shape_are_refused(datatype: str, shape: tuple[int, ...], data: bytes) -> None:
    with pytest.raises(TensorError):
        from_bytes("t", datatype, shape, data)


@given(st.sampled_from(sorted(NUMPY)), st.lists(st.integers(0, 3), max_size=3), st.binary(max_size=64))
def test_no_bytes_are_anything_but_a_tensor_or_a_sentence(datatype: str, shape: list[int], data: bytes) -> None:
    try:
        tensor = from_bytes("t", datatype, shape, data)
    except TensorError:
        return
    assert to_bytes(tensor) == data


def test_a_spec_names_the_input_with_its_datatype_and_shape() -> None:
    spec = TensorSpec("age", "FP32", (-1, 3))
    spec.check(Tensor("age", "FP32", numpy.zeros((5, 3), "<f4")))
    with pytest.raises(TensorError, match="'age' is FP64; the model takes FP32"):
        spec.check(Tensor("age", "FP64", numpy.zeros((5, 3))))
    with pytest.raises(TensorError, match="'name' has bytes that are no UTF-8"):
        TensorSpec("name", "BYTES", (-1,)).check(Tensor("name", "BYTES", numpy.array([b"a", b"\xff"], object)))
    with pytest.raises(TensorError, match=r"'age' has the shape \[5, 4\]"):
        spec.check(Tensor("age", "FP32", numpy.zeros((5, 4), "<f4")))
