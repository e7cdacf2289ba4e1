"""Imposes defaults and caps of ModelRoutes on the sampling of a request (pure)."""

from collections.abc import Collection, Iterator
from typing import Any

import msgspec
from msgspec import Raw

from slipway_contracts.model_routes.spec import RouteSampling

from . import members
from .json_values import ABSENT, is_null

Value = int | float
# The fields of each path, by their names in a ModelRoute's spec. The first one is written where a request has none.
_TEXT: dict[str, tuple[str, ...]] = {
    "temperature": ("temperature",),
    "top_p": ("top_p",),
    "top_k": ("top_k",),
    "frequency_penalty": ("frequency_penalty",),
    "presence_penalty": ("presence_penalty",),
    "max_tokens": ("max_tokens",),
    "choices": ("n",),
}
_OF_PATHS: dict[str, dict[str, tuple[str, ...]]] = {
    "/v1/chat/completions": {**_TEXT, "max_tokens": ("max_tokens", "max_completion_tokens")},
    "/v1/responses": {
        "temperature": ("temperature",),
        "top_p": ("top_p",),
        "max_tokens": ("max_output_tokens",),
    },
}
# Of these some engines take a number that is not positive for no limit.
_POSITIVE = frozenset({"max_tokens", "top_k", "choices"})
_LONGEST_NUMBER = 40
_FIELDS = tuple(
    dict.fromkeys(name for fields in (_TEXT, *_OF_PATHS.values()) for names in fields.values() for name in names)
)
_DECODER: "msgspec.json.Decoder[Any]" = msgspec.json.Decoder(
    msgspec.defstruct("SamplingFields", [(name, Raw, ABSENT) for name in _FIELDS])
)


def impose(body: bytes, path: str, sampling: Collection[RouteSampling]) -> bytes:
    """The body with what ModelRoutes impose; the same object where that changes nothing.

    `body`: a JSON object. `sampling`: of the ModelRoutes that the request passed. Of two defaults the first one counts,
    of two caps the lower one. A short value that is no number stays: its server refuses it.
    """
    imposed = {name: _imposed(name, sampling) for name in _TEXT}
    if all(default is None and cap is None for default, cap in imposed.values()):
        return body
    fields, added = _DECODER.decode(body), []
    for name, written in _OF_PATHS.get(path, _TEXT).items():
        default, cap = imposed[name]
        present = [field for field in written if not is_null(getattr(fields, field))]
        for field in present:
            before = getattr(fields, field)
            if cap is not None and _exceeds(name, before, cap):
                body = members.with_member(body, field.encode(), _encoded(cap), bytes(before))
        value = _least(default, cap)
        if not present and value is not None:
            added.append((written[0], value))
    if added:
        more = ",".join(f'"{field}":{_encoded(value).decode()}' for field, value in added)
        body = b"".join(members.appended(body, more.encode()))
    return body


def _imposed(name: str, sampling: Collection[RouteSampling]) -> tuple[Value | None, Value | None]:
    """Default and cap of a field."""
    default = next(_values(name, (one.defaults for one in sampling)), None)
    return default, min(_values(name, (one.caps for one in sampling)), default=None)


def _values(name: str, parts: Any) -> Iterator[Value]:
    found = (getattr(part, name, None) for part in parts)
    return (value for value in found if value is not None)


def _least(default: Value | None, cap: Value | None) -> Value | None:
    given = [value for value in (default, cap) if value is not None]
    return min(given, default=None)


def _exceeds(name: str, written: Raw, cap: Value) -> bool:
    """Whether a number is above a cap, also one that is written as a text: some servers convert it."""
    if len(written) > _LONGEST_NUMBER:
        return True  # no program writes such a number
    try:
        number = float(bytes(written).strip(b'" \t\r\n'))
    except ValueError:
        return False
    return not number <= cap or (name in _POSITIVE and number <= 0)


def _encoded(value: Value) -> bytes:
    return msgspec.json.encode(value)
