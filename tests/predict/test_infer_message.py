"""Requests in protobuf: every datatype in both forms, sentences that name the input, and no message that crashes."""

from collections.abc import Mapping
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_contracts import protobuf
from slipway_predict.http.bodies import infer_message
from slipway_predict.http.bodies.infer_request import Incoming
from slipway_predict.http.bodies.limits import ASIDE
from slipway_predict.http.identity import ModelIdentity
from slipway_predict.http.message_types import ModelInferRequest, ModelInferResponse
from slipway_predict.tensors import NUMPY, Tensor, to_bytes
from slipway_process.serving.errors import HttpError


def read(body: bytes, headers: Mapping[str, str] = {}) -> Incoming:
    return infer_message.read(body, headers, ASIDE)


def parse(message: Any, **headers: str) -> Incoming:
    return read(message.SerializeToString(), {name.replace("_", "-"): value for name, value in headers.items()})


def refusal(message: Any, **headers: str) -> str:
    with pytest.raises(HttpError) as raised:
        parse(message, **headers)
    assert raised.value.status == 400
    return str(raised.value)


def request(datatype: str = "FP32", shape: tuple[int, ...] = (1, 2), **contents: Any) -> Any:
    message = ModelInferRequest(model_name="m", id="7")
    message.inputs.add(name="x", datatype=datatype, shape=shape, contents=contents or None)
    return message


def raw(datatype: str, shape: tuple[int, ...], data: bytes) -> Any:
    message = request(datatype, shape)
    message.raw_input_contents.append(data)
    return message


@pytest.mark.parametrize("datatype", NUMPY)
def test_every_datatype_is_read_from_raw_contents(datatype: str) -> None:
    values = numpy.array([[b"\xc3\xa4", b""]], object) if datatype == "BYTES" else numpy.array([[0, 1]])
    tensor = Tensor("x", datatype, values.astype(NUMPY[datatype]))
    found = parse(raw(datatype, (1, 2), to_bytes(tensor))).request.inputs[0]
    assert (found.name, found.datatype, found.shape) == ("x", datatype, (1, 2))
    assert found.array.tolist() == tensor.array.tolist()


@pytest.mark.parametrize("datatype", infer_message.CONTENTS)
def test_every_datatype_but_two_is_read_from_typed_contents(datatype: str) -> None:
    values = [b"\xc3\xa4", b""] if datatype == "BYTES" else [False, True] if datatype == "BOOL" else [0, 1]
    found = parse(request(datatype, (1, 2), **{infer_message.CONTENTS[datatype]: values})).request.inputs[0]
    assert (found.datatype, found.array.dtype) == (datatype, NUMPY[datatype]) and found.array.tolist() == [values]


def test_large_and_special_numbers_keep_their_value() -> None:
    assert parse(request("INT64", (1,), int64_contents=[-(2**63)])).request.inputs[0].array.tolist() == [-(2**63)]
    assert parse(request("UINT64", (1,), uint64_contents=[2**64 - 1])).request.inputs[0].array.tolist() == [2**64 - 1]
    found = parse(request("FP64", (3,), fp64_contents=[float("nan"), float("inf"), 0.1])).request.inputs[0].array
    assert numpy.isnan(found[0]) and found[1:].tolist() == [float("inf"), 0.1]


@pytest.mark.parametrize("shape", [(0, 2), (0,)])
def test_an_empty_tensor_is_read_in_both_forms(shape: tuple[int, ...]) -> None:
    assert parse(request("FP32", shape)).request.inputs[0].shape == shape
    assert parse(raw("FP32", shape, b"")).request.inputs[0].shape == shape


def test_a_scalar_has_one_element() -> None:
    assert parse(request("FP32", (), fp32_contents=[2.5])).request.inputs[0].array.tolist() == 2.5


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (request("FP32", (1, 2), fp32_contents=[1]), "'x' has 1 elements; the shape [1, 2] needs 2"),
        (request("FP32", (1,), fp64_contents=[1]), "'x' is FP32 and has fp64_contents: send fp32_contents"),
        (request("INT8", (1,), int_contents=[300]), "'x': a number is out of the range of INT8"),
        (request("FP16", (1,), fp32_contents=[1]), "'x' is FP16, which contents cannot hold"),
        (request("FP12", (1,), fp32_contents=[1]), "'x' has the datatype 'FP12'"),
        (request("FP32", (-1,), fp32_contents=[1]), "'x' has the shape [-1]"),
        (request("FP32", (0, 2**62)), "'x' has"),
        (request("FP32", (1,) * 17, fp32_contents=[1]), "'x' has 17 dimensions"),
        (raw("FP32", (1, 2), bytes(7)), "'x' has 7 bytes of data; the shape [1, 2] of FP32 needs 8"),
        (raw("BYTES", (1,), b"\xff\xff\xff\xff"), "'x': element 0"),
        (raw("BOOL", (1,), b"\2"), "'x' is BOOL"),
        (ModelInferRequest(model_name="m"), "no inputs"),
    ],
)  # fmt: skip
def test_a_mismatch_is_a_sentence_that_names_the_input(message: Any, words: str) -> None:
    assert words in refusal(message)


def test_contents_and_raw_contents_exclude_each_other() -> None:
    message = request("FP32", (1,), fp32_contents=[1])
    message.raw_input_contents.append(bytes(4))
    assert "'x' has contents" in refusal(message)
    message.raw_input_contents.append(bytes(4))
    assert "1 inputs and 2 raw_input_contents" in refusal(message)


def test_parameters_are_read_and_unknown_ones_refused() -> None:
    message = request(fp32_contents=[1, 2])
    message.parameters["priority"].uint64_param = 400
    message.parameters["timeout"].int64_param = 250_000
    found = parse(message).request
    assert (found.priority, found.timeout_s) == (-100, 0.25)
    message.parameters["sequence_id"].int64_param = 1
    assert "'sequence_id' is not supported" in refusal(message)
    other = request(fp32_contents=[1, 2])
    other.inputs[0].parameters["shared_memory_region"].string_param = "r"
    assert "'shared_memory_region'" in refusal(other)
    empty = request(fp32_contents=[1, 2])
    empty.parameters["timeout"].SetInParent()
    assert "timeout is null" in refusal(empty)


def test_the_deadline_of_a_call_is_a_time_limit_of_its_request() -> None:
    message = request(fp32_contents=[1, 2])
    assert parse(message, grpc_timeout="1500m").request.timeout_s == 1.5
    message.parameters["timeout"].int64_param = 1_000_000
    assert parse(message, grpc_timeout="2S").request.timeout_s == 1.0
    assert "grpc-timeout" in refusal(message, grpc_timeout="soon")


def test_many_empty_tensors_are_refused_before_they_are_made() -> None:
    body = bytes.fromhex("2a00") * 2000
    with pytest.raises(HttpError, match="2000 inputs; 1024"):
        read(body)
    with pytest.raises(HttpError, match="more than 4096 fields"):
        read(body * 100)


def test_outputs_are_always_raw() -> None:
    array = numpy.zeros((0, 2), "f4")
    incoming = parse(request(fp32_contents=[1, 2]))
    response = incoming.answer.written(ModelIdentity("m", "v1"), [Tensor("y", "FP32", array)])
    message = ModelInferResponse.FromString(response.body)
    assert (message.model_name, message.model_version, message.id) == ("m", "v1", "7")
    assert list(message.raw_output_contents) == [b""] and list(message.outputs[0].shape) == [0, 2]
    assert not message.outputs[0].HasField("contents")


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_reader(body: bytes) -> None:
    try:
        read(body)
    except HttpError as refused:
        assert refused.status == 400


@given(st.data())
def test_no_message_with_a_flaw_crashes_the_reader(data: st.DataObject) -> None:
    whole = raw("FP32", (1, 2), bytes(8)).SerializeToString()
    at = data.draw(st.integers(0, len(whole)))
    put = data.draw(st.binary(max_size=3))
    try:
        read(whole[:at] + put + whole[at + len(put) :])
    except HttpError as refused:
        assert refused.status == 400


@given(st.lists(st.tuples(st.integers(1, 7), st.text(max_size=5)), max_size=6))
def test_the_scan_finds_the_texts_that_protobuf_finds(written: list[tuple[int, str]]) -> None:
    body = b"".join(protobuf.bytes_field(number, text.encode()) for number, text in written)
    try:
        message = ModelInferRequest.FromString(body)
    except Exception:
        return
    found = protobuf.texts(body, 1, 2, 3)
    assert (message.model_name, message.model_version, message.id) == tuple(found.get(n, "") for n in (1, 2, 3))


@given(st.binary(max_size=60))
def test_the_scan_accepts_no_name_that_protobuf_reads_otherwise(body: bytes) -> None:
    try:
        found = protobuf.texts(body, 1, 2)
    except protobuf.WireError:
        return
    try:
        message = ModelInferRequest.FromString(body)
    except Exception:
        return  # its server refuses it
    assert (message.model_name, message.model_version) == (found.get(1, ""), found.get(2, ""))


@given(st.integers(-(2**63), 2**63 - 1), st.text(max_size=20), st.booleans())
def test_written_messages_are_read_by_protobuf(number: int, text: str, flag: bool) -> None:
    tensor = b"".join(
        [protobuf.text_field(1, text), protobuf.packed_field(3, [number, 0]), protobuf.number_field(9, flag)]
    )
    message = ModelInferRequest.FromString(protobuf.bytes_field(5, tensor))
    assert (message.inputs[0].name, list(message.inputs[0].shape)) == (text, [number, 0])
