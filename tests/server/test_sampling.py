"""A sampling parameter is declared once: requests, the engine's parameters and its validation follow from there."""

import ast
import inspect
import json
import math
from typing import Any

import msgspec
import pytest

from slipway_process.serving.errors import HttpError
from slipway_server.engine.request import Request, SamplingParams
from slipway_server.engine.validation import validate_request
from slipway_server.http.requests import sampling as module
from slipway_server.http.requests.bodies import UNSUPPORTED, checked_body
from slipway_server.http.requests.sampling import FIELDS, Sampling, sampling_of
from slipway_server.http.requests.schemas import (
    ApiGenerateRequest,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    GenerateRequest,
    NamedGenerateRequest,
)
from slipway_server.http.response_api.schema import ResponsesRequest
from slipway_server.sampling import DRAW_FIELDS, DRAW_RULES, NEUTRAL, OF_LOGITS, PARAMETERS, Acts, Endpoint

KINDS: dict[type[msgspec.Struct], Endpoint] = {
    ChatRequest: Endpoint.OPENAI,
    CompletionRequest: Endpoint.OPENAI,
    ResponsesRequest: Endpoint.RESPONSES,
    GenerateRequest: Endpoint.GENERATE,
    ApiGenerateRequest: Endpoint.API_GENERATE,
    NamedGenerateRequest: Endpoint.NAMED_GENERATE,
}
NUMBERS = [name for name, parameter in PARAMETERS.items() if parameter.is_number]
CARRIED = [name for name in NUMBERS if PARAMETERS[name].convert]
COMPLETION: dict[str, Any] = {"model": "m", "prompt": "x"}


def bounds(name: str) -> tuple[float, float]:
    """The least and the largest number of a request."""
    schema = msgspec.json.schema(PARAMETERS[name].type)
    above = schema.get("exclusiveMinimum")
    return (schema["minimum"] if above is None else math.nextafter(above, math.inf)), schema["maximum"]


def params(**more: Any) -> SamplingParams:
    return checked_body(COMPLETION | more, CompletionRequest).params(5, (), 1)


@pytest.mark.parametrize("kind", KINDS)
def test_an_endpoint_has_the_parameters_that_are_declared_for_it(kind: type[msgspec.Struct]) -> None:
    declared = {name for name, parameter in PARAMETERS.items() if KINDS[kind] in parameter.endpoints}
    assert len(declared) >= 1 and declared == PARAMETERS.keys() & set(kind.__struct_fields__) - {"logprobs"}


@pytest.mark.parametrize("name", CARRIED)
def test_a_number_comes_to_the_engine_as_the_request_has_it(name: str) -> None:
    for number in bounds(name):
        sampling = params(**{name: number})
        assert getattr(sampling, name) == max(0 if name == "top_k" else number, number)
        validate_request(Request("r", (1,), sampling), 100)
    assert getattr(params(), name) == getattr(params(**{name: None}), name) == NEUTRAL[name]


def test_lists_come_to_the_engine_as_tuples() -> None:
    sampling = params(logit_bias={"5": 1.5, "7": -2}, allowed_token_ids=[5, 7], stop_token_ids=[9])
    assert sampling.logit_bias == ((5, 1.5), (7, -2.0))
    assert (sampling.allowed_token_ids, sampling.stop_token_ids) == ((5, 7), (9,))


@pytest.mark.parametrize("name", [name for name, parameter in PARAMETERS.items() if parameter.range])
def test_the_engine_takes_no_number_outside_of_its_range(name: str) -> None:
    assert PARAMETERS[name].range
    for number in (float("nan"), math.inf, -math.inf):
        sampling = SamplingParams(**{"max_tokens": 5, name: number})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=f"^{name} is "):
            validate_request(Request("r", (1,), sampling), 100)


@pytest.mark.parametrize("name", FIELDS)
def test_an_endpoint_without_a_field_accepts_its_neutral_values_alone(name: str) -> None:
    least = {"model": "m", "input": "x"}
    assert UNSUPPORTED[name] == FIELDS[name].neutral and name not in EmbeddingRequest.__struct_fields__
    for value in (*FIELDS[name].neutral, None):
        checked_body(least | {name: value}, EmbeddingRequest)
    with pytest.raises(HttpError, match=f"{name} is not supported"):
        checked_body(least | {name: "something"}, EmbeddingRequest)


@pytest.mark.parametrize("name", [name for name, field in FIELDS.items() if field.beams is not None])
def test_a_beam_search_refuses_what_it_would_ignore(name: str) -> None:
    some: dict[str, Any] = {"stream": True, "stop": ["x"], "logit_bias": {"5": 1}, "bad_words": ["x"]}
    some |= {"allowed_token_ids": [5], "stop_token_ids": [5]}
    body = COMPLETION | {"use_beam_search": True, "n": 2, "max_tokens": 9}
    checked_body(dict(body), CompletionRequest).check()
    for value in FIELDS[name].beams or ():
        checked_body(body | {name: value}, CompletionRequest).check()
    value = some.get(name, 0.5 if name in PARAMETERS and PARAMETERS[name].type.__origin__ is float else 5)
    with pytest.raises(HttpError, match=f"{name} does not go with beam search"):
        checked_body(body | {name: value}, CompletionRequest).check()


@pytest.mark.parametrize("name", OF_LOGITS)
def test_every_parameter_of_logits_makes_them_edited(name: str) -> None:
    assert not SamplingParams(5, temperature=0.5, top_p=0.5, top_k=5, min_p=0.5, seed=5).edits_logits
    used: dict[str, Any] = {"logit_bias": ((5, 1.0),), "bad_words": ((5,),), "allowed_token_ids": (5,)}
    assert SamplingParams(5, **{name: used.get(name, 2)}).edits_logits


def test_rules_of_a_draw_act_in_it() -> None:
    assert DRAW_RULES.keys() == {name for name in CARRIED if PARAMETERS[name].acts is Acts.DRAW} - {"temperature"}
    assert list(DRAW_FIELDS) == ["seed", "inverse_temperature", *DRAW_RULES]


def test_a_body_of_another_type_gives_the_fields_that_it_has() -> None:
    body = checked_body(
        {"model": "m", "prompt": "x", "temperature": 0.5, "max_tokens": 7, "stream": True}, ApiGenerateRequest
    )
    assert sampling_of(body) == Sampling(temperature=0.5, max_tokens=7, stream=True)


def test_names_that_code_reads_are_declared() -> None:
    """The type checker sees a class with these, where requests get all parameters of their endpoint."""
    tree = ast.parse(inspect.getsource(module))
    [shown] = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == "GenerateFields"]
    names = {
        node.target.id for node in shown.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert len(names) > 5 and names <= {name for name, parameter in PARAMETERS.items() if parameter.type}


def test_values_on_the_wire_to_the_engine_are_not_changed_by_a_declaration() -> None:
    """The engine gets what `params` made, whatever bounds the fields of requests have."""
    sampling = SamplingParams(5, temperature=30.0, logit_bias=((5, 1000.0),))
    assert msgspec.json.decode(msgspec.json.encode(sampling), type=SamplingParams) == sampling
    assert json.loads(msgspec.json.encode(sampling)).keys() == {*PARAMETERS, "grammar", "logprobs_of_allowed"}


@pytest.mark.parametrize("kind", [GenerateRequest, ApiGenerateRequest, NamedGenerateRequest])
@pytest.mark.parametrize(("stops", "strings"), [(["a", "b"], ("a", "b")), ("a", ("a",)), (None, ()), ([], ())])
def test_stop_tokens_end_a_response_of_each_form(kind: type[msgspec.Struct], stops: Any, strings: Any) -> None:
    fields = {name: "x" for name in ("model", "prompt") if name in kind.__struct_fields__}
    body: Any = checked_body(fields | {"stop_tokens": stops, "temperature": 0.5}, kind)
    sampling = body if isinstance(body, Sampling) else sampling_of(body)
    assert sampling.stop_strings == strings and sampling.temperature == 0.5


def test_stop_tokens_add_to_stop() -> None:
    body = checked_body({"model": "m", "prompt": "x", "stop": "a", "stop_tokens": ["b"]}, GenerateRequest)
    assert body.stop_strings == ("a", "b")


@pytest.mark.parametrize("stops", [[""], ["x" * 1025], ["x"] * 17, [1], 5, {}])
def test_stop_tokens_are_bounded_as_stop_is(stops: Any) -> None:
    with pytest.raises(HttpError) as refused:
        checked_body({"model": "m", "prompt": "x", "stop_tokens": stops}, ApiGenerateRequest)
    assert refused.value.param and refused.value.param.startswith("stop_tokens")
