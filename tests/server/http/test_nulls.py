"""Null means absent in every optional field of every endpoint: the schemas are walked."""

import copy
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from slipway_predict.http.bodies.infer_request import InferBody
from slipway_predict.http.bodies.row_bodies import NamedPredictRequest, PredictRequest, V1Request
from slipway_predict.http.pool.repository import LoadRequest, UnloadRequest
from slipway_predict.http.texts.bodies import ClassifyRequest, RerankRequest, ScoreRequest
from slipway_server.http.reading.inputs import KINDS
from slipway_server.http.requests.bodies import checked_body
from slipway_server.http.response_api.items import messages_of

READ = (*KINDS, PredictRequest, NamedPredictRequest, V1Request)  # decoded to objects, then checked_body
DECODED = (InferBody, LoadRequest, UnloadRequest, RerankRequest, ScoreRequest, ClassifyRequest)
Path = tuple[str | int, ...]


def smallest(shape: inspect.Type) -> Any:
    """A value of a type, with the required fields alone."""
    match shape:
        case inspect.Metadata():
            return smallest(shape.type)
        case inspect.StructType():
            return {field.encode_name: smallest(field.type) for field in shape.fields if field.required}
        case inspect.UnionType():
            return smallest(next(one for one in shape.types if not isinstance(one, inspect.NoneType)))
        case inspect.ListType():
            return [smallest(shape.item_type)]
        case inspect.LiteralType():
            return shape.values[0]
    for kind, value in (((inspect.IntType, inspect.FloatType), 1), (inspect.BoolType, True), (inspect.DictType, {})):
        if isinstance(shape, kind):
            return value
    return "a"


def structs(shape: inspect.Type) -> Iterator[tuple[Path, inspect.StructType]]:
    """The structs in a type, with the path to each within a smallest value."""
    match shape:
        case inspect.Metadata():
            yield from structs(shape.type)
        case inspect.StructType():
            yield (), shape
        case inspect.ListType():
            yield from (((0, *path), inner) for path, inner in structs(shape.item_type))
        case inspect.UnionType():
            for one in shape.types:
                yield from structs(one)


def nulls(kind: type) -> Iterator[tuple[Any, Any, str]]:
    """Bodies with one optional field that is null, the same without it, and the path of the field."""

    def walk(shape: inspect.StructType, body: Any, within: Path) -> Iterator[tuple[Any, Any, str]]:
        for field in shape.fields:
            path = (*within, field.encode_name)
            if not field.required:
                yield put(body, path, None), copy.deepcopy(body), ".".join(map(str, path))
            for inside, inner in structs(field.type):
                value = smallest(field.type if isinstance(field.type, inspect.ListType) else inner)
                if inside and not isinstance(value, list):
                    value = [smallest(inner)]
                yield from walk(inner, put(body, path, value), (*path, *inside))

    shape = inspect.type_info(kind)
    assert isinstance(shape, inspect.StructType)
    yield from walk(shape, smallest(shape), ())


def put(body: Any, path: Path, value: Any) -> Any:
    body = copy.deepcopy(body)
    at = body
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    return body


@pytest.mark.parametrize("kind", READ, ids=[kind.__name__ for kind in READ])
def test_an_optional_field_that_is_null_is_absent(kind: type[msgspec.Struct]) -> None:
    paths = []
    for body, without, path in nulls(kind):
        assert checked_body(body, kind) == checked_body(without, kind), path
        assert body == without, f"{path} must be absent for what reads the fields themselves"
        paths.append(path)
    assert len(paths) == len(set(paths)) or kind.__name__ in ("TokenizeRequest",)


@pytest.mark.parametrize("kind", DECODED, ids=[kind.__name__ for kind in DECODED])
def test_an_optional_field_that_is_null_is_absent_where_bodies_are_decoded_by_type(kind: type[msgspec.Struct]) -> None:
    for body, without, path in nulls(kind):
        if path != "inputs.0.data":  # read as it is written: the next test
            read, expected = (msgspec.json.decode(msgspec.json.encode(one), type=kind) for one in (body, without))
            assert read == expected, path


def test_the_deepest_fields_are_walked() -> None:
    paths = {path for kind in READ for _, _, path in nulls(kind)}
    assert {
        "stream_options.include_usage",
        "messages.0.tool_calls.0.type",
        "messages.0.tool_calls.0.function.arguments",
        "response_format.json_schema.schema",
        "tools.0.function.parameters",
        "text.format.strict",
        "params.top_k",
    } <= paths


def test_nulls_of_a_clients_own_objects_stay() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [None], "default": None}}}
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "x", "extra": None}],
        "chat_template_kwargs": {"a": None},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
        "documents": [{"title": None}],
    }
    kind = next(kind for kind in READ if kind.__name__ == "ChatRequest")
    before = copy.deepcopy(body)
    checked_body(body, kind)
    assert body == before


def test_fields_of_items_that_are_null_are_absent() -> None:
    """reports.md, 10: `type: null` of an item was refused."""
    items = [
        {"type": None, "role": "user", "content": "x", "id": None, "status": None},
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": None, "id": None},
    ]
    assert messages_of(None, items) == messages_of(
        None, [{name: value for name, value in item.items() if value is not None} for item in items]
    )
