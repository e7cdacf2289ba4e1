"""Reads the JSON body and the query of a request, with errors that name the field."""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

import msgspec
from aiohttp import web

from slipway_process import json_bounds
from slipway_process.byte_order_mark import without_mark
from slipway_process.json_bounds import MAX_NUMBERS
from slipway_process.shares import Shares

from ..input_line import UNREADABLE, check_json, is_endpoint, unknown_field
from ..turns import LARGE_BODY_BYTES, let_others_run
from .refusal import JobsRefusal, invalid
from .tenancy import tenant_of

BODY_DIGEST: web.RequestKey[bytes] = web.RequestKey("body_digest", bytes)  # set by `body_of`
MAX_BODY_BYTES = 8 << 20
MAX_LARGE_BODIES = 16  # that are held at once, from their arrival until their answer: at most 128 MiB of them
LARGE_BODIES: web.AppKey[Shares] = web.AppKey("large_bodies", Shares)
_IS_LARGE: web.RequestKey[bool] = web.RequestKey("is_large", bool)
_MAX_SMALL_BYTES = 1024  # of a field whose value may have any type
_MAX_METADATA_BYTES = 128 << 10  # what 16 keys and values take if each character is escaped
_MAX_LIMIT = 100
_MAX_METADATA, _MAX_METADATA_KEY, _MAX_METADATA_VALUE = 16, 64, 512
_EXPIRES_S = (3600, 2_592_000)
_TEXT, _ANY = msgspec.json.Decoder(str), msgspec.json.Decoder[Any]()
_TEXTS, _LIST = msgspec.json.Decoder(dict[str, str]), msgspec.json.Decoder(list[msgspec.Raw])

# The fields of a body that are there and not null, as they were written.
Fields = Mapping[str, msgspec.Raw]


async def body_of(request: web.Request, known: tuple[str, ...], limit_bytes: int = MAX_BODY_BYTES) -> Fields:
    """Reads the JSON body of a request, and sets the request's `BODY_DIGEST` (SHA-256).

    Raises:
        JobsRefusal: the body is too long, no JSON object, or has a field that is not `known`; or other large bodies of
            the tenant are held.
    """
    data = bytearray()
    async for chunk in request.content.iter_any():
        data += chunk
        if len(data) > limit_bytes:
            raise JobsRefusal(413, "request_too_large", f"The request body exceeds {limit_bytes} bytes.")
        if len(data) > LARGE_BODY_BYTES and _IS_LARGE not in request:
            _take_place(request)
    request[BODY_DIGEST] = hashlib.sha256(data).digest()
    await let_others_run(data)
    data = without_mark(data)
    try:
        check_json(data)
        await let_others_run(data)
        fields = _decoder(known).decode(data)
    except RecursionError:
        raise JobsRefusal(400, "invalid_json", "The body is nested too deeply.") from None
    except msgspec.ValidationError as error:
        if (name := unknown_field(error)) is None:
            raise JobsRefusal(400, "invalid_json", "The body must be a JSON object.") from None
        raise invalid(name, f"The field {name!r} is unknown.", "unknown_field") from None
    except UNREADABLE:
        raise JobsRefusal(400, "invalid_json", "The body is no valid JSON.") from None
    given = ((name, getattr(fields, name)) for name in known)
    return {name: value for name, value in given if bytes(value) not in (b"", b"null")}


def _take_place(request: web.Request) -> None:
    if not request.app[LARGE_BODIES].take(tenant_of(request)):
        message = f"Too many bodies of more than {LARGE_BODY_BYTES} bytes are received now."
        raise JobsRefusal(429, "too_many_bodies", message, retry_after_s=1)
    request[_IS_LARGE] = True


def end_body(request: web.Request) -> None:
    """Call it when a request has its answer."""
    if request.pop(_IS_LARGE, False):
        request.app[LARGE_BODIES].give_back(tenant_of(request))


@lru_cache(maxsize=16)
def _decoder(known: tuple[str, ...]) -> "msgspec.json.Decoder[Any]":
    """Of an object that has these fields alone."""
    fields = [(name, msgspec.Raw, msgspec.Raw()) for name in known]
    return msgspec.json.Decoder(msgspec.defstruct("Body", fields, forbid_unknown_fields=True))


def text_of(fields: Fields, name: str, limit: int = 512) -> str:
    """
    Raises:
        JobsRefusal: it is missing, empty, no text, or too long.
    """
    with suppress(*UNREADABLE):
        value = _TEXT.decode(fields.get(name, b"null"))
        if 0 < len(value) <= limit and is_storable(value):
            return value
    raise invalid(name, f"{name} must be a text of 1 to {limit} characters.")


def small_of(fields: Fields, name: str) -> Any:
    """The value of a field that is at most 1 KiB; None without one. Raises JobsRefusal for a longer one."""
    value = fields.get(name, b"null")
    if len(bytes(value)) > _MAX_SMALL_BYTES:
        raise invalid(name, f"{name} has more than {_MAX_SMALL_BYTES} bytes.")
    return _ANY.decode(value)


async def list_of(fields: Fields, name: str, most: int) -> list[msgspec.Raw]:
    """The items of a list of 1 to `most`, as they were written. Raises JobsRefusal."""
    data = bytes(fields.get(name, b"null"))
    await let_others_run(data)
    try:
        for _ in json_bounds.slices(data, max_objects=MAX_NUMBERS):
            await let_others_run(data)
        items = _LIST.decode(data)
    except json_bounds.TooManyValues as error:
        raise invalid(name, f"{name} {error}: upload a file instead.") from None
    except msgspec.ValidationError:
        items = []
    if not 1 <= len(items) <= most:
        raise invalid(name, f"{name} must be a list of 1 to {most} {name}.")
    return items


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
    if "metadata" not in fields:
        return None
    data, given = bytes(fields["metadata"]), None
    with suppress(msgspec.ValidationError):
        given = _TEXTS.decode(data) if len(data) <= _MAX_METADATA_BYTES else None
    if given is None or len(given) > _MAX_METADATA:
        raise invalid("metadata", f"metadata must be an object of at most {_MAX_METADATA} texts.")
    for key, value in given.items():
        fits = len(key) <= _MAX_METADATA_KEY and len(value) <= _MAX_METADATA_VALUE
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
