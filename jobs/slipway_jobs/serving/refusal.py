"""Error responses in OpenAI's shape."""

import msgspec
from aiohttp import web

from slipway_process.sealing import SealingKeyLost, UnreadableSeal

from ..states import UNREADABLE_LINE


class JobsRefusal(Exception):
    """An error response: rendered in `app`."""

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.retry_after_s = status, code, param, retry_after_s

    def response(self) -> web.Response:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        response = json_response({"error": error}, self.status)
        if self.retry_after_s is not None:
            response.headers["Retry-After"] = str(self.retry_after_s)
        return response


def json_response(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def invalid(param: str, message: str, code: str = "invalid_value") -> JobsRefusal:
    return JobsRefusal(400, code, message, param=param)


def not_found(kind: str, name: str) -> JobsRefusal:
    return JobsRefusal(404, f"{kind}_not_found", f"There is no {kind} {name[:100]!r}.", param="id")


def database_full(param: str) -> JobsRefusal:
    message = "The database of files is full: delete some, or try again later."
    return JobsRefusal(507, "database_full", message, param=param)


def unreadable(error: UnreadableSeal) -> JobsRefusal:
    """For what cannot be decrypted."""
    if isinstance(error, SealingKeyLost):
        message = f"This was encrypted with the key {error.key_id!r}, which this installation has no longer."
        return JobsRefusal(500, UNREADABLE_LINE, message)
    message = "This was changed where it is stored, so that it cannot be decrypted."
    return JobsRefusal(500, "stored_data_damaged", message)


def unavailable() -> JobsRefusal:
    return JobsRefusal(503, "database_unavailable", "What is stored cannot be reached now.", retry_after_s=5)
