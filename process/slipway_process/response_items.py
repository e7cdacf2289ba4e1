"""Items of OpenAI's Responses API as they are stored and sent again: in one form, whose bytes never change (pure).

A server gets an item of an earlier turn as the same bytes in each later turn, so that its prefix cache has the prompt
up to the new input. So an item is brought into this form before a model gets it for the first time.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

MAX_ITEMS = 1 << 12  # of one request
ROLES = ("user", "assistant", "system", "developer")
ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_TYPE = re.compile(r"[a-z0-9_]{1,64}")
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
}
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_MEMBERS = msgspec.json.Decoder(dict[str, Raw])
_LIST = msgspec.json.Decoder(list[Raw])
_TEXT = msgspec.json.Decoder(str)


class InvalidItem(ValueError):
    """An item that cannot be stored. `path`: of the value that is wrong, such as `input[3].role`."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path} {message}")
        self.path = path


def items_of(given: bytes | Raw, path: str, most: int = MAX_ITEMS) -> list[bytes]:
    """The items of an input, a text or a list of items, each in the form that is stored.

    `path`: the name of the field. The number of values in `given` must be bounded already (`json_bounds`).

    Raises:
        InvalidItem: it is neither, has more items than `most`, or an item is invalid.
    """
    text = _text(given)
    if text is not None:
        return [_encoded({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})]
    try:
        listed = _LIST.decode(given)
    except _UNREADABLE:
        raise InvalidItem(path, "must be a text or a list of items.") from None
    if len(listed) > most:
        raise InvalidItem(path, f"has {len(listed)} items; {most} is the limit.")
    return [stored_item(item, f"{path}[{place}]") for place, item in enumerate(listed)]


def stored_item(item: bytes | Raw, path: str) -> bytes:
    """One item in the form that is stored. Raises InvalidItem."""
    members = _members(item)
    if members is None:
        raise InvalidItem(path, "must be an object.")
    kind = _text(members.get("type", b'"message"'))
    if kind is None or not _TYPE.fullmatch(kind):
        raise InvalidItem(f"{path}.type", "must name the type of an item.")
    if kind == "item_reference":
        raise InvalidItem(path, "refers to a stored item: send the item itself, or name the conversation.")
    if (own_id := members.get("id")) is not None and bytes(own_id) != b"null" and item_id(item) is None:
        raise InvalidItem(f"{path}.id", "must have 1 to 64 letters, digits, or any of _ . : -")
    first: dict[str, Any] = {"type": kind}
    if kind == "message":
        first |= _message(members, path)
    rest = {name: value for name, value in members.items() if name not in first}
    return _encoded(first | rest)


def item_id(item: bytes | Raw) -> str | None:
    """The id that an item has; None without a valid one."""
    own_id = _text((_members(item) or {}).get("id", b"null"))
    return own_id if own_id is not None and ID.fullmatch(own_id) else None


def new_item_id(item: bytes, owner: str, n: int) -> str:
    """An id for an item without one: the `n`th item of what `owner` names, 1 to 40 characters."""
    kind = _text((_members(item) or {}).get("type", b"null")) or ""
    return f"{_PREFIXES.get(kind, 'item')}_{owner}{n:04x}"


def shown_item(item: bytes, own_id: str) -> Raw:
    """A stored item as OpenAI's API shows it: with its id, and with a status where it is a message or a call."""
    members: dict[str, Any] = {"id": own_id} | {k: v for k, v in (_members(item) or {}).items() if k != "id"}
    if _text(members.get("type", b"null")) in ("message", "function_call", "function_call_output"):
        members.setdefault("status", "completed")
    return Raw(_encoded(members))


def joined(items: Sequence[bytes | Raw]) -> bytes:
    """A JSON list of items; the bytes of each are kept."""
    return b"[" + b",".join(map(bytes, items)) + b"]"


def turns_within(items: Sequence[bytes], most_bytes: int) -> int:
    """How many of the oldest items to leave out, so that the rest has at most `most_bytes`.

    The rest begins with a message of a user or of the system: no result of a tool without its call, and no answer
    without its question. All items are left out where no such rest fits.
    """
    size, first = sum(map(len, items)), 0
    while first < len(items) and size > most_bytes:
        size -= len(items[first])
        first += 1
    return turn_begin(items, first) if first else 0


def turn_begin(items: Sequence[bytes], first: int = 0) -> int:
    """The place of the first item, from `first` on, that a context may begin with; behind all of them without one."""
    while first < len(items) and not _begins_turn(items[first]):
        first += 1
    return first


def _begins_turn(item: bytes) -> bool:
    members = _members(item) or {}
    return _text(members.get("type", b"null")) == "message" and _text(members.get("role", b"null")) != "assistant"


def _message(members: dict[str, Raw], path: str) -> dict[str, Any]:
    role = _text(members.get("role", b"null"))
    if role not in ROLES:
        raise InvalidItem(f"{path}.role", f"must be one of {', '.join(ROLES)}.")
    content = members.get("content", Raw(b"null"))
    if (text := _text(content)) is None:
        if not bytes(content).startswith(b"["):
            raise InvalidItem(f"{path}.content", "must be a text, or a list of parts.")
        return {"role": role, "content": content}
    part: dict[str, Any] = {"type": "input_text", "text": text}
    if role == "assistant":
        part = {"type": "output_text", "text": text, "annotations": []}
    return {"role": role, "content": [part]}


def _members(item: bytes | Raw) -> dict[str, Raw] | None:
    try:
        return _MEMBERS.decode(item)
    except _UNREADABLE:
        return None


def _text(value: bytes | Raw) -> str | None:
    if bytes(value[:1] if isinstance(value, bytes) else memoryview(value)[:1]) != b'"':
        return None
    try:
        return _TEXT.decode(value)
    except _UNREADABLE:
        return None


def _encoded(value: Any) -> bytes:
    return msgspec.json.encode(value)
