"""Reads the messages that clients of WebSocket send: a request, the resume of a stream, a cancel (pure).

A request is the body of `/v1/generate`, whose fields its server checks. Those that the gateway takes out of it are
`type`, `id`, `resumable` and `last_event_id`; `stream` is implied.
"""

import re

import msgspec
from msgspec import Raw, Struct

from slipway_process import json_bounds

from ..wire.errors import RequestError, invalid
from ..wire.json_values import UNREADABLE, integer_of, is_null, is_true, text_of

GENERATE, RESUME, CANCEL = "generate", "resume", "cancel"
_TYPES = (GENERATE, RESUME, CANCEL)
# As that of the header X-Request-Id, which it becomes.
_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_MAX_POSITION = 10**9
_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_OF_RESUME = {"type", "id", "from", "resumable"}
_OF_CANCEL = {"type", "id"}


class Generate(Struct, frozen=True):
    """A request. `id`: empty where the client chose none. `body`: for `/v1/generate`.

    `resumable`: the client comes back after a broken connection, and its server goes on meanwhile. `last_event_id`: the
    last event that the client has of the stream, which another gateway may have sent; empty for a new one.
    """

    id: str
    body: bytes
    resumable: bool = False
    last_event_id: str = ""


class Resume(Struct, frozen=True):
    """The rest of the stream of that id behind the event at this position; 0: all of it."""

    id: str
    position: int
    resumable: bool = False


class Cancel(Struct, frozen=True):
    """The end of the request of that id."""

    id: str


class MessageError(Exception):
    """A message that is refused. `id`: of the request that it names, empty where it names none that can be read."""

    def __init__(self, refusal: RequestError, id_: str = "") -> None:
        super().__init__(str(refusal))
        self.refusal, self.id = refusal, id_


def parse(message: bytes) -> Generate | Resume | Cancel:
    """Raises MessageError."""
    members, id_ = _members_of(message), ""
    try:
        id_ = _id(members)
        return _read(id_, members)
    except RequestError as refusal:
        raise MessageError(refusal, id_) from None


def check_id(id_: str) -> None:
    """Raises RequestError 400: it is no id that a client may choose."""
    if not _ID.fullmatch(id_):
        raise invalid("invalid_value", "`id` has up to 128 letters, digits and characters of ._:/+=-", param="id")


def _id(members: dict[str, Raw]) -> str:
    id_ = _text(members, "id")
    if id_:
        check_id(id_)
    return id_


def _read(id_: str, members: dict[str, Raw]) -> Generate | Resume | Cancel:
    kind = _text(members, "type") or GENERATE
    if kind == GENERATE:
        return _generate(id_, members)
    if kind not in _TYPES:
        raise invalid("invalid_value", f"`type` is one of {', '.join(_TYPES)}.", param="type")
    _check_names(members, _OF_RESUME if kind == RESUME else _OF_CANCEL, kind)
    if not id_:
        raise invalid("missing_required_parameter", f"A message of type {kind} needs `id`.", param="id")
    return Cancel(id_) if kind == CANCEL else Resume(id_, _position(members), _flag(members, "resumable"))


def _members_of(message: bytes) -> dict[str, Raw]:
    try:
        json_bounds.check(message)
        return _OBJECT.decode(message)
    except json_bounds.TooManyValues as error:
        raise MessageError(invalid("invalid_json", f"The message {error}.")) from None
    except msgspec.ValidationError:
        raise MessageError(invalid("invalid_json", "A message is a JSON object.")) from None
    except UNREADABLE as error:
        raise MessageError(invalid("invalid_json", f"The message is not valid JSON: {error}.")) from None


def _generate(id_: str, members: dict[str, Raw]) -> Generate:
    if not (is_null(members.get("stream", Raw())) or is_true(members["stream"])):
        raise invalid("invalid_value", "`stream` is true here, or left out.", param="stream")
    resumable, last_event_id = _flag(members, "resumable"), _text(members, "last_event_id")
    for name in ("type", "id", "resumable", "last_event_id", "stream"):
        members.pop(name, None)
    parts = [msgspec.json.encode(name) + b":" + bytes(value) for name, value in members.items()]
    return Generate(id_, b"{" + b",".join([*parts, b'"stream":true']) + b"}", resumable, last_event_id)


def _check_names(members: dict[str, Raw], known: set[str], kind: str) -> None:
    if unknown := sorted(members.keys() - known):
        name = unknown[0][:64]
        raise invalid("unknown_parameter", f"A message of type {kind} has no field `{name}`.", param=name)


def _text(members: dict[str, Raw], name: str) -> str:
    value = members.get(name, Raw())
    if is_null(value):
        return ""
    text = text_of(value)
    if text is None:
        raise invalid("invalid_type", f"`{name}` is a text.", param=name)
    return text


def _flag(members: dict[str, Raw], name: str) -> bool:
    value = members.get(name, Raw())
    if is_null(value) or bytes(value) == b"false":
        return False
    if not is_true(value):
        raise invalid("invalid_type", f"`{name}` is true or false.", param=name)
    return True


def _position(members: dict[str, Raw]) -> int:
    position = integer_of(members.get("from", Raw()))
    if position is None or not 0 <= position < _MAX_POSITION:
        text = "`from` is the `position` of the last message that the client has, or 0."
        raise invalid("invalid_type", text, param="from")
    return position
