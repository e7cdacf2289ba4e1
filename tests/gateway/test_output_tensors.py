"""Predictions in protobuf, as responses to gRPC have them: each datatype, raw and typed, and bytes that are none.

The messages are those of the server's protobuf library, so the gateway's reader is compared with it.
"""

import math
import random
import struct
import time
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy
import pytest

from slipway_contracts import protobuf
from slipway_gateway.wire.inference import PROTOBUF
from slipway_gateway.wire.output_tensors import MAX_NUMBERS
from slipway_gateway.wire.predictions import (
    MAX_BYTES,
    MAX_ROWS,
    Predictions,
    first_prediction,
    only_label,
    read_predictions,
)
from slipway_predict.http.bodies.infer_message import CONTENTS
from slipway_predict.http.message_types import ModelInferResponse
from slipway_predict.tensors import NUMPY, Tensor, to_bytes

PATH = "/v2/models/m/infer"
HEADERS = {"Content-Type": PROTOBUF}
NUMBERS: dict[str, list[Any]] = {
    "BOOL": [True, False], "INT8": [-128, 127], "INT16": [-32768, 32767], "INT32": [-(2**31), 2**31 - 1],
    "INT64": [-(2**63), 2**63 - 1], "UINT8": [0, 255], "UINT16": [0, 65535], "UINT32": [0, 2**32 - 1],
    "UINT64": [0, 2**64 - 1], "FP16": [-0.5, 65504.0], "FP32": [-1.5, 2.0**100], "FP64": [-0.1, 1e300],
    "BF16": [-1.5, 2.0**100], "BYTES": ["dog", "Kätzchen"],
}  # fmt: skip
OF_FLOATS = {"FP16", "FP32", "FP64", "BF16"}


def read(body: bytes, most: int = MAX_ROWS) -> Predictions | None:
    return read_predictions(PATH, HEADERS, body, most)


def values(body: bytes) -> tuple[Any, ...] | None:
    found = read(body)
    return tuple(row.value if row else None for row in found.rows) if found else None


def raw(datatype: str, shape: Sequence[int], elements: Sequence[Any]) -> bytes:
    """A response whose only output is in raw_output_contents, as our server writes it."""
    if datatype == "BYTES":
        data = b"".join(struct.pack("<I", len(one.encode())) + one.encode() for one in elements)
    elif datatype == "BF16":
        data = b"".join(struct.pack("<f", one)[2:] for one in elements)
    else:
        data = to_bytes(Tensor("o", datatype, numpy.array(elements, NUMPY[datatype])))
    message = ModelInferResponse(model_name="m", id="one")
    message.outputs.add(name="o", datatype=datatype, shape=shape)
    message.raw_output_contents.append(data)
    return bytes(message.SerializeToString())


def typed(datatype: str, shape: Sequence[int], elements: Sequence[Any]) -> bytes:
    message = ModelInferResponse(model_name="m")
    output = message.outputs.add(name="o", datatype=datatype, shape=shape)
    found = [one.encode() if isinstance(one, str) else one for one in elements]
    getattr(output.contents, CONTENTS[datatype]).extend(found)
    return bytes(message.SerializeToString())


@pytest.mark.parametrize(
    ("datatype", "made"), [*((name, raw) for name in NUMBERS), *((name, typed) for name in NUMBERS if name in CONTENTS)]
)
def test_each_datatype_is_read_in_both_places(datatype: str, made: Any) -> None:
    body = made(datatype, [2], NUMBERS[datatype])
    assert values(body) == tuple(NUMBERS[datatype])
    assert [type(one) for one in values(body) or ()] == [type(one) for one in NUMBERS[datatype]]
    assert first_prediction(PATH, HEADERS, body) == NUMBERS[datatype][0]
    one = made(datatype, [1, 1], NUMBERS[datatype][:1])
    label = only_label(PATH, HEADERS, one)
    assert (label is None) == (datatype in OF_FLOATS) and only_label(PATH, HEADERS, body) is None


@pytest.mark.parametrize("made", [raw, typed])
def test_of_several_numbers_in_a_row_it_is_the_place_of_the_largest(made: Any) -> None:
    assert values(made("FP32", [2, 3], [1, 5, 2, 9, 9, 0])) == (1, 0)
    assert values(made("INT64", [2, 3], [1, 5, 2, 9, 9, 0])) == (1, 0)
    assert math.isnan((values(made("FP64", [1, 2], [math.nan, 1.0])) or ())[0])


@pytest.mark.parametrize("place", ["raw", "typed"])
def test_of_several_outputs_the_labels_are_read(place: str) -> None:
    message = ModelInferResponse()
    scores = message.outputs.add(name="scores", datatype="FP32", shape=[2, 2])
    labels = message.outputs.add(name="label", datatype="BYTES", shape=[2])
    if place == "raw":
        message.raw_output_contents.extend([struct.pack("<4f", 1, 2, 3, 4), b"\3\0\0\0dog\3\0\0\0cat"])
    else:
        scores.contents.fp32_contents.extend([1, 2, 3, 4])
        labels.contents.bytes_contents.extend([b"dog", b"cat"])
    assert values(message.SerializeToString()) == ("dog", "cat")


def test_numbers_that_are_not_packed_and_contents_in_parts_are_read() -> None:
    described = protobuf.text_field(2, "INT32") + protobuf.number_field(3, 3)
    one, other = (
        protobuf.bytes_field(5, b"".join(protobuf.number_field(2, number) for number in numbers))
        for numbers in ((7, -8), (9,))
    )
    assert values(protobuf.bytes_field(5, described + one + other)) == (7, -8, 9)
    doubles = b"".join(protobuf.varint(7 << 3 | protobuf.FIXED64) + struct.pack("<d", one) for one in (0.5, 1.5))
    described = protobuf.text_field(2, "FP64") + protobuf.packed_field(3, [2])
    assert values(protobuf.bytes_field(5, described + protobuf.bytes_field(5, doubles))) == (0.5, 1.5)


def message(*outputs: bytes, tensors: Sequence[bytes] = ()) -> bytes:
    return b"".join(
        [*(protobuf.bytes_field(5, one) for one in outputs), *(protobuf.bytes_field(6, one) for one in tensors)]
    )


FLOATS = protobuf.text_field(2, "FP32") + protobuf.packed_field(3, [2])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff" * 20,
        message(FLOATS),  # no contents
        message(FLOATS, tensors=[b"\0" * 8, b"\0" * 8]),  # a tensor more than outputs
        message(FLOATS, FLOATS, tensors=[b"\0" * 8]),
        message(FLOATS, tensors=[b"\0" * 7]),
        message(protobuf.text_field(2, "FP99"), tensors=[b"\0" * 8]),
        message(protobuf.text_field(2, "BYTES"), tensors=[b"\xff\xff\xff\xff"]),
        message(FLOATS + protobuf.bytes_field(5, protobuf.packed_field(3, [1, 2]))),  # numbers of another datatype
        message(FLOATS + protobuf.bytes_field(5, protobuf.number_field(6, 1))),
        message(protobuf.text_field(2, "INT32") + protobuf.bytes_field(5, protobuf.bytes_field(2, b"\xff"))),
        message(protobuf.text_field(2, "INT32") + protobuf.bytes_field(5, protobuf.bytes_field(2, b"\xff" * 11))),
        message(protobuf.text_field(2, "BYTES") + protobuf.bytes_field(5, protobuf.number_field(8, 1))),
        message(protobuf.text_field(2, "FP16") + protobuf.bytes_field(5, protobuf.bytes_field(6, b"\0" * 4))),
        message(*[b""] * (protobuf.MAX_FIELDS + 1)),
        protobuf.bytes_field(5, b"\x0b"),  # an output with a group
        raw("FP32", [20000], [0.5] * 20000),  # longer than is read
    ],
)  # fmt: skip
def test_bytes_that_have_no_prediction_give_none(body: bytes) -> None:
    assert read(body) is None


@pytest.mark.parametrize("made", [raw, typed])
@pytest.mark.parametrize("datatype", ["FP32", "INT64", "BYTES", "UINT8"])
def test_no_part_of_a_message_and_no_changed_byte_raises(datatype: str, made: Any) -> None:
    body, chance = made(datatype, [2], NUMBERS[datatype]), random.Random(3)
    for end in range(len(body)):
        read(body[:end])
    assert read(body[: len(body) - 1]) is None, "the last byte is one of its tensor"
    for _ in range(2000):
        changed = bytearray(body)
        for _ in range(chance.randint(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        read(bytes(changed))
        read(chance.randbytes(chance.randint(0, 200)))


@pytest.mark.parametrize("shape", [[2, -1], [2, 0], [0], [], [2**62, 2**62], [2, 2**40], [1] * 5000])
def test_shapes_that_fit_nothing_count_the_elements_as_rows(shape: list[int]) -> None:
    assert values(raw("FP32", shape, [0.5, 1.5])) == (0.5, 1.5)


def test_rows_behind_the_first_ones_are_counted_and_not_read() -> None:
    for made in (raw, typed):
        found = read(made("INT64", [7000], [3] * 7000))
        assert found and (len(found.rows), found.count) == (MAX_ROWS, 7000)
        found = read(made("INT32", [500, 10], list(range(10)) * 500))
        assert found and (len(found.rows), found.count) == (MAX_ROWS, 500) and found.rows[0] == found.rows[255]
    # So many typed integers are not read: rows that are not whole are none.
    wide = read(typed("INT32", [7, 3000], [1] * 21000))
    assert wide and (len(wide.rows), wide.count) == (MAX_NUMBERS // 3000, 7)
    assert read(typed("INT32", [2, 5000], [1] * 10000)) is None


@pytest.mark.parametrize(
    "body",
    [
        typed("INT64", [6000], [2**62] * 6000),
        typed("BOOL", [60000], [True] * 60000),
        typed("BYTES", [4000], ["a" * 10] * 4000),
        raw("BYTES", [12000], ["a"] * 12000),
        raw("UINT8", [65000], [1] * 65000),
        message(*[FLOATS] * 3000),
        message(protobuf.bytes_field(5, protobuf.text_field(8, "a") * 4000) * 4),
        message(*[protobuf.bytes_field(3, b"\xff" * 9 + b"\1") * 4] * 1000),
    ],
)  # fmt: skip
def test_a_long_message_is_read_in_bounded_time_and_memory(body: bytes) -> None:
    assert len(body) <= MAX_BYTES
    read(body)
    best_s = math.inf
    for _ in range(5):
        began_s = time.process_time()
        read(body)
        best_s = min(best_s, time.process_time() - began_s)
    assert best_s < 0.1, f"{best_s * 1000:.0f} ms"
    tracemalloc.start()
    try:
        read(body)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_without_the_content_type_protobuf_is_no_response_to_read() -> None:
    body = raw("INT64", [1], [2])
    assert read_predictions(PATH, {}, body) is None
    assert read_predictions(PATH, {"Content-Type": f"{PROTOBUF}; charset=x"}, body)
    assert read_predictions("/v1/chat/completions", HEADERS, body) is None
