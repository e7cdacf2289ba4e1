"""Refusals and their OpenAI shape."""

from typing import Any

import msgspec

_OUTCOMES = {
    410: "stream_gone",
    429: "refused",
    500: "internal",
    502: "upstream_error",
    503: "no_endpoint",
    504: "timeout",
}
POISON = "poison"
_OUTCOMES_OF_CODES = {"draining": "drained", "request_crashed_engine": POISON}
_FIRST_WAKE_S = 15
# What a server says whose engine died with the request in flight: the code of its error, or a stream's last comment.
ENGINE_CRASHED = "engine_crashed"


class _Error(msgspec.Struct):
    code: Any = None


class _Said(msgspec.Struct):
    error: _Error


_SAID = msgspec.json.Decoder(_Said)


class Refusal(Exception):
    """An answer that the gateway gives itself. Raised before the first byte of an answer, rendered once, in app.py."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
        allow: str = "",
    ) -> None:
        super().__init__(message)
        self.allow = allow
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def outcome(self) -> str:
        return _OUTCOMES_OF_CODES.get(self.code) or _OUTCOMES.get(self.status, "client_error")

    def body(self) -> bytes:
        return error_body(self.status, self.code, str(self), self.param)


def error_body(status: int, code: str, message: str, param: str | None = None) -> bytes:
    return msgspec.json.encode({"error": error_object(status, code, message, param)})


def error_object(status: int, code: str, message: str, param: str | None = None) -> dict[str, Any]:
    return {"message": message, "type": _type_of(status), "param": param, "code": code}


def _type_of(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"


def invalid(code: str, message: str, *, status: int = 400, param: str | None = None) -> Refusal:
    return Refusal(status, code, message, param=param)


def model_not_found(model: str) -> Refusal:
    return invalid("model_not_found", f"The model '{model[:200]}' does not exist.", status=404, param="model")


def too_large(limit_bytes: int) -> Refusal:
    return invalid("request_too_large", f"The request body exceeds {limit_bytes} bytes.", status=413)


def overloaded(message: str) -> Refusal:
    return Refusal(429, "overloaded", message, retry_after_s=1)


def no_endpoint(model: str) -> Refusal:
    message = f"The model '{model}' has no ready endpoint now; try again shortly."
    return Refusal(503, "model_not_ready", message, retry_after_s=5)


def asleep(model: str, expected_s: int) -> Refusal:
    """`expected_s` 0: how long a wake takes is not known yet."""
    takes = f"which takes about {expected_s} s" if expected_s else "which takes a while"
    message = f"The model '{model}' had no requests and sleeps; it is being woken, {takes}. Try again then."
    return Refusal(503, "model_waking", message, retry_after_s=expected_s or _FIRST_WAKE_S)


def no_table() -> Refusal:
    message = "The gateway has not loaded its routes yet; try again shortly."
    return Refusal(503, "not_ready", message, retry_after_s=5)


def unreachable(reason: str) -> Refusal:
    message = f"No server of this model could be reached ({reason})."
    return Refusal(502, "upstream_unreachable", message, retry_after_s=2)


def draining() -> Refusal:
    return Refusal(503, "draining", "The gateway is shutting down; try again.", retry_after_s=1)


def stream_gone() -> Refusal:
    message = "No server is left that could go on with this stream: ask anew, without Last-Event-ID."
    return Refusal(410, "stream_gone", message)


def bad_head(*, too_long: bool) -> Refusal:
    if too_long:
        return Refusal(431, "head_too_large", "A line of the request's head is longer than this gateway takes.")
    return Refusal(400, "bad_request", "This is not an HTTP/1.1 request that this gateway understands.")


def crashed_engine() -> Refusal:
    """422: the clients of OpenAI send again what is answered with 5xx, 409 or 429."""
    message = "Two servers stopped while they worked on this request: it is not sent to another one."
    return Refusal(422, "request_crashed_engine", message)


def says_crashed(body: bytes) -> bool:
    """Whether a server's refusal says that its engine died with the request in flight."""
    if ENGINE_CRASHED.encode() not in body:
        return False
    try:
        return bool(_SAID.decode(body).error.code == ENGINE_CRASHED)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def too_many_connections(*, of_address: bool) -> Refusal:
    if of_address:
        return Refusal(429, "too_many_connections", "This address has too many connections open.", retry_after_s=1)
    return Refusal(503, "too_many_connections", "The gateway has too many connections open.", retry_after_s=1)


def wrong_method(method: str, path: str, allow: str) -> Refusal:
    return Refusal(405, "method_not_allowed", f"{path[:200]} takes {allow}, not {method[:20]}.", allow=allow)


def internal() -> Refusal:
    return Refusal(500, "internal_error", "The gateway failed on this request.")


def timed_out() -> Refusal:
    return Refusal(504, "timeout", "The model did not answer in time.")
