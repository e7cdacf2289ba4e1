"""Bodies of requests: read within a time, decoded, checked, and refused by the name of the field. JSON answers."""

import asyncio
import re
from typing import Annotated, Any, TypeVar

import msgspec
from aiohttp import web
from msgspec import Meta, Struct

from slipway_process import json_bounds
from slipway_process.byte_order_mark import without_mark
from slipway_process.serving.errors import HttpError, invalid
from slipway_process.serving.nulls import drop_nulls

BODY_S = 120.0  # for a whole body
BODY_IDLE_S = 30.0  # longest pause between two pieces of a body

# Of a user or a session. The gateway reads them: requests with the same one reach the same revision.
CallerName = Annotated[str, Meta(max_length=1 << 16, description="the gateway keeps its requests at one revision")]
ModelName = Annotated[str, Meta(max_length=512)]

S = TypeVar("S", bound=Struct)
_encoder = msgspec.json.Encoder()


async def body_of(http: web.Request) -> bytes:
    """The body, which must come without long pauses. Raises HttpError 408 when it does not."""
    try:
        # Most bodies came with their head, and need no timer.
        first = http.content.read_nowait() if http.content.is_eof() else b""
        _check_size(http, len(first))
        return first if http.content.at_eof() else await _rest(http, first)
    except TimeoutError:
        raise HttpError(408, "The body of the request did not come in time.", code="body_timeout") from None
    except web.RequestPayloadError:
        raise invalid("The body of the request is not encoded as its headers declare.") from None


async def _rest(http: web.Request, first: bytes) -> bytes:
    pieces, size = [first], len(first)
    async with asyncio.timeout(BODY_S):
        while not http.content.at_eof():
            async with asyncio.timeout(BODY_IDLE_S):
                piece = await http.content.readany()
            pieces.append(piece)
            size += len(piece)
            _check_size(http, size)
    return b"".join(pieces)


def _check_size(http: web.Request, size: int) -> None:
    if size > http.client_max_size:
        raise web.HTTPRequestEntityTooLarge(max_size=http.client_max_size, actual_size=size)


def decoded(body: bytes) -> dict[str, Any]:
    """The body as a JSON object. Of a name that occurs twice the last value counts, here as in the gateway."""
    try:
        json_bounds.check(body)
        fields = msgspec.json.decode(without_mark(body))
    except json_bounds.TooManyValues as error:
        raise invalid(f"The body {error}.") from None
    except RecursionError:
        raise invalid("The body is nested too deeply.") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise invalid(f"The body is not JSON: {error}.") from None
    if not isinstance(fields, dict):
        raise invalid("The body must be a JSON object.")
    return fields


def checked(fields: dict[str, Any], kind: type[S]) -> S:
    """A body as `kind`. Optional fields that are null are removed from `fields`."""
    drop_nulls(fields, kind)
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise _naming(str(error)) from None


def json_response(body: Any) -> web.Response:
    return web.Response(body=_encoder.encode(body), content_type="application/json")


def _naming(message: str) -> HttpError:
    """msgspec reports "Expected `int`, got `str` - at `$.max_tokens`"; clients also need the name of the field."""
    quoted = re.search(r"(?:required|unknown) field `([^`]+)`", message)
    path = re.search(r"`\$\.?([^`\[.]*)", message)
    param = (path.group(1) if path else "") or (quoted.group(1) if quoted else "") or None
    return invalid(f"{message}.", param)
