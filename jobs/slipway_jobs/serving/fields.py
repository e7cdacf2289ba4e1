"""Reads the JSON body and the query of a request, with errors that name the field."""

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from aiohttp import web

from ..input_line import is_endpoint, is_too_deep
from .refusal import JobsRefusal, invalid

BODY_DIGEST: web.RequestKey[bytes] = web.RequestKey("body_digest", bytes)  # set by `body_of`
MAX_BODY_BYTES = 16 << 20
_MAX_LIMIT = 100
_MAX_METADATA, _MAX_METADATA_KEY, _MAX_METADATA_VALUE = 16, 64, 512
_EXPIRES_S = (3600, 2_592_000)

Fields = Mapping[str, Any]


async def body_of(request: web.Request, known: Collection[str], limit_bytes: int = MAX_BODY_BYTES) -> Fields:
    """Reads the JSON body of a request, and sets the request's `BODY_DIGEST` (SHA-256).

    Raises:
        JobsRefusal: the body is too long, no JSON object, or has a field that is not `known`.
    """
    data = bytearray()
    async for chunk in request.content.iter_any():
        data += chunk
        if len(data) > limit_bytes:
            raise JobsRefusal(413, "request_too_large", f"The request body exceeds {limit_bytes} bytes.")
    request[BODY_DIGEST] = hashlib.sha256(data).digest()
    if is_too_deep(data):
        raise JobsRefusal(400, "invalid_json", "The body is nested too deeply.")
    try:
        fields = msgspec.json.decode(data)
        bytes(data).decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise JobsRefusal(400, "invalid_json", "The body is no valid JSON.") from None
    if not isinstance(fields, dict):
        raise JobsRefusal(400, "invalid_json", "The body must be a JSON object.")
    for name in fields:
        if name not in known:
            raise invalid(name[:100], f"The field {name[:100]!r} is unknown.", "unknown_field")
    return fields


def text_of(fields: Fields, name: str, limit: int = 600) -> str:
    """
    Raises:
        JobsRefusal: it is missing, empty, no text, or too long.
    """
    value = fields.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= limit or not is_storable(value):
        raise invalid(name, f"{name} must be a text of 1 to {limit} characters.")
    return value


def is_storable(text: str) -> bool:
    """Whether a database can store a text: it has no NUL and no lone surrogate."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


def endpoint_of(fields: Fields) -> str:
    endpoint = text_of(fields, "endpoint")
    if not is_endpoint(endpoint):
        raise invalid("endpoint", f"endpoint {endpoint[:100]!r} is none that takes batches.")
    return endpoint


def metadata_of(fields: Fields) -> str | None:
    """The field `metadata` as JSON; None without one. Raises JobsRefusal."""
    given = fields.get("metadata")
    if given is None:
        return None
    if not isinstance(given, dict) or len(given) > _MAX_METADATA:
        raise invalid("metadata", f"metadata must be an object of at most {_MAX_METADATA} texts.")
    for key, value in given.items():
        fits = isinstance(value, str) and len(key) <= _MAX_METADATA_KEY and len(value) <= _MAX_METADATA_VALUE
        if not fits or not is_storable(key + value):
            message = f"keys have at most {_MAX_METADATA_KEY} characters, values are texts of {_MAX_METADATA_VALUE}."
            raise invalid("metadata", f"metadata: {message}")
    return msgspec.json.encode(given).decode()


def expires_of(given: Any, param: str, retention_s: float) -> float | None:
    """The seconds in `{anchor: created_at, seconds: N}`; None if it is not given.

    Raises:
        JobsRefusal: it is invalid, or longer than `retention_s`, after which everything is deleted.
    """
    if given is None:
        return None
    if not isinstance(given, dict) or given.keys() != {"anchor", "seconds"} or given["anchor"] != "created_at":
        raise invalid(param, f"{param} must be an object with anchor: created_at and seconds.")
    seconds, least, most = given["seconds"], _EXPIRES_S[0], min(_EXPIRES_S[1], int(retention_s))
    if most < least:
        raise invalid(param, f"Files are kept for {most} s here: leave {param} out.")
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not least <= seconds <= most:
        raise invalid(f"{param}.seconds", f"{param}.seconds must be a number from {least} to {most}.")
    return float(seconds)


def page_of(request: web.Request, default: int = 20) -> tuple[int, str]:
    """`limit` and `after` of the query; at most 100 objects come in a page. Raises JobsRefusal."""
    given, after = request.query.get("limit", str(default)), request.query.get("after", "")
    if not (given.isascii() and given.isdigit() and len(given) < 6 and 1 <= int(given) <= 10_000):
        raise invalid("limit", "limit must be a number from 1 to 10000.")
    if len(after) > 64 or not is_storable(after):
        raise invalid("after", "after must be the id of the last object of the page before.")
    return min(int(given), _MAX_LIMIT), after


def id_of(request: web.Request) -> str:
    """The id in the path; `-`, which no object has, in place of a text that can be no id."""
    found = request.match_info["id"]
    return found if len(found) <= 64 and is_storable(found) else "-"
