"""JSON files of a model folder, bounded by size; errors are sentences for a person."""

import json
from pathlib import Path
from typing import Any

JSON_LIMIT_BYTES = 64 * 2**20


class BadFile(Exception):
    """Which file of a folder cannot be read, and why: one sentence."""


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises BadFile."""
    try:
        size = path.stat().st_size
        if size > JSON_LIMIT_BYTES:
            raise ValueError(f"it has {size} bytes, the limit is {JSON_LIMIT_BYTES}")
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise BadFile(f"{path.name} in {path.parent.name} cannot be read as JSON: {error}.") from None
    if not isinstance(content, dict):
        raise BadFile(f"{path.name} in {path.parent.name} is not a JSON object.")
    return content


def optional_object(path: Path) -> dict[str, Any]:
    """As `read_object`; empty without the file."""
    return read_object(path) if path.is_file() else {}
