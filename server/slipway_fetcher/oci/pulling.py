"""Fetches a model from a registry: resolves the tag once, chooses, downloads and unpacks."""

import hashlib
import logging
import platform
import shutil
from pathlib import Path

from .. import folder
from ..folder import Formats, Resolved, UnusableError
from ..guard import EgressRules
from ..transfer import AnsweredError, Listed
from . import manifest, reference
from .layers import LayerUnpacking
from .manifest import Manifest, ModelLayer
from .reference import ImageReference
from .registry import Registry, RegistryAccess

log = logging.getLogger(__name__)


def download(
    uri: str,
    dest: Path,
    max_bytes: int,
    rules: EgressRules,
    access: RegistryAccess,
    pinned: str = "",
    *,
    formats: Formats,
    resolved: Resolved,
) -> tuple[Path, str, list[str]]:
    """Download a model; return its folder, the digest behind its tag, and the names of files that were left out.

    `pinned`: the digest that the operator recorded. Both digests are without `sha256:`.

    Raises:
        FetchError: when the model cannot be fetched.
        UnusableError: when the model is damaged or too large.
    """
    named = reference.read(uri)
    registry = Registry(rules, named, access)
    version = f"sha256:{pinned}" if pinned else named.version
    body = registry.manifest(version)
    digest = _checked(body, version, named)
    chosen = manifest.choice(body, named.shown, platform.machine())
    if chosen:
        body = registry.manifest(chosen)
        _checked(body, chosen, named)
    model = manifest.read(body, named.shown)
    size = sum(layer.size for layer in model.layers)
    folder.check_size(size, max_bytes, named.shown)
    resolved(digest, size)
    log.info("downloading %d layers of %s at %s", len(model.layers), named.shown, digest)
    partial = _only_partial(dest, digest)
    try:
        left_out = _get(registry, model, partial, max_bytes, named.shown, formats=formats)
    except AnsweredError as error:
        raise registry.explained(error, version) from None
    target = dest / "model"
    shutil.rmtree(target, ignore_errors=True)
    (partial / "files").rename(target)
    shutil.rmtree(partial)
    return (folder.only_folder(target) if model.is_image else target), digest, left_out


def _checked(body: bytes, version: str, named: ImageReference) -> str:
    """The sha256 of a manifest in hex; UnusableError when it was requested by another digest."""
    found = hashlib.sha256(body).hexdigest()
    if version.startswith("sha256:") and version != f"sha256:{found}":
        raise UnusableError(f"{named.shown} answers with the manifest sha256:{found} for {version}.")
    return found


def _only_partial(dest: Path, digest: str) -> Path:
    partial = dest / f"{digest}.partial"
    for other in dest.glob("*.partial"):
        if other != partial and other.is_dir():
            shutil.rmtree(other, ignore_errors=True)
    with folder.writing(partial):
        for part in ("files", "layers"):
            (partial / part).mkdir(parents=True, exist_ok=True)
    return partial


def _get(
    registry: Registry, model: Manifest, partial: Path, max_bytes: int, source: str, *, formats: Formats
) -> list[str]:
    plain = [layer for layer in model.layers if not layer.packed]
    packed = [layer for layer in model.layers if layer.packed]
    names = [layer.name for layer in plain]
    for name in names:
        folder.inside(partial, name)
    if len(set(names)) < len(names):
        raise UnusableError(f"{source} has two layers with one name of a file.")
    if not packed:
        left_out = formats.left_out(names, source)
    kept = {layer.name: _listed(registry, layer) for layer in plain if formats.is_kept(layer.name)}
    if not packed:
        folder.keep_only(partial / "files", kept)
        registry.transfer.get_all(kept, partial / "files", source)
        return left_out
    # After an interruption all layers are unpacked from the beginning: the layers themselves are on the disk.
    shutil.rmtree(partial / "files")
    (partial / "files").mkdir()
    registry.transfer.get_all(
        {f"{layer.sha256}.tar": _listed(registry, layer) for layer in packed}, partial / "layers", source
    )
    # Layers and unpacked files are on the disk at the same time.
    left = max_bytes - sum(layer.size for layer in model.layers)
    unpacking = LayerUnpacking(partial / "files", left, formats, source)
    for layer in packed:
        path = partial / "layers" / f"{layer.sha256}.tar"
        (unpacking.image_layer if model.is_image else unpacking.folder_layer)(path)
    if kept:
        registry.transfer.get_all(kept, partial / "files", source)
    return formats.left_out({*unpacking.names, *names}, source)


def _listed(registry: Registry, layer: ModelLayer) -> Listed:
    return Listed(registry.blob(layer.digest), layer.size, layer.sha256)
