"""Canonical JSON, and digests of it (pure)."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any


def written(value: Any) -> str:
    """The canonical JSON of a value: names in order, no spaces. 1 and 1.0 differ, as they do for some servers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest_of(parts: Iterable[str | bytes]) -> bytes:
    """SHA-256 of parts with their lengths, so that no two lists of parts have the same bytes."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.digest()
