"""The marker of a complete model: written last and atomically, so that a partly fetched model never has one."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from slipway_process.model_folder.checkpoint import MARKER

from . import folder


@dataclass(frozen=True, slots=True)
class Marker:
    """The fetched model; see docs/contracts.md."""

    uri: str
    revision: str
    path: str
    digest: str
    commit: str = ""
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def read(dest: Path, uri: str, revision: str) -> Marker | None:
    """The marker of a finished run for this URI and revision; None without one, or where a file's size has changed."""
    try:
        found = Marker(**json.loads((dest / MARKER).read_bytes()))
        if (found.uri, found.revision) != (uri, revision):
            return None
        whole = all((Path(found.path) / name).stat().st_size == file["size"] for name, file in found.files.items())
        return found if whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(dest: Path, marker: Marker) -> None:
    partial = dest / (MARKER + ".partial")
    with folder.writing(partial), partial.open("w") as file:
        json.dump(asdict(marker), file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(dest / MARKER)
