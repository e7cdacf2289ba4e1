"""What a manifest says: the files of an artefact, or the layers of an image; pure."""

import json
import re
from dataclasses import dataclass
from typing import Any

from ..folder import UnusableError
from .registry import INDEXES

MAX_LAYERS = 10_000
TITLE, FILE_PATH, UNPACK = "org.opencontainers.image.title", "org.cncf.model.filepath", "io.deis.oras.content.unpack"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_TAR = ("tar", "tar+gzip", "tar.gzip")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class ModelLayer:
    """A blob of the manifest."""

    digest: str  # sha256:…
    size: int
    name: str  # below the model folder, empty in an image
    packed: bool  # a tar, which may be compressed

    @property
    def sha256(self) -> str:
        return self.digest.removeprefix("sha256:")


@dataclass(frozen=True, slots=True)
class Manifest:
    """The layers of one model."""

    layers: tuple[ModelLayer, ...]
    is_image: bool  # its files are below /models


def architecture(machine: str) -> str:
    """The name that indexes have for a machine."""
    return _MACHINES.get(machine, machine)


def choice(body: bytes, source: str, machine: str) -> str | None:
    """The digest of the manifest that an index has for the machine; None where the body is no index.

    Raises:
        UnusableError: when the index has none.
    """
    content = _read(body, source)
    if content.get("mediaType") not in INDEXES and "manifests" not in content:
        return None
    entries = [entry for entry in _list(content.get("manifests"), source) if isinstance(entry, dict)]
    wanted = architecture(machine)
    fitting = [entry for entry in entries if _platform(entry) == ("linux", wanted)]
    # An artefact has no platform.
    plain = [entry for entry in entries if _platform(entry) == ("", "")]
    found = next(iter(fitting or plain), None)
    if found is None:
        raise UnusableError(f"{source} has nothing for linux/{wanted}: push it for this platform.")
    return _digest(found, source)


def read(body: bytes, source: str) -> Manifest:
    """The layers of a manifest.

    Raises:
        UnusableError: for what is no manifest of a model.
    """
    written = _list(_read(body, source).get("layers"), source)
    layers = tuple(_layer(layer, source) for layer in written)
    if not layers:
        raise UnusableError(f"{source} has no layers.")
    named = [layer for layer in layers if layer.name]
    if named and len(named) < len(layers):
        raise UnusableError(f"{source} has layers with and without the name of a file: push a model, or an image.")
    if not named and not all(layer.packed for layer in layers):
        raise UnusableError(f"{source} has layers that are neither named files nor tar or tar+gzip of an image.")
    return Manifest(layers, is_image=not named)


def _read(body: bytes, source: str) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise UnusableError(f"{source} has a manifest that is not JSON.")
    return content


def _list(value: object, source: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > MAX_LAYERS:
        raise UnusableError(f"{source} has a manifest without a list of at most {MAX_LAYERS} entries.")
    return value


def _platform(entry: dict[str, Any]) -> tuple[str, str]:
    platform = entry.get("platform")
    if not isinstance(platform, dict):
        return "", ""
    return str(platform.get("os") or ""), str(platform.get("architecture") or "")


def _digest(entry: dict[str, Any], source: str) -> str:
    digest = str(entry.get("digest"))
    if not _DIGEST.fullmatch(digest):
        raise UnusableError(f"{source} names a digest that is not sha256: {digest[:80]!r}.")
    return digest


def _layer(layer: object, source: str) -> ModelLayer:
    if not isinstance(layer, dict) or not isinstance(layer.get("size"), int) or layer["size"] < 0:
        raise UnusableError(f"{source} has a layer without a size.")
    kind = str(layer.get("mediaType") or "")
    if kind.endswith("zstd"):
        raise UnusableError(f"{source} has a layer with zstd: push it with gzip, or without compression.")
    annotations = layer.get("annotations")
    annotations = annotations if isinstance(annotations, dict) else {}
    name = str(annotations.get(FILE_PATH) or annotations.get(TITLE) or "")
    tar = kind.endswith(_TAR)
    model_part = kind.startswith("application/vnd.cncf.model.")
    packed = tar and (not name or model_part or str(annotations.get(UNPACK)).lower() == "true")
    return ModelLayer(_digest(layer, source), layer["size"], name, packed)
