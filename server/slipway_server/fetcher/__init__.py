"""The init container: brings a model folder to the pod, checks it, and leaves a marker when it is whole.

`fetch` is the whole way; `hub`, `web` and `archive` bring files, `folder` says which are kept, `guard` which
addresses may be called, `pin` holds them to the revision's digest.
"""

import json
import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from slipway_process import logs

from ..models import checkpoint
from ..models.checkpoint import CheckpointError
from ..telemetry.termination import DATA_ERROR, NO_INPUT, last_words, leave
from . import folder, guard, hub, marker, pin, web
from .folder import FetchError, Formats, UnusableError
from .guard import EgressRules
from .hub import Hub
from .marker import Marker
from .pin import ModelPin, Report
from .settings import SCHEMES, parse

log = logging.getLogger("slipway.fetcher")

PVC_MOUNT = Path("/mnt/pvc")
LINK = "current"  # in the folder of --dest, to the model's folder: for other engines than slipway-server
LEFT_OUT_KEPT = 1000  # names in the marker


@dataclass(frozen=True, slots=True)
class Sources:
    """Where a model may come from."""

    rules: EgressRules = field(default_factory=EgressRules)
    hub: Hub = field(default_factory=Hub)
    pvc_mount: Path = PVC_MOUNT
    formats: Formats = folder.SLIPWAY  # another one: for another engine, which finds the folder by LINK


@dataclass(frozen=True, slots=True)
class Found:
    """A model folder before its check."""

    path: Path
    commit: str = ""
    left_out: tuple[str, ...] = ()


def main() -> None:
    settings = parse(sys.argv[1:])
    logs.configure(settings.log_level)
    shown = guard.shown(settings.uri)
    try:
        rules = EgressRules.of(settings.allow_host, [*settings.allow_network, *settings.allow_networks])
        formats = folder.ANY_ENGINE if settings.any_engine else folder.SLIPWAY
        sources = Sources(rules, Hub(settings.hub_endpoint, settings.hub_token.get_secret_value()), formats=formats)
        report = fetch(
            settings.uri, settings.revision, settings.dest,
            max_bytes=settings.max_bytes, pin_file=settings.pin_file, sources=sources,
        )  # fmt: skip
        leave(report.text())
    except (UnusableError, CheckpointError) as error:
        last_words(str(error))
        sys.exit(DATA_ERROR)
    except FetchError as error:
        last_words(str(error))
        sys.exit(NO_INPUT)
    except Exception as error:
        log.debug("failed", exc_info=True)
        last_words(f"{shown} cannot be fetched: {type(error).__name__}: {error}")
        sys.exit(NO_INPUT)


def fetch(
    uri: str,
    revision: str,
    dest: Path,
    *,
    max_bytes: int,
    pin_file: Path | None = None,
    sources: Sources | None = None,
) -> Report:
    """Bring a model to `dest`, or find it where it lies, and hold it to the pin of its revision.

    Idempotent: what a finished run left is kept, what an interrupted one left is continued or replaced.

    Raises:
        FetchError: when what the URI names cannot be had.
        UnusableError: when it cannot be used, or is not what the revision is pinned to.
        CheckpointError: when it is no model that a server loads.
    """
    kept = pin.read(pin_file)
    done = marker.read(dest, uri, revision)
    if done and (kept is None or kept.digest == done.digest):
        log.info("already here", extra={"uri": guard.shown(uri)})
        return _report(done, kept)
    with folder.writing(dest):
        dest.mkdir(parents=True, exist_ok=True)
    sources = sources or Sources()
    found = _find(uri, revision, dest, max_bytes, kept, sources)
    if sources.formats is folder.SLIPWAY:
        _look_at_code(checkpoint.read(found.path).config, guard.shown(uri))
    else:
        sources.formats.require_weights(folder.names_in(found.path), guard.shown(uri))
        folder.link(dest / LINK, found.path)
    files = folder.digests(found.path, sources.formats)
    digest = pin.digest_of(files)
    where = f"{guard.shown(uri)} at commit {found.commit}" if found.commit else guard.shown(uri)
    if urlsplit(uri).scheme in ("file", "pvc") and (wanted := pin.sha256_pin(revision)):
        _check_revision(digest, wanted, where)
    pin.check(digest, kept, where)
    left_out = list(found.left_out[:LEFT_OUT_KEPT])
    fresh = Marker(uri, revision, str(found.path.absolute()), digest, found.commit, files, left_out)
    marker.write(dest, fresh)
    log.info("complete", extra={"uri": guard.shown(uri), "path": fresh.path, "digest": digest, "commit": found.commit})
    return _report(fresh, kept)


def _find(uri: str, revision: str, dest: Path, max_bytes: int, kept: ModelPin | None, sources: Sources) -> Found:
    parts = urlsplit(uri)
    match parts.scheme:
        case "file":
            return _in_place(Path(parts.netloc + parts.path), sources.formats)
        case "pvc":
            name = parts.path.strip("/")
            root = folder.inside(sources.pvc_mount, name) if name else sources.pvc_mount
            return _in_place(root, sources.formats)
        case "hf":
            repository, pinned = parts.netloc + parts.path, kept.commit if kept else ""
            path, commit, left_out = hub.download(
                repository, revision, dest, max_bytes, sources.rules, sources.hub, pinned, formats=sources.formats
            )
            return Found(path, commit, tuple(left_out))
        case "https":
            path, left_out = web.download(uri, revision, dest, max_bytes, sources.rules, formats=sources.formats)
            return Found(path, "", tuple(left_out))
    raise FetchError(f"{guard.shown(uri)} is not understood: model URIs begin with {SCHEMES}.")


def _in_place(path: Path, formats: Formats) -> Found:
    folder.check(path)
    return Found(path, "", tuple(formats.left_out(folder.names_in(path), str(path))))


def _check_revision(digest: str, wanted: str, source: str) -> None:
    if digest != f"sha256:{wanted}":
        raise UnusableError(f"{source} has {digest}; spec.model.revision is sha256:{wanted}.")


def _look_at_code(config: dict[str, object], source: str) -> None:
    """Code of a repository is never fetched nor run. Refused is only what nothing but that code could load."""
    mapped = config.get("auto_map")
    if not mapped:
        return
    text = json.dumps(mapped)[:200]
    if not config.get("model_type"):
        raise UnusableError(
            f"config.json of {source} names no model_type, only code of its own ({text}), which is never run: "
            "serve a model whose architecture is known."
        )
    log.warning("config.json of %s names code of its own (auto_map), which is never run: %s", source, text)


def _report(done: Marker, kept: ModelPin | None) -> Report:
    size = sum(int(file["size"]) for file in done.files.values())
    return Report(done.digest, done.commit, len(done.files), size, kept is not None)
