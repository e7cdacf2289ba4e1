"""Fetches a model from an object store: lists, chooses, downloads, and renames the folder when it is complete."""

import hashlib
import json
import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import obstore

from .. import folder
from ..folder import Formats, Resolved
from ..guard import EgressRules
from . import listing, location, store
from .access import StoreAccess
from .download import ObjectDownload
from .failures import StoreErrors
from .journal import Journal
from .listing import Objects, StoredObject
from .proxy import GuardedProxy

if TYPE_CHECKING:
    from obstore.store import ObjectStore

log = logging.getLogger(__name__)

LIST_LIMIT_BYTES = 32 * 2**20


def download(
    uri: str,
    dest: Path,
    max_bytes: int,
    rules: EgressRules,
    access: StoreAccess,
    *,
    formats: Formats,
    resolved: Resolved,
) -> tuple[Path, list[str]]:
    """Download a model; return its folder, and the names of files that were left out.

    Raises:
        FetchError: when the model cannot be fetched.
        UnusableError: when the model must not be served, or is too large.
    """
    where = location.read(uri)
    endpoint = location.endpoint(where, access)
    insecure = endpoint.startswith("http://")
    trusted = store.has_credentials(where, access)
    if insecure and trusted:
        log.warning("%s is not https: what is downloaded can be read and changed on the way", endpoint)
    with GuardedProxy(rules.with_written(*store.hosts(where, access)), insecure=insecure) as proxy:
        opened = store.opened(where, access, proxy.url)
        errors = StoreErrors(where, endpoint, trusted, lambda: proxy.failure)
        proxy.allow(LIST_LIMIT_BYTES)
        found = listing.chosen(_list(opened, where, errors), where, formats, max_bytes)
        proxy.allow(None)
        resolved(listing.version(found), sum(stored.size for stored in found.files.values()))
        log.info("downloading %d files of %s", len(found.files), where.shown)
        return _get(opened, errors, found, dest, json.dumps([uri, endpoint])), found.left_out


def _list(opened: "ObjectStore", where: location.Location, errors: StoreErrors) -> dict[str, StoredObject]:
    try:
        return listing.collect(obstore.list(opened, where.prefix or None, chunk_size=listing.PAGE), where)
    except Exception as error:
        raise errors.of(error) from None


def _get(opened: "ObjectStore", errors: StoreErrors, found: Objects, dest: Path, source: str) -> Path:
    partial = dest / f"{hashlib.sha256(source.encode()).hexdigest()[:32]}.partial"
    target, files = dest / "model", partial / "files"
    for other in dest.glob("*.partial"):
        if other != partial and other.is_dir():
            shutil.rmtree(other, ignore_errors=True)
    with folder.writing(partial):
        files.mkdir(parents=True, exist_ok=True)
    folder.keep_only(files, found.files)
    journal = Journal(partial / "parts", source)
    try:
        ObjectDownload(opened, errors, files, journal).run(found.files)
    finally:
        journal.close()
    shutil.rmtree(target, ignore_errors=True)
    files.rename(target)
    shutil.rmtree(partial)
    return target
