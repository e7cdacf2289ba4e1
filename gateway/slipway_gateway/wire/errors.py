"""Error responses in OpenAI's shape."""

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
# A server sends this if its engine died with the request in flight: as error code, or as a stream's last comment.
ENGINE_CRASHED = "engine_crashed"


class _ErrorCode(msgspec.Struct):
    code: Any = None


class _ErrorBody(msgspec.Struct):
    error: _ErrorCode


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


def invalid(code: str, message: str, *, status: int = 400, param: str | None = None) -> RequestError:
    return RequestError(status, code, message, param=param)


def model_not_found(model: str) -> RequestError:
    return invalid("model_not_found", f"The model '{model[:200]}' does not exist.", status=404, param="model")


def too_large(limit_bytes: int) -> RequestError:
    return invalid("request_too_large", f"The request body exceeds {limit_bytes} bytes.", status=413)


def overloaded(message: str) -> RequestError:
    return RequestError(429, "overloaded", message, retry_after_s=1)


def no_endpoint(model: str) -> RequestError:
    message = f"The model '{model}' has no ready endpoint now; try again shortly."
    return RequestError(503, "model_not_ready", message, retry_after_s=5)


def asleep(model: str, expected_s: int) -> RequestError:
    """`expected_s` 0: how long a wake takes is not known yet."""
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
        return RequestError(431, "head_too_large", "A line of the request's head is longer than this gateway takes.")
    return RequestError(400, "bad_request", "This is not an HTTP/1.1 request that this gateway understands.")


def crashed_engine() -> RequestError:
    """422: OpenAI clients retry after 5xx, 409 and 429."""
    message = "Two servers stopped while they worked on this request: it is not sent to another one."
    return RequestError(422, "request_crashed_engine", message)


def reports_crash(body: bytes) -> bool:
    """Whether a server's error reports that its engine died with the request in flight."""
    if ENGINE_CRASHED.encode() not in body:
        return False
    try:
        return bool(_ERROR_BODY.decode(body).error.code == ENGINE_CRASHED)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def too_many_connections(*, of_address: bool) -> RequestError:
    if of_address:
        return RequestError(429, "too_many_connections", "This address has too many connections open.", retry_after_s=1)
    return RequestError(503, "too_many_connections", "The gateway has too many connections open.", retry_after_s=1)


def wrong_method(method: str, path: str, allow: str) -> RequestError:
    return RequestError(405, "method_not_allowed", f"{path[:200]} takes {allow}, not {method[:20]}.", allow=allow)


def internal() -> RequestError:
    return RequestError(500, "internal_error", "The gateway failed on this request.")


def timed_out() -> RequestError:
    return RequestError(504, "timeout", "The model did not answer in time.")
