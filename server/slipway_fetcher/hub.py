"""hf://org/name: a repository of the Hugging Face hub, or of the hub at HF_ENDPOINT.

One request to the hub resolves the revision to a commit and lists its files; then each file is fetched as any other
file is, by the same guard. HF_TOKEN goes to the hub itself, and nowhere that it redirects to.
"""

import json
import logging
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from . import folder, guard
from .folder import FetchError, Formats, Resolved
from .transfer import AnsweredError, Listed, Transfer

log = logging.getLogger(__name__)

ENDPOINT = "https://huggingface.co"
LIST_LIMIT_BYTES = 32 * 2**20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_ADVICE = {
    401: ": it does not exist, or needs a token: name a Secret with HF_TOKEN in spec.model.secretRef",
    403: ": the token may not read it: ask for access on its page, or name another Secret in spec.model.secretRef",
    404: ": it does not exist",
}


@dataclass(frozen=True, slots=True)
class Hub:
    """Where repositories are, and the token that goes there and nowhere else."""

    endpoint: str = ENDPOINT
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Repository:
    """One repository at one commit, as the hub lists it."""

    source: str
    commit: str
    files: dict[str, Listed]
    left_out: list[str]


def download(
    repository: str,
    revision: str,
    dest: Path,
    max_bytes: int,
    rules: guard.EgressRules,
    hub: Hub,
    pinned: str = "",
    *,
    formats: Formats,
    resolved: Resolved,
) -> tuple[Path, str, list[str]]:
    """Download a repository; return its folder, its commit, and the names of files that were left out.

    `revision` is a branch, tag or commit; `pinned` is the commit that the operator recorded for it. `resolved` is
    called before the first file is requested.

    Raises:
        FetchError: when the repository cannot be fetched.
        UnusableError: when the repository is damaged or too large.
    """
    source = f"hf://{repository}"
    if not _NAME.fullmatch(repository):
        raise FetchError(f"{source[:256]!r} is not a repository name: write hf://org/model.")
    endpoint = hub.endpoint.rstrip("/")
    transfer = Transfer(rules, endpoint, _authorization(endpoint, hub.token))
    try:
        found = _resolve(transfer, endpoint, repository, pinned or revision, max_bytes, formats=formats)
        resolved(found.commit, sum(file.size for file in found.files.values()))
        log.info("downloading %d files of %s at %s", len(found.files), repository, found.commit)
        target = _get(transfer, found, dest)
    except AnsweredError as error:
        reason = f"{str(error).rstrip('.')}{_ADVICE.get(error.status, '')}."
        where = f"commit {pinned}, which the revision is pinned to" if pinned else f"revision {revision or 'main'}"
        raise FetchError(f"{source} cannot be fetched at {where}: {reason}") from error
    return target, found.commit, found.left_out


def _authorization(endpoint: str, token: str) -> dict[str, str]:
    if not token:
        return {}
    if not token.isascii() or not token.isprintable() or " " in token:
        raise FetchError("HF_TOKEN is no token: it has spaces or characters that no token has.")
    if not endpoint.startswith("https://"):
        log.warning("HF_ENDPOINT is not https: HF_TOKEN goes there in the clear")
    return {"Authorization": f"Bearer {token}"}


def _resolve(
    transfer: Transfer, endpoint: str, repository: str, revision: str, max_bytes: int, *, formats: Formats
) -> Repository:
    """One request to the hub resolves the revision: later requests use the commit."""
    source, requested = f"hf://{repository}", quote(revision or "main", safe="")
    body = transfer.read(f"{endpoint}/api/models/{repository}/revision/{requested}?blobs=true", LIST_LIMIT_BYTES)
    try:
        about = json.loads(body)
        commit, siblings = str(about["sha"]), list(about["siblings"])
        names = [str(item["rfilename"]) for item in siblings]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise FetchError(f"The hub's answer about {source} is no list of files.") from None
    if not _COMMIT.fullmatch(commit) or (_COMMIT.fullmatch(revision) and commit != revision):
        raise FetchError(f"The hub names commit {commit[:64]!r} for {source} at revision {revision or 'main'}.")
    folder.check_count(len(names), source)
    left_out = formats.left_out(names, source)
    base = f"{endpoint}/{repository}/resolve/{commit}"
    pairs = zip(names, siblings, strict=True)
    files = {name: _file(base, name, item, source) for name, item in pairs if formats.is_kept(name)}
    folder.check_size(sum(file.size for file in files.values()), max_bytes, source)
    return Repository(source, commit, files, left_out)


def _file(base: str, name: str, item: dict[str, Any], source: str) -> Listed:
    folder.inside(Path(), name)
    try:
        large = item.get("lfs") or {}
        size = int(large["size"] if large else item["size"])
        sha256 = str(large["sha256"]).lower() if large else None
    except (KeyError, TypeError, ValueError):
        raise FetchError(f"The hub lists no size of {name} of {source}.") from None
    blob = item.get("blobId")
    return Listed(f"{base}/{quote(name)}", max(0, size), sha256, None if large or not blob else str(blob))


def _get(transfer: Transfer, found: Repository, dest: Path) -> Path:
    """Download the files, then rename their folder to `model`; delete partial downloads of other commits."""
    target, partial = dest / "model", dest / f"{found.commit}.partial"
    for other in dest.glob("*.partial"):
        if other != partial and other.is_dir():
            shutil.rmtree(other, ignore_errors=True)
    partial.mkdir(exist_ok=True)
    transfer.get_all(found.files, partial, found.source)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    return target
