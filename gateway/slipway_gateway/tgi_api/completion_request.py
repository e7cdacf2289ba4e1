"""Makes the body of a completion of a request in TGI's shape (pure)."""

from typing import Any

import msgspec
from msgspec import Raw

from ..wire import errors
from ..wire.json_values import ABSENT, is_object, is_text, read_value, text_of
from .schema import GenerateRequest, Grammar, Parameters

DEFAULT_NEW_TOKENS = 100  # TGI's documented default
_SEED_VALUES = 1 << 64
_LONGEST_GRAMMAR = 1 << 20  # bytes; engines take less
# Values that demand nothing of what no engine behind the gateway is known to do as TGI does.
_UNSUPPORTED: dict[str, tuple[tuple[Any, ...], str]] = {
    "adapter_id": ((), "An adapter is a model of its own here: name it as the model."),
    "best_of": ((1,), "Only one sequence is generated."),
    "decoder_input_details": ((False,), "Log probabilities of the inputs are not returned."),
    "top_n_tokens": ((0,), "Log probabilities of other tokens are not returned."),
    "truncate": ((), "Inputs are not shortened: send what fits."),
    "typical_p": ((1.0,), "Typical decoding is not supported."),
    "watermark": ((False,), "Watermarks are not supported."),
}

Fields = dict[str, Any]


def completion_body(request: GenerateRequest, model: str, *, stream: bool) -> bytes:
    """The body of `/v1/completions`.

    Raises:
        RequestError: 422, which names the parameter that has no counterpart there, or no valid value.
    """
    if not is_text(request.inputs):
        raise refused("inputs", "inputs must be a text.", code="invalid_type")
    if len(request.inputs) == 2:
        raise refused("inputs", "inputs must not be empty.")
    parameters = request.parameters or Parameters(do_sample=True)  # as TGI has it: without parameters tokens are drawn
    _check_supported(parameters)
    fields: Fields = {"model": model, "prompt": request.inputs}
    fields["max_tokens"] = parameters.max_new_tokens or DEFAULT_NEW_TOKENS
    fields |= _sampling(parameters)
    if parameters.stop:
        # TGI's text has the stop sequence that ended it.
        fields |= {"stop": parameters.stop, "include_stop_str_in_output": True}
    if parameters.grammar is not None:
        fields |= _grammar(parameters.grammar)
    if stream:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    if stream or parameters.details:
        fields |= {"logprobs": 0, "return_token_ids": True}  # of the tokens themselves, without alternatives
    return msgspec.json.encode(fields)


def _check_supported(parameters: Parameters) -> None:
    for name, (neutral, message) in _UNSUPPORTED.items():
        value = getattr(parameters, name)
        if value is not None and value not in neutral:
            raise refused(name, f"parameters.{name} is not supported. {message}", code="unsupported_parameter")


def _sampling(parameters: Parameters) -> Fields:
    """TGI draws tokens where do_sample is set or a parameter of draws is given, else it takes the likeliest one."""
    named = {name: getattr(parameters, name) for name in ("temperature", "top_k", "top_p")}
    fields: Fields = {name: value for name, value in named.items() if value is not None}
    if not (parameters.do_sample or fields):
        fields["temperature"] = 0
    for name in ("repetition_penalty", "frequency_penalty"):
        if (value := getattr(parameters, name)) is not None:
            fields[name] = value
    if parameters.seed is not None:
        if parameters.seed >= _SEED_VALUES:
            raise refused("seed", "parameters.seed must be below 2^64.")
        # The same number in the 64 bits of engines, which have a sign.
        fields["seed"] = parameters.seed - _SEED_VALUES * (parameters.seed >= _SEED_VALUES >> 1)
    return fields


class _NamedSchema(msgspec.Struct):
    schema: Raw


_NAMED_SCHEMA = msgspec.json.Decoder(_NamedSchema)
_VALUE = msgspec.json.Decoder(Raw)


def _grammar(grammar: Grammar) -> Fields:
    """A schema in OpenAI's field, which guards of JSON read too; a regular expression in vLLM's."""
    value, kind = grammar.value, grammar.type
    if kind == "regex":
        if not is_text(value):
            raise refused("grammar", "parameters.grammar.value must be a text for the type regex.")
        return {"structured_outputs": {"regex": value}}
    if kind == "json_schema":
        named = read_value(_NAMED_SCHEMA, value, _LONGEST_GRAMMAR)
        if named is None:
            raise refused("grammar", "parameters.grammar.value must be an object with a schema.")
        value = named.schema
    elif (text := text_of(value, _LONGEST_GRAMMAR)) is not None:
        value = read_value(_VALUE, Raw(text), len(value)) or ABSENT
    if not is_object(value):
        raise refused("grammar", f"parameters.grammar.value must have a JSON schema for the type {kind}.")
    schema = {"name": "output", "schema": value, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def refused(param: str, message: str, *, code: str = "invalid_value") -> errors.RequestError:
    """An error with TGI's status of validations."""
    return errors.invalid(code, message, status=422, param=param)
