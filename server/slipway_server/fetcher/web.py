"""https://: a .tar of a model folder, or a folder URL whose slipway-manifest.json lists the files.

The manifest: {"files": {"config.json": {"size": 712, "sha256": "…"}, …}}, names relative to the manifest. `--revision
sha256:DIGEST` pins the archive or the manifest, and so every file.
"""

import http.client
import json
import logging
import shutil
import tarfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from . import folder
from .folder import CHUNK_BYTES, FetchError, Progress, UnusableError

log = logging.getLogger(__name__)

MANIFEST = "slipway-manifest.json"
ARCHIVES = (".tar", ".tar.gz", ".tgz")
MANIFEST_LIMIT_BYTES = 4 * 2**20
ATTEMPTS, BACKOFF_S, TIMEOUT_S = 5, 0.5, 30.0
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})


def download(uri: str, revision: str, dest: Path, max_bytes: int) -> Path:
    pinned = _pinned(revision)
    partial = dest / "model.partial"
    partial.mkdir(exist_ok=True)
    if urlsplit(uri).path.endswith(ARCHIVES):
        archive = dest / "archive.partial"
        get(uri, archive, max_bytes)
        _check_digest(archive, pinned, uri)
        _unpack(archive, partial, max_bytes)
        archive.unlink()
    else:
        _get_listed(uri.rstrip("/"), pinned, partial, max_bytes)
    target = dest / "model"
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    return _only_folder(target)


def get(uri: str, path: Path, max_bytes: int, progress: Progress | None = None) -> None:
    """Continues a file that is partly there; tries a few times when the server or the line fails."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _get_once(uri, path, max_bytes, progress)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:  # what is there is no beginning of what the server has
                path.unlink(missing_ok=True)
            elif error.code not in TRANSIENT:
                raise FetchError(f"{uri} answered {error.code} {error.reason}.") from None
            reason = f"{error.code} {error.reason}"
        except (OSError, http.client.HTTPException) as error:
            reason = str(error)
        if attempt == ATTEMPTS:
            raise FetchError(f"{uri} failed {ATTEMPTS} times, last: {reason}.")
        log.warning("attempt %d of %d for %s failed: %s", attempt, ATTEMPTS, uri, reason)
        time.sleep(BACKOFF_S * 2 ** (attempt - 1))


def _get_once(uri: str, path: Path, max_bytes: int, progress: Progress | None) -> None:
    have = path.stat().st_size if path.exists() else 0
    request = urllib.request.Request(uri, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        if urlsplit(answer.url).scheme != "https":
            raise FetchError(f"{uri} redirects to {answer.url}, which is not https.")
        resumed = answer.status == 206
        length = answer.headers.get("Content-Length")
        expected = (have if resumed else 0) + int(length) if length else None
        folder.check_size(expected or 0, max_bytes, uri)
        size = have if resumed else 0
        with path.open("ab" if resumed else "wb") as file:
            while chunk := answer.read(CHUNK_BYTES):
                size += len(chunk)
                folder.check_size(size, max_bytes, uri)
                file.write(chunk)
                if progress:
                    progress.add(len(chunk))
    if expected is not None and size < expected:
        raise http.client.IncompleteRead(b"", expected - size)


def _get_listed(base: str, pinned: str | None, target: Path, max_bytes: int) -> None:
    manifest = target / MANIFEST
    manifest.unlink(missing_ok=True)
    get(f"{base}/{MANIFEST}", manifest, MANIFEST_LIMIT_BYTES)
    _check_digest(manifest, pinned, base)
    files = _listed(manifest, base)
    total = sum(file["size"] for file in files.values())
    folder.check_size(total, max_bytes, base)
    progress = Progress("fetched", total)
    for name, file in files.items():
        path = folder.inside(target, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not _is(path, file):
            get(f"{base}/{quote(name)}", path, file["size"], progress)
        if not _is(path, file):
            path.unlink()
            raise UnusableError(f"{name} of {base} does not have the size and checksum that {MANIFEST} tells.")
    manifest.unlink()


def _listed(manifest: Path, base: str) -> dict[str, dict[str, Any]]:
    try:
        listed = json.loads(manifest.read_bytes())["files"]
        files = {str(name): {"size": int(f["size"]), "sha256": str(f["sha256"])} for name, f in listed.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UnusableError(f"{MANIFEST} of {base} is not a list of files with size and sha256.") from None
    folder.refuse_pickles_only(list(files), base)
    return {name: file for name, file in files.items() if folder.is_kept(name)}


def _is(path: Path, file: dict[str, Any]) -> bool:
    return path.is_file() and path.stat().st_size == file["size"] and folder.sha256_of(path) == file["sha256"]


def _unpack(archive: Path, target: Path, max_bytes: int) -> None:
    """Plain files and folders only. Everything is looked at before anything is written."""
    try:
        with tarfile.open(archive) as tar:
            members = tar.getmembers()
            for member in members:
                folder.inside(target, member.name)
                if not (member.isfile() or member.isdir()):
                    raise UnusableError(
                        f"{member.name} in the archive is neither a file nor a folder: links are refused."
                    )
            folder.refuse_pickles_only([member.name for member in members], "The archive")
            kept = [member for member in members if member.isfile() and folder.is_kept(member.name)]
            folder.check_size(sum(member.size for member in kept), max_bytes, "The archive")
            tar.extractall(target, members=kept, filter="data")
    except (tarfile.TarError, EOFError) as error:
        raise UnusableError(f"The archive cannot be unpacked: {error}.") from error


def _only_folder(target: Path) -> Path:
    """Archives often hold one folder with everything in it."""
    inner = [path for path in target.iterdir() if path.is_dir()]
    return inner[0] if len(inner) == 1 and not (target / "config.json").exists() else target


def _pinned(revision: str) -> str | None:
    if revision and not revision.startswith("sha256:"):
        raise FetchError(f"The revision of an https:// model is sha256:DIGEST, not {revision!r}.")
    return revision.removeprefix("sha256:") or None


def _check_digest(path: Path, pinned: str | None, source: str) -> None:
    if pinned and folder.sha256_of(path) != pinned.lower():
        path.unlink()
        raise UnusableError(f"{source} does not have the checksum of its revision, sha256:{pinned}.")
