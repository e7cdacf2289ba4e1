"""Sets members of a JSON object in its bytes: nothing else of it is read or written again (pure).

Of members with one name the last counts, for this gateway as for the servers behind it (msgspec, Python's json,
pydantic). So a member at the end takes the place of all others of its name.
"""

import re

from msgspec import Raw

_EMPTY = re.compile(rb"\s*\{\s*\}")
_COLON = re.compile(rb"\s*:\s*")
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
    at = _only_value(body, name) if written else -1
    if at < 0 or not body.startswith(written, at):
        return b"".join(appended(body, b'"%b":%b' % (name, value)))
    seen = memoryview(body)
    return b"".join((seen[:at], value, seen[at + len(written) :]))


def _only_value(body: bytes, name: bytes) -> int:
    """Where the value of the only member of this name begins, at any depth; -1 where there may be several."""
    key = b'"%b"' % name
    at = body.find(key)
    if at < 0 or body.find(key, at + 1) >= 0 or _ESCAPED_LETTER.search(body):
        return -1
    colon = _COLON.match(body, at + len(key))
    return colon.end() if colon else -1
