"""A response as it is kept, and how a copy of it looks to another client (pure)."""

import re
from collections.abc import Iterable

import msgspec
from multidict import CIMultiDict, MultiMapping, istr

from slipway_contracts.headers import CACHE, REVISION

from ..quotas.usage import Usage
from ..wire.headers import REQUEST_ID, to_client
from .directives import names_of

# Headers that say how a body or a response is written.
FORMATS = tuple(map(istr, ("Accept", "Content-Type", "Content-Encoding", "Inference-Header-Content-Length")))
# What CPython takes for an entry, and for a header, beside their bytes: see tests/gateway/caching/test_stores.py.
ENTRY_BYTES, HEADER_BYTES = 1024, 160
# Headers of a response that are of one moment or one client.
_OF_MOMENT = ("date", "age", "expires", "connection", CACHE.lower(), REVISION.lower(), REQUEST_ID.lower())
# Of a request: they are part of its key, or change nothing here.
_VARYING = frozenset(name.lower() for name in FORMATS) | {"accept-encoding", "origin"}
_UNSHARED = ("no-store", "private")
_MAX_HEADER_BYTES = 4096
# The first id of a response, in whatever place: that of the response itself comes before those of its parts.
_ID = re.compile(rb'"id"\s*:\s*"((?:[A-Za-z]{1,24}[-_])?)([0-9A-Za-z-]{8,64})"')
_ID_AT = 4096  # bytes in which it is looked for
_DROPPED_LINES = re.compile(rb"^(?::|id:|retry:)[^\n]*\n", re.MULTILINE)
_EMPTY_LINES = re.compile(rb"\n{3,}")


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A whole response with status 200. `stored_s`: Unix time. `usage`: as its server reported it; None: it did not.

    `body`: of a stream its events, without comments and ids.
    """

    stored_s: float
    revision: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    streams: bool = False
    usage: Usage | None = None

    @property
    def size_bytes(self) -> int:
        """What it takes in memory."""
        headers = sum(HEADER_BYTES + len(name) + len(value) for name, value in self.headers)
        return ENTRY_BYTES + len(self.body) + headers

    def age_s(self, now_s: float) -> float:
        return max(0.0, now_s - self.stored_s)


def kept_headers(headers: MultiMapping[str]) -> tuple[tuple[str, str], ...] | None:
    """Headers of a server's response that are kept; None where it must not be kept.

    It must not if the server says so, sets a cookie, compressed it, or chose it by a header that is no part of a key.
    """
    if "Set-Cookie" in headers:
        return None
    if "Cache-Control" in headers and not names_of(headers.getall("Cache-Control")).isdisjoint(_UNSHARED):
        return None
    if (headers.get("Content-Encoding") or "identity").lower() != "identity":
        return None
    if "Vary" in headers:
        varying = (name.strip().lower() for value in headers.getall("Vary") for name in value.split(","))
        if not _VARYING.issuperset(filter(None, varying)):
            return None
    crossing = to_client(headers, "", "").items()
    kept = tuple((str(name), value) for name, value in crossing if name.lower() not in _OF_MOMENT)
    return kept if sum(len(name) + len(value) for name, value in kept) <= _MAX_HEADER_BYTES else None


def kept_events(parts: Iterable[bytes]) -> bytes:
    """Events of a stream without comments and ids, by which a client could only return to the server that had it."""
    events = _DROPPED_LINES.sub(b"", b"".join(parts))
    return _EMPTY_LINES.sub(b"\n\n", events).lstrip(b"\n")


def with_new_id(body: bytes, random_hex: str) -> bytes:
    """A response with another id in the place of its own, wherever that appears as a whole JSON string.

    `random_hex`: 32 hexadecimal digits. An id without a random part, as of a request's own, stays.
    """
    if (found := _own_id(body)) is None:
        return body
    prefix, own = found
    digits = (random_hex * 2)[: len(own)].encode()
    new = b"".join(b"-" if char == b"-"[0] else digits[at : at + 1] for at, char in enumerate(own))
    return body.replace(b'"%b%b"' % (prefix, own), b'"%b%b"' % (prefix, new))


def own_id_places(body: bytes) -> tuple[int, list[int]]:
    """What `with_new_id` replaces: bytes of the id without its prefix, and where they begin."""
    if (found := _own_id(body)) is None:
        return 0, []
    prefix, own = found
    whole, begins = b'"%b%b"' % (prefix, own), []
    at = body.find(whole)
    while at >= 0:
        begins.append(at + 1 + len(prefix))
        at = body.find(whole, at + len(whole))
    return len(own), begins


def _own_id(body: bytes) -> tuple[bytes, bytes] | None:
    """The prefix of a response's own id, and the rest of it; None: it has none with a random part."""
    found = _ID.search(body, 0, _ID_AT)
    return (found[1], found[2]) if found else None


def replayed_headers(entry: Entry, age_s: float) -> "CIMultiDict[str]":
    """Headers of a copy for a client."""
    headers = CIMultiDict(entry.headers)
    headers["Age"] = str(int(age_s))
    return headers
