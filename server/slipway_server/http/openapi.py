"""The API as an OpenAPI document, generated from the types that validate requests."""

from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from .requests.bodies import UNSUPPORTED
from .requests.schemas import (
    ApiGenerateRequest,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    EmbedRequest,
    GenerateRequest,
    NamedGenerateRequest,
    TokenizeRequest,
)
from .response_api.schema import ResponsesRequest

REQUESTS: dict[str, type[Struct]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/embeddings": EmbeddingRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
    "/v1/generate": GenerateRequest,
    "/api/v1/generate": ApiGenerateRequest,
    "/api/v1/models/{name}/generate": NamedGenerateRequest,
    "/api/v1/embed": EmbedRequest,
}
REFUSALS = {
    400: "The request is invalid, or needs what this server cannot do; `param` names the field.",
    404: "There is no such model here.",
    408: "The body did not come in time.",
    413: "The body is too large.",
    415: "The body has a Content-Encoding.",
    429: "Too many requests wait.",
    500: "The model or the server failed on this request.",
    503: "The server is loading or shutting down, or lost its engine.",
    504: "The request's own time was over.",
}
RESUMED = {
    409: "This stream goes on at another connection.",
    410: "This stream cannot be taken up again.",
}


class ErrorBody(Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(Struct):
    """The body of every error, as in OpenAI's API."""

    error: ErrorBody


@lru_cache
def document() -> bytes:
    kinds = (*dict.fromkeys(REQUESTS.values()), ErrorAnswer)
    references, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    of: dict[Any, Any] = dict(zip(kinds, references, strict=True))
    paths: dict[str, Any] = {path: {"post": _post(path, kind, of)} for path, kind in REQUESTS.items()}
    paths |= {path: {"get": _get(path, of[ErrorAnswer])} for path in ("/v1/models", "/v1/models/{name}")}
    for path in ("/healthz", "/readyz", "/health"):
        paths[path] = {"get": {"responses": {"200": _json("Yes."), "503": _json("No, and why.")}}}
    for kind in REQUESTS.values():
        if not kind.__struct_config__.forbid_unknown_fields:
            components[kind.__name__]["x-unsupported"] = [
                name for name in UNSUPPORTED if name not in kind.__struct_fields__
            ]
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Slipway model server", "version": "1"},
            "paths": paths,
            "components": {"schemas": components},
        }
    )


def _post(path: str, kind: type[Struct], of: dict[Any, Any]) -> dict[str, Any]:
    answer = _json("The answer.")
    if "stream" in kind.__struct_fields__:
        answer["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    body = {"required": True, "content": {"application/json": {"schema": of[kind]}}}
    refusals = REFUSALS | (RESUMED if "stream" in kind.__struct_fields__ else {})
    return _parameters(path) | {"requestBody": body, "responses": {"200": answer} | _errors(refusals, of[ErrorAnswer])}


def _get(path: str, error: dict[str, Any]) -> dict[str, Any]:
    refusals = {status: REFUSALS[status] for status in (404, 503)}
    return _parameters(path) | {"responses": {"200": _json("What is served here.")} | _errors(refusals, error)}


def _parameters(path: str) -> dict[str, Any]:
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    return {"parameters": [name]} if "{name}" in path else {}


def _errors(sentences: dict[int, str], error: dict[str, Any]) -> dict[str, Any]:
    return {str(status): _json(sentence, error) for status, sentence in sentences.items()}


def _json(sentence: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"description": sentence, "content": {"application/json": {"schema": schema or {"type": "object"}}}}
