"""One line of an input file: `{custom_id, method, url, body}` (pure)."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

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
_FIELDS = frozenset({"custom_id", "method", "url", "body"})
_LINE = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_RAW = msgspec.json.Decoder(msgspec.Raw)
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


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
        _RAW.decode(b"[" * _SPARE_LEVELS + data + b"]" * _SPARE_LEVELS)
    except RecursionError:
        return True
    except msgspec.MsgspecError:
        return False  # no JSON: whoever reads it reports that
    return False


def read_line(data: bytes, endpoint: str) -> InputLine:
    """
    Raises:
        InvalidLine: the line cannot be sent to this endpoint.
    """
    fields = _fields(data)
    if unknown := sorted(fields.keys() - _FIELDS):
        raise InvalidLine("unknown_field", f"The field {unknown[0][:100]!r} is unknown.", unknown[0][:100])
    custom_id = _value(fields, "custom_id")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID or "\0" in custom_id:
        raise InvalidLine(
            "invalid_custom_id", f"custom_id must be a text of 1 to {MAX_CUSTOM_ID} characters.", "custom_id"
        )
    if _value(fields, "method") != "POST":
        raise InvalidLine("invalid_method", "method must be POST.", "method")
    if _value(fields, "url") != endpoint:
        raise InvalidLine("mismatched_endpoint", f"url must be the endpoint of the batch, {endpoint}.", "url")
    if "body" in fields and is_too_deep(bytes(fields["body"])):
        raise InvalidLine("invalid_body", "body is nested too deeply.", "body")
    _check_body(_value(fields, "body"), endpoint)
    return InputLine(custom_id, bytes(fields["body"]))


def _check_body(body: Any, endpoint: str) -> None:
    if not isinstance(body, dict):
        raise InvalidLine("invalid_body", "body must be an object.", "body")
    named = not endpoint.startswith("/v2/")
    if named and not (isinstance(body.get("model"), str) and body["model"]):
        raise InvalidLine("missing_model", "body.model must name a model.", "body.model")
    if body.get("stream") not in (None, False):
        raise InvalidLine(
            "stream_not_supported", "body.stream must be false: a batch has whole responses.", "body.stream"
        )


def _fields(data: bytes) -> Mapping[str, msgspec.Raw]:
    try:
        return _LINE.decode(data)
    except RecursionError:
        raise InvalidLine("invalid_json_line", "This line is nested too deeply.") from None
    except _UNREADABLE:
        raise InvalidLine("invalid_json_line", "This line is no JSON object.") from None


def _value(fields: Mapping[str, msgspec.Raw], name: str) -> Any:
    if name not in fields:
        raise InvalidLine("missing_field", f"{name} is missing.", name)
    try:
        found = _ANY.decode(fields[name])
        if isinstance(found, str):
            found.encode()  # lone surrogates are no text that a database takes
        return found
    except (*_UNREADABLE, UnicodeEncodeError):
        raise InvalidLine("invalid_json_line", f"{name} is no valid JSON.", name) from None
