"""API objects from a file or standard input, as kubectl prints them: JSON or YAML, one, many or a List."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from slipway_cli.api import Json
from slipway_cli.errors import CommandError

STDIN = "-"
LIMIT = 32 << 20  # characters


def read_objects(path: str) -> list[Json]:
    """The objects in a file, or in standard input where the path is `-`. Raises CommandError as `read_documents`."""
    return [item for document in read_documents(path) for item in _items(document)]


def read_documents(path: str) -> list[Any]:
    """The documents in a file, or in standard input where the path is `-`.

    Raises:
        CommandError: when the file cannot be read, is too long, or is neither JSON nor YAML.
    """
    try:
        text = sys.stdin.read(LIMIT + 1) if path == STDIN else _text(Path(path))
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} cannot be read: {error}") from error
    if len(text) > LIMIT:
        raise CommandError(
            f"{path} has more than {LIMIT >> 20} million characters: save only the objects that are meant"
        )
    try:
        return [document for document in yaml.load_all(text, _LOADER) if document is not None]
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise CommandError(f"{path} is neither JSON nor YAML: {' '.join(str(error).split())}") from error


def select_kind(found: list[Json], kind: str) -> dict[str, Json]:
    """The objects of a kind, by name."""
    return {item["metadata"]["name"]: item for item in found if item["kind"] == kind}


# With libyaml the loader in C is ten times faster.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _text(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.read(LIMIT + 1)


def _items(document: Any) -> Iterator[Json]:
    if isinstance(document, dict) and isinstance(document.get("items"), list):
        for item in document["items"]:
            yield from _items(item)
    elif isinstance(document, dict) and "kind" in document and isinstance(document.get("metadata"), dict):
        yield {**document, "metadata": {"name": "", "namespace": "default", **document["metadata"]}}
