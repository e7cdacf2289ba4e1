"""Bodies in JSON whose shape is known: read by types, which skip what they do not have and make no objects of it."""

import re
from typing import TypeVar

import msgspec

from slipway_process import json_bounds
from slipway_process.byte_order_mark import without_mark
from slipway_process.serving.errors import HttpError, invalid

T = TypeVar("T")
_FIELD = re.compile(r"(?:required|unknown) field `([^`]{1,100})")
_PATH = re.compile(r"`\$\.?([^`\[.]{1,100})")


def read(body: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
    """The body as the decoder's type, which has no field of any type but `msgspec.Raw`.

    Raises:
        HttpError: it is no JSON, or of another type; `param` is its field.
    """
    try:
        return decoder.decode(without_mark(body))
    except RecursionError:
        raise invalid("The body is nested too deeply.") from None
    except msgspec.ValidationError as error:
        found = _PATH.search(str(error)) or _FIELD.search(str(error))
        raise HttpError(400, f"{error}.", param=found[1] if found else None) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise invalid(f"The body is not JSON: {error}.") from None


def counted(body: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
    """As `read`, for a type with lists, whose items are counted before. Raises HttpError for too many of them."""
    try:
        json_bounds.check(body)
    except json_bounds.TooManyValues as error:
        raise invalid(f"The body {error}.") from None
    return read(body, decoder)
