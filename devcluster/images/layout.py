"""Images on their way into a node, as an OCI layout in the cache: a layer that was there before is not copied again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from devcluster.engine.engine import Engine

_NAME = "org.opencontainers.image.ref.name"
_BLOBS = "blobs/sha256"


def save(engine: Engine, references: list[str], folder: Path) -> None:
    """Makes the folder hold these images of podman's store and nothing else."""
    if not _is_whole(folder):
        _empty(folder)
    for reference in references:
        # Layers as they are: compressing takes longer than everything that follows.
        engine.run("save", "--uncompressed", "--format", "oci-dir", "-o", folder, reference)
    keep_only(references, folder)


def keep_only(references: list[str], folder: Path) -> None:
    """Takes other images out of the folder, and what a killed run left there."""
    index = _read(folder / "index.json")
    index["manifests"] = [one for one in index["manifests"] if one["annotations"][_NAME] in references]
    (folder / "index.json").write_text(json.dumps(index))
    kept = {folder / name for name in files(folder, present=set())}
    for path in [path for path in folder.rglob("*") if path.is_file() and path not in kept]:
        path.unlink()


def files(folder: Path, present: set[str]) -> list[str]:
    """What a node needs of the folder, by relative path: all but the blobs whose digests it has."""
    digests: dict[str, None] = {}  # each once, in order
    for manifest in _read(folder / "index.json")["manifests"]:
        content = _read(_blob(folder, manifest["digest"]))
        digests |= {one["digest"]: None for one in (manifest, content["config"], *content["layers"])}
    blobs = [str(_blob(folder, digest).relative_to(folder)) for digest in digests if digest not in present]
    return ["oci-layout", "index.json", *blobs]


def _is_whole(folder: Path) -> bool:
    """Whether the last save came to its end: podman writes the index last, and not at once."""
    try:
        return all((folder / name).exists() for name in files(folder, present=set()))
    except (OSError, ValueError):
        return False


def _empty(folder: Path) -> None:
    """The folder itself stays: a running node has it mounted."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _blob(folder: Path, digest: str) -> Path:
    return folder / _BLOBS / digest.removeprefix("sha256:")


def _read(path: Path) -> Any:
    return json.loads(path.read_text())
