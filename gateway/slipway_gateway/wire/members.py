"""Sets and removes members of a JSON object in its bytes: nothing else of it is read or written again (pure).

Of members with one name the last counts, for this gateway as for the servers behind it (msgspec, Python's json,
pydantic). So a member at the end takes the place of all others of its name.
"""

import re
from functools import lru_cache
from itertools import islice

from msgspec import Raw

_EMPTY = re.compile(rb"\s*\{\s*\}")
_COMMA_BEHIND = re.compile(rb"\s*,")
# A letter or an underscore of a name may be written so. Programs write no such name, but `"mo\u0064el"` is one.
_ESCAPED_LETTER = re.compile(rb"\\u00[567]")


def appended(body: bytes, members: bytes) -> tuple[memoryview, bytes]:
    """An object with members at its end, in two parts. The first one is no copy.

    `body`: a JSON object. `members`: one or several, with commas between them.
    """
    comma = b"" if _EMPTY.match(body) else b","
    return memoryview(body)[: body.rindex(b"}")], comma + members + b"}"


def with_member(body: bytes, name: bytes, value: bytes, before: bytes | Raw = b"") -> bytes:
    """An object in which `name` has this value.

    `before`: the bytes of the value that counts now; empty without one. A name that is there once, and as it is usually
    written, keeps its place: some servers refuse a name that is there twice.
    """
    written = bytes(before)
    member = _only_member(body, name) if written else None
    if member is None or not body.startswith(written, member.end()):
        return b"".join(appended(body, b'"%b":%b' % (name, value)))
    seen = memoryview(body)
    return b"".join((seen[: member.end()], value, seen[member.end() + len(written) :]))


def without_member(body: bytes, name: bytes, value: bytes | Raw) -> bytes:
    """An object without `name`, whose value now is `value`. Where the name may be there several times, or is written in
    an unusual way, the object stays as it is."""
    member = _only_member(body, name)
    if member is None or not body.startswith(bytes(value), member.end()):
        return body
    end = member.end() + len(bytes(value))
    if comma := _COMMA_BEHIND.match(body, end):
        return body[: member.start()] + body[comma.end() :]
    return body[: member.start()].rstrip().removesuffix(b",") + body[end:]


def _only_member(body: bytes, name: bytes) -> re.Match[bytes] | None:
    """The name and the colon of the only member of this name, at any depth; None where there may be several."""
    members = list(islice(_member(name).finditer(body), 2))
    return None if len(members) != 1 or _ESCAPED_LETTER.search(body) else members[0]


@lru_cache
def _member(name: bytes) -> re.Pattern[bytes]:
    """A member's name up to its value. A quote inside of a text has a backslash, so that no text matches."""
    return re.compile(rb'"%b"\s*:\s*' % re.escape(name))
