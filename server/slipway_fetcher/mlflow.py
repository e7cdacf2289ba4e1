"""mlflow-artifacts:///path: a folder that an MLflow tracking server keeps, by its proxy of artifacts.

--endpoint is the tracking server. Its list has names and sizes, and no digests.
"""

import base64
import json
import logging
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from urllib.parse import quote, urlencode, urlsplit

from . import folder, guard
from .folder import FetchError, Formats, Resolved, UnusableError
from .transfer import AnsweredError, Listed, Transfer

log = logging.getLogger(__name__)

SCHEME = "mlflow-artifacts"
SECRETS = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
API = "/api/2.0/mlflow-artifacts/artifacts"
LIST_LIMIT_BYTES = 8 * 2**20
MAX_FOLDERS = 1000  # each is a request
_ENDPOINT = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?")
_ADVICE = {
    401: "it needs credentials: name a Secret with MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and "
    "MLFLOW_TRACKING_PASSWORD, in spec.model.secretRef",
    403: "the credentials in the Secret of spec.model.secretRef may not read it",
    404: "there is no such folder",
}


@dataclass(frozen=True, slots=True)
class TrackingAccess:
    """Where the tracking server is, and the credentials that go there and nowhere else."""

    endpoint: str = ""
    token: str = field(default="", repr=False)
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    def headers(self) -> dict[str, str]:
        """The header with the credentials; {} without any.

        Raises:
            FetchError: for credentials that no header can hold.
        """
        if self.token:
            if not self.token.isascii() or not self.token.isprintable() or " " in self.token:
                raise FetchError("MLFLOW_TRACKING_TOKEN is no token: it has spaces or characters that no token has.")
            return {"Authorization": f"Bearer {self.token}"}
        if not self.user and not self.password:
            return {}
        if not (self.user and self.password) or ":" in self.user:
            raise FetchError(
                "The Secret of spec.model.secretRef needs both MLFLOW_TRACKING_USERNAME, without a colon, and "
                "MLFLOW_TRACKING_PASSWORD."
            )
        return {"Authorization": f"Basic {base64.b64encode(f'{self.user}:{self.password}'.encode()).decode()}"}


@dataclass(slots=True)
class _Listing:
    """What is known of a folder while it is listed."""

    sizes: dict[str, int] = field(default_factory=dict)  # bytes by name below the folder
    folders: list[str] = field(default_factory=lambda: [""])  # still to be listed
    requests: int = 0


def download(
    uri: str,
    dest: Path,
    max_bytes: int,
    rules: guard.EgressRules,
    access: TrackingAccess,
    *,
    formats: Formats,
    resolved: Resolved,
) -> tuple[Path, list[str]]:
    """Download a folder; return it, and the names of files that were left out.

    Raises:
        FetchError: when the folder cannot be fetched.
        UnusableError: when the folder is damaged or too large.
    """
    root, endpoint = _root(uri), access.endpoint.rstrip("/")
    if len(endpoint) > 256 or not _ENDPOINT.fullmatch(endpoint):
        raise FetchError("--endpoint is the URL of the tracking server: write https://host or http://host:5000.")
    headers = access.headers()
    if headers and endpoint.startswith("http://"):
        log.warning("the tracking server is not https: its credentials go there in the clear")
    transfer = Transfer(rules, endpoint, headers)
    source = guard.shown(uri)
    try:
        sizes = _sizes(transfer, f"{endpoint}{API}", root, source)
        left_out = formats.left_out(sizes, source)
        kept = {
            name: Listed(f"{endpoint}{API}/{quote(f'{root}/{name}')}", size)
            for name, size in sizes.items()
            if formats.is_kept(name)
        }
        size_bytes = sum(file.size for file in kept.values())
        folder.check_size(size_bytes, max_bytes, source)
        resolved("", size_bytes)
        log.info("downloading %d files of %s", len(kept), source)
        return _get(transfer, kept, dest, source), left_out
    except AnsweredError as error:
        advice = _ADVICE.get(error.status, "")
        raise FetchError(f"{source} cannot be fetched: {advice or str(error).rstrip('.')}.") from error


def _root(uri: str) -> str:
    """The path of the folder below the server's root of artifacts.

    Raises:
        FetchError: for a URI that names no folder, or another server.
    """
    parts = urlsplit(uri)
    path = parts.path.strip("/")
    pieces = path.split("/") if path else []
    wrong = not pieces or any(piece in ("", ".", "..") for piece in pieces) or parts.query or parts.fragment
    if parts.netloc or wrong or "\\" in path or not path.isprintable() or len(path.encode()) > folder.MAX_NAME_BYTES:
        raise FetchError(f"{guard.shown(uri)[:256]} names no folder: write mlflow-artifacts:///folder.")
    return path


def _sizes(transfer: Transfer, api: str, root: str, source: str) -> dict[str, int]:
    """Bytes of all files below the folder, by name.

    Raises:
        FetchError: when there is none.
        UnusableError: for too many files or folders, and names that lead out.
    """
    listing = _Listing()
    while listing.folders:
        below = listing.folders.pop()
        listing.requests += 1
        path = f"{root}/{below}" if below else root
        body = transfer.read(f"{api}?{urlencode({'path': path})}", LIST_LIMIT_BYTES)
        _read(body, below, listing, source)
        folder.check_count(len(listing.sizes), source)
    if not listing.sizes:
        raise FetchError(f"There is no file in {source}.")
    return listing.sizes


def _read(body: bytes, below: str, listing: _Listing, source: str) -> None:
    try:
        files = json.loads(body).get("files") or []
        for item in files:
            # Some servers list the whole path, others the last part of it.
            part = PurePosixPath(str(item["path"])).name
            name = f"{below}/{part}" if below else part
            folder.inside(Path(), name)
            if item.get("is_dir"):
                listing.folders.append(name)
            else:
                listing.sizes[name] = max(0, int(item.get("file_size") or 0))
            if listing.requests + len(listing.folders) > MAX_FOLDERS:
                raise UnusableError(f"{source} has more than {MAX_FOLDERS} folders: name the folder of one model.")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        raise FetchError(f"The tracking server's answer about {source} is no list of files.") from None


def _get(transfer: Transfer, files: dict[str, Listed], dest: Path, source: str) -> Path:
    target, partial = dest / "model", dest / "model.partial"
    with folder.writing(partial):
        partial.mkdir(exist_ok=True)
    folder.keep_only(partial, files)
    transfer.get_all(files, partial, source)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    return target
