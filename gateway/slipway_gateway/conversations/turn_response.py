"""The response to a turn, as its client gets it, of the one that a server wrote: whole, or as events (pure).

A server stores nothing and knows no earlier response, so that `store`, `previous_response_id` and `conversation` of the
response are written here. Events without a response in them pass as they are.
"""

import re
from dataclasses import dataclass, field

import msgspec
from msgspec import Raw

from slipway_contracts.conversations import DROPPED_ITEMS, MOVED_FROM
from slipway_process import json_bounds
from slipway_process.response_items import ID

from ..wire.json_values import ABSENT, UNREADABLE, is_null, is_object, text_of
from ..wire.sse import KEEP_ALIVE
from .turn_request import TurnRequest

# Of a whole response, and of one event of a stream: one that is longer is passed on and not stored.
MAX_RESPONSE_BYTES = 4 << 20
FINAL = ("response.completed", "response.incomplete")
_WITH_RESPONSE = ("response.created", "response.queued", "response.in_progress", "response.failed", *FINAL)
_MAY_BE = re.compile(rb'"type"\s*:\s*"response\.(?:created|queued|in_progress|failed|completed|incomplete)"')
_EVENT_END = re.compile(rb"\r?\n\r?\n")
_DATA = re.compile(rb"^data:[ ]?(.*)$", re.MULTILINE)
_STORED_STATUSES = ("completed", "incomplete")
_MEMBERS = msgspec.json.Decoder(dict[str, Raw])
_OUTPUT = msgspec.json.Decoder(list[Raw])
MAX_OUTPUT_ITEMS = 1024
MAX_VALUES = 1 << 18  # of a response with the log probabilities of some thousand tokens


@dataclass(frozen=True, slots=True)
class WrittenResponse:
    """OpenAI's object as a server wrote it; `output` apart from the other members."""

    id: str
    status: str
    members: dict[str, Raw]
    output: list[Raw]

    @property
    def is_storable(self) -> bool:
        """Whether it is at its end, and has an id."""
        return self.status in _STORED_STATUSES and ID.fullmatch(self.id) is not None


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream, with the bytes that end it. `response`: the one in it; None: it passes as it is."""

    data: bytes
    kind: str = ""
    response: WrittenResponse | None = None
    members: dict[str, Raw] = field(default_factory=dict)

    def with_response(self, response: bytes) -> bytes:
        """The event with another response in it; lines that are no data keep their bytes."""
        data = b"data: " + msgspec.json.encode(self.members | {"response": Raw(response)})
        lines = _DATA.split(self.data, maxsplit=1)
        return lines[0] + data + lines[2]


@dataclass(frozen=True, slots=True)
class TurnView:
    """What a client learns about a turn. `moved_from`: where the turn before it was answered, if elsewhere."""

    request: TurnRequest
    moved_from: str = ""

    def shown(self, response: WrittenResponse, *, stored: bool) -> dict[str, Raw]:
        """The members of the response for the client, without `output`."""
        request, members = self.request, dict(response.members)
        members["store"] = Raw(b"true" if stored else b"false")
        members["previous_response_id"] = _raw(request.previous_response_id or None)
        members["conversation"] = _raw({"id": request.conversation} if request.conversation else None)
        if request.truncates:
            members["truncation"] = _raw("auto")
        notes: dict[str, str] = {MOVED_FROM: self.moved_from} if self.moved_from else {}
        notes |= {DROPPED_ITEMS: str(request.dropped)} if request.dropped else {}
        if notes:
            given = members.get("metadata", ABSENT)
            own = _MEMBERS.decode(given) if is_object(given) else {}
            members["metadata"] = _raw(own | notes)
        return members

    def encoded(self, response: WrittenResponse, *, stored: bool) -> bytes:
        """The response for the client, as JSON."""
        return msgspec.json.encode(self.shown(response, stored=stored) | {"output": response.output})

    def encoded_without_output(self, response: WrittenResponse) -> bytes:
        """The response as it is stored."""
        return msgspec.json.encode(self.shown(response, stored=True))


class EventReader:
    """Cuts a stream into events, and reads those with a response in them."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._searched = 0  # bytes of it in which no event ends
        self.passes = False  # an event was too long: what follows passes as it is

    @property
    def held_bytes(self) -> int:
        """Bytes of an event that is not whole yet."""
        return len(self._held)

    def feed(self, chunk: bytes) -> list[Event]:
        """The whole events of a stream so far, which may be cut anywhere; lines that keep it alive are events too."""
        held = self._held
        if self.passes:
            return [Event(chunk)]
        held += chunk
        events, begin = list[Event](), 0
        search = self._searched
        while True:
            while held.startswith(KEEP_ALIVE, begin) and not held.startswith(KEEP_ALIVE + b"\n", begin):
                events.append(Event(KEEP_ALIVE))
                begin += len(KEEP_ALIVE)
            if (end := _EVENT_END.search(held, max(begin, search))) is None:
                break
            events.append(_event(bytes(held[begin : end.end()])))
            begin = end.end()
        del held[:begin]
        self._searched = max(0, len(held) - 3)  # an end has four bytes at most
        if len(held) > MAX_RESPONSE_BYTES:
            events.append(self.give_up())
        return events

    def give_up(self) -> Event:
        """Reads no more events: what is held, and all that follows, passes as it is."""
        self.passes = True
        return Event(self.rest())

    def rest(self) -> bytes:
        """What is left at the end of a stream."""
        rest = bytes(self._held)
        self._held.clear()
        self._searched = 0
        return rest


def written_response(body: bytes | Raw) -> WrittenResponse | None:
    """The response of a server; None where it is none."""
    try:
        members = _members(body)
        output = members.pop("output", Raw(b"[]"))
        items = [] if is_null(output) else _OUTPUT.decode(output)
    except (*UNREADABLE, json_bounds.TooManyValues):
        return None
    if len(items) > MAX_OUTPUT_ITEMS or not all(map(is_object, items)):
        return None
    own_id, status = text_of(members.get("id", ABSENT)), text_of(members.get("status", ABSENT))
    return WrittenResponse(own_id or "", status or "", members, items)


def _members(text: bytes | Raw) -> dict[str, Raw]:
    """Raises TooManyValues before they are made, for a server is a stranger, or one of UNREADABLE."""
    json_bounds.check(bytes(text), MAX_VALUES, MAX_VALUES)
    return _MEMBERS.decode(text)


def _event(data: bytes) -> Event:
    if not _MAY_BE.search(data) or len(data) > MAX_RESPONSE_BYTES:
        return Event(data)
    parts = _DATA.findall(data)
    try:
        members = _members(parts[0]) if len(parts) == 1 else {}
    except (*UNREADABLE, json_bounds.TooManyValues):
        members = {}
    kind = text_of(members.get("type", ABSENT)) or ""
    response = written_response(members["response"]) if kind in _WITH_RESPONSE and "response" in members else None
    return Event(data, kind, response, members)


def _raw(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))
