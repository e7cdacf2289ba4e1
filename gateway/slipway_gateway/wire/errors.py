"""Error responses in OpenAI's shape."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from . import inference
from .json_values import ABSENT, UNREADABLE, integer_of, text_of

_OUTCOMES = {
    401: "unauthenticated",
    403: "forbidden",
    410: "stream_gone",
    429: "refused",
    500: "internal",
    502: "upstream_error",
    503: "no_endpoint",
    504: "timeout",
}
POISON = "poison"
# A server sends this if its engine died with the request in flight: as error code, or as a stream's last comment. A
# client gets it if the request goes to no other server.
ENGINE_CRASHED = "engine_crashed"
_OUTCOMES_OF_CODES = {
    "draining": "drained",
    "request_crashed_engine": POISON,
    ENGINE_CRASHED: "upstream_error",
    "not_cached": "client_error",
    "content_blocked": "blocked",
    "guard_failed": "guard_failed",
    "invalid_response_format": "invalid_format",
}
_FIRST_WAKE_S = 15
# Of Anthropic's API, by status; others are those of 400 and 500.
MESSAGES = "/v1/messages"
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
# Of text-generation-inference's API: its paths, and its types by status; others are those of 400 and 500.
_TGI_PATHS = frozenset({"/", "/generate", "/generate_stream"})
NAMED_TGI = "/models/"  # before the name of a model
_TGI_TYPES = {401: "authentication", 403: "authentication", 429: "overloaded", 503: "overloaded"}
# OpenAI's code; other engines have the words in the message alone.
_TOO_LONG_CODE, _TOO_LONG_WORDS = "context_length_exceeded", "maximum context length"
_REALM = 'Bearer realm="slipway"'  # of the header WWW-Authenticate
CIRCUIT_OPEN = "circuit_open"
RATE_LIMITED = "rate_limit_exceeded"  # code of a refusal by limits of a tenant


class _ErrorCode(msgspec.Struct):
    code: Raw = ABSENT
    message: Raw = ABSENT


class _ErrorBody(msgspec.Struct):
    """`error` is a text in the Open Inference Protocol, with the code beside it."""

    error: _ErrorCode | str
    code: Raw = ABSENT


_ERROR_BODY = msgspec.json.Decoder(_ErrorBody)


class RequestError(Exception):
    """An error response of the gateway: raised before the first byte of a response, rendered in serving/api.py."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
        allow: str = "",
        challenge: str = "",
        kind: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.allow = allow
        self.challenge = challenge
        self.kind = kind  # the `type` of the error, where the status alone does not give it
        self.headers = headers or {}
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def outcome(self) -> str:
        return _OUTCOMES_OF_CODES.get(self.code) or _OUTCOMES.get(self.status, "client_error")

    def body(self, path: str = "") -> bytes:
        """The error as JSON, in the shape of the API that the path belongs to."""
        if inference.is_inference_protocol(path):
            return inference.error_body(self.code, str(self))
        if is_anthropic(path):
            return anthropic_error(self.status, str(self))
        if is_tgi(path):
            return tgi_error(self.status, str(self))
        return error_body(self.status, self.code, str(self), self.param, self.kind)


def is_anthropic(path: str) -> bool:
    """Whether clients of this path expect errors in the shape of Anthropic's API."""
    return path == MESSAGES or path.startswith(f"{MESSAGES}/")


def anthropic_error(status: int, message: str) -> bytes:
    kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})


def is_tgi(path: str) -> bool:
    """Whether clients of this path expect errors in the shape of text-generation-inference."""
    return path in _TGI_PATHS or path.startswith(NAMED_TGI)


def tgi_error(status: int, message: str) -> bytes:
    kind = _TGI_TYPES.get(status, "generation" if status >= 500 else "validation")
    return msgspec.json.encode({"error": message, "error_type": kind})


def error_body(status: int, code: str, message: str, param: str | None = None, kind: str = "") -> bytes:
    return msgspec.json.encode({"error": error_object(status, code, message, param, kind)})


def error_object(status: int, code: str, message: str, param: str | None = None, kind: str = "") -> dict[str, Any]:
    return {"message": message, "type": kind or _type_of(status), "param": param, "code": code}


def _type_of(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"


def invalid(code: str, message: str, *, status: int = 400, param: str | None = None) -> RequestError:
    return RequestError(status, code, message, param=param)


def model_not_found(model: str) -> RequestError:
    return invalid("model_not_found", f"The model '{model[:200]}' does not exist.", status=404, param="model")


def no_only_model() -> RequestError:
    """A request of an API without names of models, at a gateway that has another number of them than one."""
    message = f"This gateway does not serve exactly one model: name one, as model in the body or by {NAMED_TGI}NAME."
    return invalid("missing_required_parameter", message, param="model")


def no_rule(model: str) -> RequestError:
    message = f"No rule of the model '{model[:200]}' is for this request."
    return invalid("no_matching_rule", message, status=404, param="model")


def no_target(model: str) -> RequestError:
    message = f"The rule of the model '{model[:200]}' that this request fits has no target now."
    return RequestError(503, "no_route_target", message, retry_after_s=5)


def version_not_found(model: str, version: str) -> RequestError:
    message = f"Version '{version[:200]}' of '{model[:200]}' is not served now."
    return invalid("version_not_found", message, status=404, param="version")


def no_credentials() -> RequestError:
    message = "You did not provide an API key: send it as Authorization: Bearer KEY."
    return RequestError(401, "missing_api_key", message, challenge=_REALM)


def bad_credentials() -> RequestError:
    """The same for all that is wrong with credentials: a client does not learn which part is right."""
    message = "Incorrect API key provided: it is mistyped, revoked, or of another gateway."
    return RequestError(401, "invalid_api_key", message, challenge=f'{_REALM}, error="invalid_token"')


def expired_credentials() -> RequestError:
    message = "The API key has expired: ask the administrator of this gateway for another one."
    return RequestError(401, "expired_api_key", message, challenge=f'{_REALM}, error="invalid_token"')


def tenant_disabled() -> RequestError:
    message = "The tenant of this API key is disabled: ask the administrator of this gateway."
    return RequestError(403, "tenant_disabled", message)


def too_many_failures() -> RequestError:
    message = "Too many requests without a valid API key come from this address."
    return RequestError(429, "too_many_failures", message, retry_after_s=2)


def no_tenants() -> RequestError:
    message = "The gateway cannot check credentials now; try again shortly."
    return RequestError(503, "not_ready", message, retry_after_s=5)


def too_large(limit_bytes: int) -> RequestError:
    return invalid("request_too_large", f"The request body exceeds {limit_bytes} bytes.", status=413)


def no_place(what: str, *, of_client: bool) -> RequestError:
    """`what`: of which there are no more, in the plural. `of_client`: for this client, whose share is held."""
    if of_client:
        return overloaded(f"This client is at its share of the gateway's {what}: others have places left.")
    return overloaded(f"The gateway is at its limit of {what}.")


def overloaded(message: str) -> RequestError:
    return RequestError(429, "overloaded", message, retry_after_s=1)


def rate_limited(kind: str, what: str, wait_s: float, headers: Mapping[str, str]) -> RequestError:
    """`kind`: what OpenAI calls the type: requests or tokens. `what`: the limit, for people."""
    message = f"Rate limit reached: this tenant's limit of {what}. Try again in {wait_s:.3g} s."
    # Never 0: a client that rounds down would come too early. OpenAI's clients prefer the exact one.
    exact = {"retry-after-ms": str(max(1, math.ceil(wait_s * 1000)))}
    retry_after_s = max(1, math.ceil(wait_s))
    return RequestError(
        429, RATE_LIMITED, message, retry_after_s=retry_after_s, kind=kind, headers={**headers, **exact}
    )


def context_too_long(most: int, input_tokens: int, output_tokens: int) -> RequestError:
    """A request has more tokens than each one of its tenant may have. The prompt's are an estimate."""
    message = (
        f"Requests of this tenant may have {most} tokens, prompt and response together. This one has about "
        f"{input_tokens + output_tokens}: about {input_tokens} in the prompt, and {output_tokens} for the response."
    )
    return invalid("context_length_exceeded", message)


def out_of_budget(period: str) -> RequestError:
    """`period`: day or month. Clients do not try again by themselves."""
    message = f"This tenant has spent its budget of this {period} (in UTC)."
    kind = "insufficient_quota"
    return RequestError(429, kind, message, kind=kind, headers={"x-should-retry": "false"})


def no_endpoint(model: str) -> RequestError:
    message = f"The model '{model}' has no ready endpoint now; try again shortly."
    return RequestError(503, "model_not_ready", message, retry_after_s=5)


def circuit_open(model: str, wait_s: float) -> RequestError:
    """`wait_s`: seconds until a request is sent again."""
    message = f"The model '{model}' failed many times in a row, so it gets no requests for now; try again shortly."
    return RequestError(503, CIRCUIT_OPEN, message, retry_after_s=max(1, math.ceil(wait_s)))


def asleep(model: str, expected_s: int) -> RequestError:
    """`expected_s`: seconds that a wake is expected to take; 0: not known yet."""
    takes = f"which takes about {expected_s} s" if expected_s else "which takes a while"
    message = f"The model '{model}' had no requests and sleeps; it is being woken, {takes}. Try again then."
    return RequestError(503, "model_waking", message, retry_after_s=expected_s or _FIRST_WAKE_S)


def no_table() -> RequestError:
    message = "The gateway has no routes now; try again shortly."
    return RequestError(503, "not_ready", message, retry_after_s=5)


def unreachable(reason: str) -> RequestError:
    message = f"No server of this model could be reached ({reason})."
    return RequestError(502, "upstream_unreachable", message, retry_after_s=2)


def bad_response() -> RequestError:
    message = "The server of this model sent something that is no HTTP response."
    return RequestError(502, "bad_response", message)


def draining() -> RequestError:
    return RequestError(503, "draining", "The gateway is shutting down; try again.", retry_after_s=1)


def stream_gone() -> RequestError:
    message = "No server is left that could continue this stream: send the request again, without Last-Event-ID."
    return RequestError(410, "stream_gone", message)


def bad_head(*, too_long: bool) -> RequestError:
    if too_long:
        message = "The request's head, or a line of it, is longer than this gateway takes."
        return RequestError(431, "head_too_large", message)
    return RequestError(400, "bad_request", "This is not an HTTP/1.1 request that this gateway understands.")


def crashed_engine() -> RequestError:
    """The status is 422 because OpenAI's clients retry after 5xx, 409 and 429."""
    message = "Servers stopped while they worked on this request: it is not sent to another one."
    return RequestError(422, "request_crashed_engine", message)


def engine_crashed(*, long: bool) -> RequestError:
    """A request that a server died with, and that goes to no other one. Without Retry-After: it may be the cause.

    `long`: because of its length; else because no server became ready beside which it could be tried at another one.
    """
    reason = "so long a request is not tried at another one" if long else "no second one was ready to try it at in time"
    message = f"The server of this request stopped while it worked on it, and {reason}."
    return RequestError(503, ENGINE_CRASHED, message)


def reports_crash(body: bytes) -> bool:
    """Whether a server's error reports that its engine died with the request in flight."""
    if ENGINE_CRASHED.encode() not in body:
        return False
    try:
        found = _ERROR_BODY.decode(body)
        code = found.code if isinstance(found.error, str) else found.error.code
        return text_of(code) == ENGINE_CRASHED
    except UNREADABLE:
        return False


def code_and_message(body: bytes) -> tuple[str, str]:
    """Code and message of a server's error; "" for each that it has not, or not in a few kilobytes."""
    try:
        found = _ERROR_BODY.decode(body)
    except UNREADABLE:
        return "", ""
    if isinstance(found.error, str):
        return "", ""
    code = integer_of(found.error.code)
    return text_of(found.error.code) or ("" if code is None else str(code)), text_of(found.error.message) or ""


def reports_context_too_long(status: int, body: bytes) -> bool:
    """Whether a server's error reports that the request does not fit into the context of its model."""
    if status not in (400, 413, 422):
        return False
    code, message = code_and_message(body)
    return code == _TOO_LONG_CODE or _TOO_LONG_WORDS in message


def too_many_connections(*, of_address: bool) -> RequestError:
    if of_address:
        return RequestError(429, "too_many_connections", "This address has too many connections open.", retry_after_s=1)
    return RequestError(503, "too_many_connections", "The gateway has too many connections open.", retry_after_s=1)


def no_room_for_heads() -> RequestError:
    return overloaded("The gateway is at its limit of memory for heads of requests, or this address at its share.")


def wrong_method(method: str, path: str, allow: str) -> RequestError:
    return RequestError(405, "method_not_allowed", f"{path[:200]} takes {allow}, not {method[:20]}.", allow=allow)


def internal() -> RequestError:
    return RequestError(500, "internal_error", "The gateway failed on this request.")


def content_blocked(guard: str, reason: str, *, of_response: bool) -> RequestError:
    """`reason`: of the guard; empty: it has none."""
    return RequestError(400, "content_blocked", blocked_message(guard, reason, of_response=of_response))


def blocked_message(guard: str, reason: str, *, of_response: bool) -> str:
    what = "The response" if of_response else "The request"
    return f"{what} was blocked by the guard '{guard}'{f': {reason}' if reason else ''}."


def content_not_checked(guard: str, why: str) -> RequestError:
    """The request has what no guard can read: it is not sent on."""
    return invalid("content_not_checked", f"The guard '{guard}' cannot check the request: {why}.")


def unusable_schema(param: str, guard: str, why: str) -> RequestError:
    """The response could not be checked by the schema of the request: no model computes it."""
    return invalid("invalid_schema", f"The guard '{guard}' cannot check responses by {param}: {why}.", param=param)


def invalid_response_format(param: str, problem: str) -> RequestError:
    """The model's response is not what the request wants. No 5xx: a schema that nothing fits is the client's."""
    message = f"The response of the model does not fit {param}: {problem}."
    return invalid("invalid_response_format", message, status=422, param=param)


def guard_failed(guard: str, why: str) -> RequestError:
    return RequestError(503, "guard_failed", guard_message(guard, why), retry_after_s=1)


def guard_message(guard: str, why: str) -> str:
    return f"The guard '{guard}' decided nothing, and nothing passes without it: {why}."


def not_cached() -> RequestError:
    """The client wants a kept response alone (RFC 9111, only-if-cached)."""
    message = "No kept response fits this request, which has Cache-Control: only-if-cached."
    return RequestError(504, "not_cached", message, headers={"x-should-retry": "false"})


def timed_out() -> RequestError:
    return RequestError(504, "timeout", "The model did not answer in time.")
