"""The largest bodies that a server of classic models takes, each made to cost as much as it can.

They are for three models: `m` has trees and takes rows of four features, `t` and `n` return the two texts and the two
numbers of a row.
"""

import json
from collections.abc import Callable

from slipway_predict.http.bodies.limits import MAX_ROWS
from slipway_predict.http.message_types import ModelInferRequest
from slipway_process.json_bounds import MAX_OBJECTS
from tests.predict.trained import FEATURES
from tests.support.largest import LargeBody, field_of, filled, items_of

LIMIT_BYTES = (8 << 20) - 300
TEXTS, NUMBERS = "/v2/models/t/infer", "/v2/models/n/infer"
INFER, V1, NAMED, SIMPLE = "/v2/models/m/infer", "/v1/models/m:predict", "/api/v1/models/m/predict", "/api/v1/predict"
ROW = "[5.1,3.5,1.4,0.2]"
NAMED_ROW = json.dumps(dict(zip(FEATURES, json.loads(ROW), strict=True)), separators=(",", ":"))
TENSOR = {"name": "input", "shape": [1, 4], "datatype": "FP32", "data": [5.1, 3.5, 1.4, 0.2]}
WHOLE = json.dumps({"inputs": [TENSOR]})[:-1]
INPUT = '{"inputs":[{"name":"input","datatype":"FP32"'
SMALL_TENSOR = '{"name":"a","datatype":"FP32","shape":[1],"data":[1]}'
FEATURE_ROW = f'{{"features":{ROW}}}'
PROTOBUF = {"Content-Type": "application/x-protobuf"}
PIECES = {"lists": "[]", "objects": '{"":0}', "numbers": "1", "fractions": "0.5", "texts": '"ab"', "rows": ROW}


def shaped(datatype: str, row: str, name: str = "input", columns: int = 4) -> Callable[[int], bytes]:
    """A tensor as large as possible whose shape is right."""

    def make(size_bytes: int) -> bytes:
        count = (size_bytes - 200) // (len(row) + 1)
        data = ",".join([row] * count)
        head = f'"name":"{name}","datatype":"{datatype}","shape":[{count},{columns}]'
        return f'{{"inputs":[{{{head},"data":[{data}]}}]}}'.encode()

    return make


def binary(
    datatype: str, item: bytes, name: str = "input", columns: int = 4, path: str = INFER
) -> tuple[LargeBody, ...]:
    """The same as bytes behind the JSON, and as raw contents of a protobuf message."""
    size = len(item) * columns

    def rows(size_bytes: int) -> int:
        return (size_bytes - 400) // size

    def make(size_bytes: int) -> bytes:
        count = rows(size_bytes)
        head = {"name": name, "datatype": datatype, "shape": [count, columns]}
        whole = {"inputs": [head | {"parameters": {"binary_data_size": count * size}}]}
        return json.dumps(whole).encode().ljust(400) + item * (count * columns)

    def message(size_bytes: int) -> bytes:
        made = ModelInferRequest(model_name="m")
        made.inputs.add(name=name, datatype=datatype, shape=[rows(size_bytes), columns])
        made.raw_input_contents.append(item * (rows(size_bytes) * columns))
        return bytes(made.SerializeToString())

    headers = {"Inference-Header-Content-Length": "400"}
    return (
        LargeBody(f"bytes of {datatype} {item!r}", path, make, headers),
        LargeBody(f"raw contents of {datatype} {item!r}", path, message, PROTOBUF),
    )


def contents(
    datatype: str, field: str, value: object, cost_bytes: int, name: str = "input", path: str = INFER
) -> LargeBody:
    """A protobuf message with typed contents."""
    columns = 4 if path == INFER else 2

    def message(size_bytes: int) -> bytes:
        count = (size_bytes - 100) // cost_bytes // columns
        made = ModelInferRequest(model_name="m")
        tensor = made.inputs.add(name=name, datatype=datatype, shape=[count, columns])
        getattr(tensor.contents, field).extend([value] * (count * columns))
        return bytes(made.SerializeToString())

    return LargeBody(f"{field} of {datatype}", path, message, PROTOBUF)


def _rows_of(field: str, piece: str, *, named: bool) -> Callable[[int], bytes]:
    """As many rows as a request may have, if all together are not too many things. `named`: it names the model."""
    start = '"model":"m",' if named else ""

    def make(size_bytes: int) -> bytes:
        things = max(1, sum(map(piece.count, "[{")) + piece.count('"') // 2)
        count = min(MAX_ROWS, (MAX_OBJECTS - 10) // things, (size_bytes - 100) // (len(piece) + 1))
        return f'{{{start}"{field}":[{",".join([piece] * count)}]}}'.encode()

    return make


def _numbered(start: str) -> Callable[[int], bytes]:
    """As many names as fit behind the start of a body."""

    def make(size_bytes: int) -> bytes:
        names = ",".join(f'"x{number:07}":1' for number in range((size_bytes - len(start) - 10) // 13))
        return f"{start}{names}{'}}' if start.endswith('{') else '}'}".encode()

    return make


def _parameters(size_bytes: int) -> bytes:
    made = ModelInferRequest(model_name="m")
    tensor = made.inputs.add(name="input", datatype="FP32", shape=[1, 4])
    for number in range(size_bytes // 20):
        tensor.parameters[f"{number:07}"].int64_param = 1
    return bytes(made.SerializeToString())


OF_INFER = [
    *(LargeBody(f"parameters of {name}", INFER, filled(f'{WHOLE},"parameters":{{"x":[', piece, "]}}", ","))
      for name, piece in PIECES.items()),
    *(LargeBody(f"data of {name}", INFER, filled(f'{INPUT},"shape":[1,4],"data":[', piece, "]}]}", ","))
      for name, piece in PIECES.items()),
    LargeBody("names of parameters", INFER, _numbered(f'{WHOLE},"parameters":{{')),
    LargeBody("inputs", INFER, filled('{"inputs":[', SMALL_TENSOR, "]}", ",")),
    LargeBody("outputs", INFER, filled(f'{WHOLE},"outputs":[', '{"name":"a"}', "]}", ",")),
    LargeBody("a shape", INFER, filled(f'{INPUT},"shape":[', "1", '],"data":[1]}]}', ",")),
    LargeBody("a name", INFER, filled(f'{WHOLE},"id":"', "[", '"}')),
    LargeBody("unknown fields", INFER, _numbered(f"{WHOLE},")),
    LargeBody("rows of numbers", INFER, shaped("FP32", "1,1,1,1")),
    LargeBody("nested rows of numbers", INFER, shaped("FP32", "[1,1,1,1]")),
    LargeBody("nested rows of fractions", INFER, shaped("FP64", ROW)),
    *binary("FP32", b"\0\0\x80?"),
    contents("FP32", "fp32_contents", 1.0, 4),
    contents("INT64", "int64_contents", 1, 1),
    LargeBody("parameters of a message", INFER, _parameters, PROTOBUF),
    LargeBody("fields of a message", INFER, lambda size_bytes: b"\x48\x01" * (size_bytes // 2), PROTOBUF),
]  # fmt: skip
OF_ROWS = [
    LargeBody(f"{path.rpartition('/')[2]} {field} of {name}", path, _rows_of(field, piece, named=named))
    for path, field, named in ((V1, "instances", False), (NAMED, "inputs", False), (SIMPLE, "inputs", True))
    for name, piece in (PIECES | {"named rows": NAMED_ROW, "images": '{"b64":""}', "features": FEATURE_ROW}).items()
]
OF_TEXTS = [
    LargeBody("rows of short texts", TEXTS, shaped("BYTES", '"",""', "x_BYTES", 2)),
    LargeBody("nested rows of texts", TEXTS, shaped("BYTES", '["a","b"]', "x_BYTES", 2)),
    LargeBody("rows of long texts", TEXTS, shaped("BYTES", f'"{250 * "a"}",""', "x_BYTES", 2)),
    *binary("BYTES", b"\0\0\0\0", "x_BYTES", 2, TEXTS),
    *binary("BYTES", b"\1\0\0\0a", "x_BYTES", 2, TEXTS),
    *binary("BYTES", b"\xfc\0\0\0" + 252 * b"a", "x_BYTES", 2, TEXTS),
    contents("BYTES", "bytes_contents", b"", 2, "x_BYTES", TEXTS),
    LargeBody("documents to rank", "/v1/rerank", items_of("documents", '""', query="a")),
    LargeBody("objects to rank", "/v1/rerank", items_of("documents", '{"text":"a"}', query="a")),
    LargeBody("1000 documents", "/v1/rerank", items_of("documents", f'"{8300 * "a"}"', query="a")),
    LargeBody("a text to rank", "/v1/rerank", field_of("query", "a", documents=["a"])),
    LargeBody("lists to score", "/v1/score", items_of("text_2", "[]", text_1="a")),
    LargeBody("texts to classify", "/classify", items_of("input", '"a"')),
]
OF_NUMBERS = [
    LargeBody("numbers that come back", NUMBERS, shaped("FP64", "1.5,2", "x_FP64", 2)),
    LargeBody("nested numbers that come back", NUMBERS, shaped("FP64", "[1,2]", "x_FP64", 2)),
    *binary("FP64", b"\0\0\0\0\0\0\xf8?", "x_FP64", 2, NUMBERS),
    contents("FP64", "fp64_contents", 1.5, 8, "x_FP64", NUMBERS),
]
# Of any number of rows, most of which are refused by that.
OF_MANY = [
    LargeBody(f"many {name} of instances", V1, filled('{"instances":[', piece, "]}", ","))
    for name, piece in PIECES.items()
]
OF_POOL = [
    LargeBody(f"{name} to load", "/v2/repository/models/m/load", filled('{"parameters":{"x":[', piece, "]}}", ","))
    for name, piece in PIECES.items()
]
LARGEST = [*OF_INFER, *OF_ROWS, *OF_MANY]
LARGEST_OF_POOL = [*LARGEST, *OF_TEXTS, *OF_NUMBERS, *OF_POOL]
