"""Refusals and failures, in OpenAI's shape or the Open Inference Protocol's, and what each is counted as."""

import msgspec
from msgspec import Struct

MAX_MESSAGE_CHARACTERS = 500  # an error may quote what a client sent


class HttpError(Exception):
    """An answer that is not a success. `outcome` is its label in slipway_server_requests_total.

    `elsewhere`: another server could continue the request.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
        outcome: str = "invalid",
        elsewhere: bool = False,
    ) -> None:
        super().__init__(_printable(message))
        self.status, self.code, self.param = status, code, None if param is None else _printable(param)
        self.retry_after_s, self.outcome = retry_after_s, outcome
        self.elsewhere = elsewhere

    @property
    def body(self) -> dict[str, object]:
        kind = "invalid_request_error" if self.status < 500 and self.status != 429 else _kind(self.status)
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def encode(self, path: str = "") -> bytes:
        """The JSON body, in the error format of the API that `path` belongs to."""
        if is_inference_protocol(path):
            # Clients of the protocol read `error` as a text; gateways read the code.
            return msgspec.json.encode({"error": str(self), "code": self.code})
        return msgspec.json.encode(self.body)


class Refusal(Struct, frozen=True, tag=True):
    """An error for the client, from a process that reads for this one."""

    status: int
    message: str
    code: str | None
    param: str | None

    @classmethod
    def of(cls, error: HttpError) -> "Refusal":
        return cls(error.status, str(error), error.code, error.param)

    @property
    def error(self) -> HttpError:
        return HttpError(self.status, self.message, code=self.code, param=self.param)


PREFIX = "/revisions"  # before the path of a request for one entry of a pool


def is_inference_protocol(path: str) -> bool:
    """Whether a path is of the Open Inference Protocol (v2), or of KServe's V1; also below a pool entry's prefix."""
    if path.startswith(f"{PREFIX}/"):
        path = "/" + path.removeprefix(f"{PREFIX}/").partition("/")[2]
    return (
        path == "/v2"
        or (path.startswith("/v2/") and path != "/v2/rerank")
        or (path.startswith("/v1/models/") and path.endswith(":predict"))
    )


def _printable(text: str) -> str:
    """A text that can be encoded, whatever a client put into a path or a name."""
    short = text if len(text) <= MAX_MESSAGE_CHARACTERS else text[:MAX_MESSAGE_CHARACTERS] + "…"
    return short.encode("utf-8", "replace").decode()


def _kind(status: int) -> str:
    return {429: "rate_limit_error", 503: "service_unavailable_error"}.get(status, "server_error")


def invalid(message: str, param: str | None = None, code: str | None = None) -> HttpError:
    return HttpError(400, message, param=param, code=code)


def too_long(message: str, param: str) -> HttpError:
    return HttpError(400, message, param=param, code="context_length_exceeded")


def queue_full(message: str) -> HttpError:
    return HttpError(429, message, code="queue_full", retry_after_s=1, outcome="refused")


def unavailable(code: str, message: str) -> HttpError:
    return HttpError(503, message, code=code, retry_after_s=2, outcome=code)


def failed(message: str) -> HttpError:
    return HttpError(500, message, code="internal_error", outcome="error")


def non_finite(message: str) -> HttpError:
    return HttpError(500, message, code="non_finite", outcome="error")


def lost(message: str) -> HttpError:
    return HttpError(503, message, code="server_lost", retry_after_s=2, outcome="error", elsewhere=True)


def engine_crashed(message: str) -> HttpError:
    """The answer to a request in flight when the engine process crashed, perhaps because of that request.

    A gateway counts these answers: it sends a request that was in flight at two crashes to no other server.
    """
    return HttpError(503, message, code="engine_crashed", retry_after_s=2, outcome="error", elsewhere=True)


def contradictory(message: str) -> HttpError:
    """The request contradicts itself, or the model, in a way that only the engine can see."""
    return invalid(message, code="invalid_value")


def taken_over() -> HttpError:
    return HttpError(409, "This stream goes on at another connection.", code="taken_over", outcome="cancelled")


def too_late(message: str) -> HttpError:
    return HttpError(504, message, code="deadline_exceeded", outcome="error")
