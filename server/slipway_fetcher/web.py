"""https://: a .tar of a model folder, or a folder URL whose slipway-manifest.json lists the files.

The manifest: {"files": {"config.json": {"size": 712, "sha256": "…"}, …}}, names relative to the manifest. `--revision
sha256:DIGEST` pins the archive or the manifest, and so every file.
"""

import json
import shutil
from pathlib import Path
from urllib.parse import quote, urlsplit

from . import archive, folder, guard
from .checksums import known
from .downloads import FETCH, DownloadProgress
from .folder import Formats, Resolved, UnusableError
from .pin import sha256_pin
from .transfer import Listed, Transfer

MANIFEST = "slipway-manifest.json"
MANIFEST_LIMIT_BYTES = 4 * 2**20


def download(
    uri: str,
    revision: str,
    dest: Path,
    max_bytes: int,
    rules: guard.EgressRules,
    *,
    formats: Formats,
    resolved: Resolved,
) -> tuple[Path, list[str]]:
    """Download a model; return its folder, and the names of files that were left out.

    Raises:
        FetchError: when the model cannot be fetched.
        UnusableError: when the model is damaged, or not what the revision pins.
    """
    pinned = sha256_pin(revision)
    transfer = Transfer(rules, uri)
    partial = dest / "model.partial"
    partial.mkdir(exist_ok=True)
    if urlsplit(uri).path.endswith(archive.SUFFIXES):
        resolved(pinned or "", 0)  # its size is not known
        omitted = _get_archive(transfer, uri, pinned, dest, max_bytes, formats=formats)
    else:
        omitted = _get_listed(transfer, uri.rstrip("/"), pinned, partial, max_bytes, formats=formats, resolved=resolved)
    target = dest / "model"
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    return folder.only_folder(target), omitted


def _get_archive(
    transfer: Transfer, uri: str, pinned: str | None, dest: Path, max_bytes: int, *, formats: Formats
) -> list[str]:
    packed, partial = dest / "archive.partial", dest / "model.partial"
    if not pinned:  # a partial file could be of another archive
        packed.unlink(missing_ok=True)
    progress = DownloadProgress("fetched", None, meter=FETCH)
    transfer.get(uri, packed, max_bytes, progress)
    progress.log_rate()
    _check_digest(packed, pinned, uri)
    shutil.rmtree(partial)
    partial.mkdir()
    # Archive and unpacked files are on the disk at the same time.
    omitted = archive.unpack(packed, partial, max_bytes - packed.stat().st_size, formats)
    packed.unlink()
    return omitted


def _get_listed(
    transfer: Transfer,
    base: str,
    pinned: str | None,
    target: Path,
    max_bytes: int,
    *,
    formats: Formats,
    resolved: Resolved,
) -> list[str]:
    manifest = target / MANIFEST
    manifest.unlink(missing_ok=True)
    transfer.get(f"{base}/{MANIFEST}", manifest, MANIFEST_LIMIT_BYTES)
    _check_digest(manifest, pinned, base)
    files = _listed(manifest, base)
    omitted = formats.left_out(files, guard.shown(base))
    kept = {name: file for name, file in files.items() if formats.is_kept(name)}
    size = sum(file.size for file in kept.values())
    folder.check_size(size, max_bytes, guard.shown(base))
    resolved(known.sha256_of(manifest), size)
    transfer.get_all(kept, target, guard.shown(base))
    manifest.unlink()
    folder.keep_only(target, kept)
    return omitted


def _listed(manifest: Path, base: str) -> dict[str, Listed]:
    try:
        listed = json.loads(manifest.read_bytes())["files"]
        files = {
            str(name): Listed(f"{base}/{quote(str(name))}", int(f["size"]), str(f["sha256"]).lower())
            for name, f in listed.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UnusableError(f"{MANIFEST} of {guard.shown(base)} is not a list of files with size and sha256.") from None
    folder.check_count(len(files), guard.shown(base))
    if any(file.size < 0 for file in files.values()):
        raise UnusableError(f"{MANIFEST} of {guard.shown(base)} has a file with a negative size.")
    return files


def _check_digest(path: Path, pinned: str | None, uri: str) -> None:
    if pinned and (found := known.sha256_of(path)) != pinned:
        path.unlink()
        raise UnusableError(f"{guard.shown(uri)} has sha256:{found}; spec.model.revision is sha256:{pinned}.")
