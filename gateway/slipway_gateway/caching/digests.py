"""Canonical JSON, and digests of it (pure)."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

_ENCODE = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def written(value: Any) -> str:
    """The canonical JSON of a value: names in order, no spaces. 1 and 1.0 differ, as they do for some servers."""
    return _ENCODE(value)


def digest_of(parts: Iterable[str | bytes]) -> bytes:
    """SHA-256 of parts with their lengths, so that no two lists of parts have the same bytes."""
    encoded = (part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part for part in parts)
    return hashlib.sha256(b"".join([b"%d:%b" % (len(data), data) for data in encoded])).digest()
