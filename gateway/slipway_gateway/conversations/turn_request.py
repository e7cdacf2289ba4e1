"""A request to `/v1/responses` that stores or continues something, and the body that a server gets for it (pure)."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec
from msgspec import Raw

from slipway_contracts.conversations import CONTEXT_TOO_LONG, PREVIOUS_NOT_FOUND
from slipway_process.response_items import ID, InvalidItem, items_of, joined, turns_within

from ..wire import errors, resume
from ..wire.json_values import ABSENT, UNREADABLE, is_null, is_object, text_of

IDEMPOTENCY_KEY = "Idempotency-Key"
# Of what is sent again after the server refused it as too long, as a part of what was sent before.
KEPT_PART = 0.6
_GATEWAYS = ("previous_response_id", "conversation", "store", "input")
_MAX_KEY = 255
_MEMBERS = msgspec.json.Decoder(dict[str, Raw])


class _Fields(msgspec.Struct):
    """What decides whether a request stores or continues something."""

    store: Raw = ABSENT
    previous_response_id: Raw = ABSENT
    conversation: Raw = ABSENT
    truncation: Raw = ABSENT
    input: Raw = ABSENT


class _Conversation(msgspec.Struct):
    id: Raw = ABSENT


_FIELDS, _CONVERSATION = msgspec.json.Decoder(_Fields), msgspec.json.Decoder(_Conversation)


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """`items`: of the input, in the form that is stored. `key`: hash of the idempotency key. `attempt`: id of a
    response of the same request whose stream the client takes up. `members`: the body, as the client wrote it.
    `context`: the items before. `dropped`: how many older ones are left out."""

    members: Mapping[str, Raw]
    items: list[bytes]
    stores: bool
    previous_response_id: str = ""
    conversation: str = ""
    truncates: bool = False
    key: str = ""
    attempt: str = ""
    context: list[bytes] = field(default_factory=list)
    dropped: int = 0

    @property
    def continues(self) -> bool:
        """Whether there are earlier items."""
        return bool(self.previous_response_id or self.conversation)

    def body(self) -> bytes:
        """The body for a server, which stores nothing: the same bytes for the same items, in each turn."""
        members = {name: value for name, value in self.members.items() if name not in _GATEWAYS}
        if self.truncates:
            del members["truncation"]  # what is left out is decided here
        given = {"store": Raw(b"false"), "input": Raw(joined([*self.context, *self.items]))}
        return msgspec.json.encode(members | given)

    def with_context(self, items: list[bytes], dropped: int) -> "TurnRequest":
        """The request with these earlier items. `dropped`: how many older ones are left out."""
        return replace(self, context=items, dropped=dropped)

    def shortened(self) -> "TurnRequest | None":
        """The request with fewer of the oldest items, whole turns of them; None where no earlier item is left."""
        if not self.context:
            return None
        most_bytes = int(sum(map(len, self.context)) * KEPT_PART)
        first = max(1, turns_within(self.context, most_bytes))
        return replace(self, context=self.context[first:], dropped=self.dropped + first)


def is_plain(body: bytes, *, stores_by_default: bool) -> bool:
    """Whether a request stores and continues nothing. A body that is no JSON object is plain: others refuse it."""
    fields = _fields(body)
    if fields is None:
        return True
    if not (is_null(fields.previous_response_id) and is_null(fields.conversation)):
        return False
    return not stores_by_default if is_null(fields.store) else bytes(fields.store) == b"false"


def read(body: bytes, headers: Mapping[str, str], *, stores_by_default: bool) -> TurnRequest:
    """The request of a body that is not plain. The number of values in it must be bounded already.

    Raises:
        RequestError: 400 or 404, which names the field that is wrong.
    """
    fields, members = _fields(body) or _Fields(), _MEMBERS.decode(body)
    if not is_null(fields.store) and bytes(fields.store) not in (b"true", b"false"):
        raise errors.invalid("invalid_type", "store must be true or false.", param="store")
    previous, conversation = _previous(fields), _conversation(fields)
    if previous and conversation:
        message = "conversation and previous_response_id cannot be together: send one of them."
        raise errors.invalid("mutually_exclusive_parameters", message, param="previous_response_id")
    truncation = text_of(fields.truncation)
    if not is_null(fields.truncation) and truncation not in ("auto", "disabled"):
        raise errors.invalid("invalid_value", "truncation must be auto or disabled.", param="truncation")
    if is_null(fields.input):
        raise errors.invalid("missing_required_parameter", "You must provide an input.", param="input")
    try:
        items = items_of(fields.input, "input")
    except InvalidItem as error:
        raise errors.invalid("invalid_value", str(error), param=error.path) from None
    return TurnRequest(
        members,
        items,
        stores_by_default if is_null(fields.store) else bytes(fields.store) == b"true",
        previous,
        conversation,
        truncation == "auto",
        _key_of(headers),
        _attempt_of(headers),
    )


def too_long() -> errors.RequestError:
    message = "The input and the earlier items are longer than the context of this model: set truncation to auto."
    return errors.invalid(CONTEXT_TOO_LONG, message, param="input")


def _fields(body: bytes) -> _Fields | None:
    try:
        return _FIELDS.decode(body)
    except UNREADABLE:
        return None


def _previous(fields: _Fields) -> str:
    if is_null(fields.previous_response_id):
        return ""
    previous = text_of(fields.previous_response_id)
    if previous is None:
        raise errors.invalid("invalid_type", "previous_response_id must be a text.", param="previous_response_id")
    if not ID.fullmatch(previous):
        message = f"Previous response with id {previous[:64]!r} not found."
        raise errors.invalid(PREVIOUS_NOT_FOUND, message, status=404, param="previous_response_id")
    return previous


def _conversation(fields: _Fields) -> str:
    given = fields.conversation
    if is_null(given):
        return ""
    try:
        name = text_of(_CONVERSATION.decode(given).id if is_object(given) else given)
    except UNREADABLE:
        name = None
    if name is None:
        message = "conversation must be the id of a conversation, or an object with it."
        raise errors.invalid("invalid_type", message, param="conversation")
    if not ID.fullmatch(name):
        message = f"Conversation with id {name[:64]!r} not found."
        raise errors.invalid("conversation_not_found", message, status=404, param="conversation")
    return name


def _key_of(headers: Mapping[str, str]) -> str:
    key = headers.get(IDEMPOTENCY_KEY, "")
    if len(key) > _MAX_KEY:
        message = f"{IDEMPOTENCY_KEY} has at most {_MAX_KEY} characters."
        raise errors.invalid("invalid_value", message, param=IDEMPOTENCY_KEY)
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest() if key else ""


def _attempt_of(headers: Mapping[str, str]) -> str:
    """The id of the response whose stream a client takes up: slipway-server makes both of one id."""
    place = resume.place(headers.get(resume.LAST_EVENT_ID, ""))
    return f"resp_{place.stream.rpartition('-')[2]}" if place else ""
