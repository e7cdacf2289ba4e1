"""One line of an input file: `{custom_id, method, url, body}` (pure)."""

import re

import msgspec

from slipway_process.byte_order_mark import without_mark

ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/generate",
    "/api/v1/generate",
    "/api/v1/embed",
    "/api/v1/predict",
    "/v1/rerank",
    "/v1/score",
    "/classify",
)
_INFER = re.compile(r"/v2/models/[A-Za-z0-9._~/-]{1,512}/infer")
MAX_CUSTOM_ID = 512
# What is stored is read and written again within other objects, from any depth of calls, and the interpreter bounds
# levels and calls together to 1000. So it is taken only if so many more fit.
_SPARE_LEVELS = 400
_RAW = msgspec.json.Decoder(msgspec.Raw)
_TEXT = msgspec.json.Decoder(str)
UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)
_UNKNOWN = re.compile(r"unknown field `(.*)`", re.DOTALL)


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """A line as JSON. Raw is checked and not decoded: objects of 4 MB of it would hold the process up for seconds."""

    custom_id: msgspec.Raw = msgspec.Raw()
    method: msgspec.Raw = msgspec.Raw()
    url: msgspec.Raw = msgspec.Raw()
    body: msgspec.Raw = msgspec.Raw()


class _Body(msgspec.Struct):
    """What is checked of a body."""

    model: msgspec.Raw = msgspec.Raw()
    stream: msgspec.Raw = msgspec.Raw()


_LINE, _BODY = msgspec.json.Decoder(_Line), msgspec.json.Decoder(_Body)


class InvalidLine(ValueError):
    """A line that cannot be sent. `param` names its field."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.param = code, param


class InputLine(msgspec.Struct):
    """A valid line. `body`: its bytes as they were written."""

    custom_id: str
    body: bytes


def is_endpoint(path: str) -> bool:
    parts = path.split("/")
    return path in ENDPOINTS or (_INFER.fullmatch(path) is not None and not {".", "..", ""} & set(parts[1:]))


def is_too_deep(data: bytes | bytearray) -> bool:
    """Whether JSON has more levels, some 550, than can be read and written again wherever it is stored."""
    try:
        check_json(data)
    except RecursionError:
        return True
    except (msgspec.MsgspecError, UnicodeError):
        return False  # no JSON: whoever reads it reports that
    return False


def check_json(data: bytes | bytearray) -> None:
    """Reads JSON and makes no objects of it. Raises one of `UNREADABLE`: a RecursionError where it is too deep."""
    _RAW.decode(b"[" * _SPARE_LEVELS + data + b"]" * _SPARE_LEVELS)
    data.decode()


def unknown_field(error: msgspec.ValidationError) -> str | None:
    """The name of the field that a type does not have, at most 100 characters of it; None for another error."""
    found = _UNKNOWN.search(str(error))
    return found[1][:100] if found else None


def read_line(data: bytes, endpoint: str) -> InputLine:
    """
    Raises:
        InvalidLine: the line cannot be sent to this endpoint.
    """
    line = _read(data)
    custom_id = _text(line.custom_id, "custom_id")
    if custom_id is None or not 0 < len(custom_id) <= MAX_CUSTOM_ID or "\0" in custom_id:
        raise InvalidLine(
            "invalid_custom_id", f"custom_id must be a text of 1 to {MAX_CUSTOM_ID} characters.", "custom_id"
        )
    if _text(line.method, "method") != "POST":
        raise InvalidLine("invalid_method", "method must be POST.", "method")
    if _text(line.url, "url") != endpoint:
        raise InvalidLine("mismatched_endpoint", f"url must be the endpoint of the batch, {endpoint}.", "url")
    body = bytes(line.body)
    if not body:
        raise _missing("body")
    if is_too_deep(body):
        raise InvalidLine("invalid_body", "body is nested too deeply.", "body")
    _check_body(body, endpoint)
    return InputLine(custom_id, body)


def _read(data: bytes) -> _Line:
    data = without_mark(data)
    try:
        data.decode()
        return _LINE.decode(data)
    except RecursionError:
        raise InvalidLine("invalid_json_line", "This line is nested too deeply.") from None
    except msgspec.ValidationError as error:
        if (name := unknown_field(error)) is None:
            raise InvalidLine("invalid_json_line", "This line is no JSON object.") from None
        raise InvalidLine("unknown_field", f"The field {name!r} is unknown.", name) from None
    except UNREADABLE:
        raise InvalidLine("invalid_json_line", "This line is no JSON object.") from None


def _check_body(data: bytes, endpoint: str) -> None:
    try:
        body = _BODY.decode(data)
    except msgspec.ValidationError:
        raise InvalidLine("invalid_body", "body must be an object.", "body") from None
    except UNREADABLE:
        raise InvalidLine("invalid_json_line", "body is no valid JSON.", "body") from None
    named = not endpoint.startswith("/v2/")
    if named and not (bytes(body.model) and _text(body.model, "body.model")):
        raise InvalidLine("missing_model", "body.model must name a model.", "body.model")
    if bytes(body.stream) not in (b"", b"null", b"false"):
        raise InvalidLine(
            "stream_not_supported", "body.stream must be false: a batch has whole responses.", "body.stream"
        )


def _text(value: msgspec.Raw, name: str) -> str | None:
    """The text; None for another value."""
    if not bytes(value):
        raise _missing(name)
    try:
        return _TEXT.decode(value)
    except msgspec.ValidationError:
        return None
    except UNREADABLE:
        raise InvalidLine("invalid_json_line", f"{name} is no valid JSON.", name) from None


def _missing(name: str) -> InvalidLine:
    return InvalidLine("missing_field", f"{name} is missing.", name)
