"""The init container: brings a model folder to the pod, checks it, and leaves a marker when it is whole."""

import argparse
import logging
import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

from ..models import checkpoint
from ..models.checkpoint import CheckpointError
from ..telemetry import logs
from ..telemetry.termination import DATA_ERROR, NO_INPUT, Parser, last_words
from . import folder, hub, marker, web
from .folder import FetchError, UnusableError

log = logging.getLogger("slipway.fetcher")

PVC_MOUNT = Path("/mnt/pvc")
SCHEMES = "file://, pvc://, hf:// and https://"


def main() -> None:
    options = _parse()
    logs.configure(os.environ.get("SLIPWAY_LOG_LEVEL", "INFO"))
    try:
        fetch(options.uri, options.revision, options.dest, max_bytes=options.max_bytes)
    except (UnusableError, CheckpointError) as error:
        last_words(str(error))
        sys.exit(DATA_ERROR)
    except FetchError as error:
        last_words(str(error))
        sys.exit(NO_INPUT)
    except Exception as error:
        log.debug("failed", exc_info=True)
        last_words(f"{options.uri} cannot be fetched: {type(error).__name__}: {error}")
        sys.exit(NO_INPUT)


def fetch(uri: str, revision: str, dest: Path, *, max_bytes: int, pvc_mount: Path = PVC_MOUNT) -> None:
    """Idempotent: what a finished run left is kept, what an interrupted one left is continued or replaced."""
    if marker.is_complete(dest, uri, revision):
        log.info("already here", extra={"uri": uri})
        return
    dest.mkdir(parents=True, exist_ok=True)
    parts = urlsplit(uri)
    match parts.scheme:
        case "file":
            found = folder.check(Path(parts.netloc + parts.path), max_bytes)
        case "pvc":
            found = folder.check(folder.inside(pvc_mount, parts.path.lstrip("/")), max_bytes)
        case "hf":
            found = hub.download(parts.netloc + parts.path, revision, dest, max_bytes)
        case "https":
            found = web.download(uri, revision, dest, max_bytes)
        case _:
            raise FetchError(f"{uri} is not understood: model URIs begin with {SCHEMES}.")
    checkpoint.read(found)
    marker.write(dest, uri=uri, revision=revision, path=found, files=folder.digests(found))
    log.info("complete", extra={"uri": uri, "path": str(found)})


def _parse() -> argparse.Namespace:
    parser = Parser(prog="slipway-fetcher", description=(__doc__ or "").strip(), allow_abbrev=False)
    parser.add_argument("--uri", required=True, help=f"where the model is: {SCHEMES}")
    parser.add_argument(
        "--revision", default="", help="hf: branch, tag or commit; https: sha256:DIGEST of the archive or the manifest"
    )
    parser.add_argument("--dest", required=True, type=Path, metavar="DIR", help="where the marker and downloads go")
    parser.add_argument("--max-bytes", type=int, default=2**40, help="refuse larger models (default: 1 TiB)")
    return parser.parse_args()
