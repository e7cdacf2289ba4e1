"""Writes docker-archives from files and tar layers: images of one static binary need no engine to build."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Image:
    """What goes into one image: a base layer (a tar file) or none, files, and how it starts."""

    tag: str
    files: tuple[tuple[str, Path], ...] = ()  # (path in the image, file here)
    base: Path | None = None
    entrypoint: tuple[str, ...] = ()


def write_archive(image: Image, target: Path, machine: str) -> None:
    """Writes the image so that `ctr images import` and `docker load` take it."""
    layers = [*([image.base] if image.base else []), *([_layer(image, target)] if image.files else [])]
    config = json.dumps(image_config(image, [_sha256(layer) for layer in layers], machine)).encode()
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [image.tag], "Layers": names}]).encode()
    with tarfile.open(target, "w") as archive:
        for name, layer in zip(names, layers, strict=True):
            archive.add(layer, name, filter=_plain)
        for name, data in (("config.json", config), ("manifest.json", manifest)):
            archive.addfile(_entry(name, len(data), 0o644), io.BytesIO(data))


def image_config(image: Image, digests: Sequence[str], machine: str) -> dict[str, object]:
    """The image's configuration document (pure)."""
    return {
        "architecture": _ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {"Env": [f"PATH={_PATH}"], "Entrypoint": list(image.entrypoint) or None, "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
    }


def _layer(image: Image, target: Path) -> Path:
    path = target.with_suffix(".layer")
    with tarfile.open(path, "w") as layer:
        for name, source in image.files:
            with source.open("rb") as file:
                layer.addfile(_entry(name.lstrip("/"), source.stat().st_size, 0o755), file)
    return path


def _entry(name: str, size: int, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, mode
    return entry


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
