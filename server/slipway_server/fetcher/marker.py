"""The marker that says a model is whole: written last and at once, so that a half-fetched model never has one."""

import json
import os
from pathlib import Path

from ..models.checkpoint import MARKER


def is_complete(dest: Path, uri: str, revision: str) -> bool:
    """An earlier run finished for this very URI and revision, and its files are still as long as they were."""
    try:
        content = json.loads((dest / MARKER).read_bytes())
        if (content["uri"], content["revision"]) != (uri, revision):
            return False
        folder = Path(content["path"])
        return all((folder / name).stat().st_size == file["size"] for name, file in content["files"].items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def write(dest: Path, *, uri: str, revision: str, path: Path, files: dict[str, dict[str, object]]) -> None:
    content = {"uri": uri, "revision": revision, "path": str(path.absolute()), "files": files}
    partial = dest / (MARKER + ".partial")
    with partial.open("w") as file:
        json.dump(content, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(dest / MARKER)
