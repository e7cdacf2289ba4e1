"""The objects under a prefix: bounded, with names that a folder can have."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .. import folder
from ..folder import FetchError, Formats
from .location import Location

if TYPE_CHECKING:
    from obstore import ObjectMeta

PAGE = 1000
MAX_LISTED = 20_000  # objects under the prefix, those that are left out included


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object that the list names."""

    key: str
    size: int
    etag: str  # without quotes; empty where the store has none


@dataclass(frozen=True, slots=True)
class Objects:
    """What is downloaded, by name below the prefix, and what stays behind."""

    files: dict[str, StoredObject]
    left_out: list[str]


def collect(pages: Iterable[Iterable["ObjectMeta"]], location: Location) -> dict[str, StoredObject]:
    """The listed objects by their names below the prefix; UnusableError above MAX_LISTED, without further pages."""
    found: dict[str, StoredObject] = {}
    for page in pages:
        for meta in page:
            key = str(meta["path"])
            name = key.removeprefix(f"{location.prefix}/") if location.prefix else key
            if key == location.prefix:
                continue  # the placeholder object of the folder, or a file with the folder's name
            found[name] = StoredObject(key, int(meta["size"]), plain(meta.get("e_tag")))
            if len(found) > MAX_LISTED:
                raise folder.UnusableError(
                    f"{location.shown} has more than {MAX_LISTED} objects: name the folder of one model."
                )
    return found


def chosen(found: dict[str, StoredObject], location: Location, formats: Formats, max_bytes: int) -> Objects:
    """The files to download.

    Raises:
        FetchError: when there is no object.
        UnusableError: for names that lead out, too many files, or too many bytes.
    """
    # What a console writes for a folder is an empty object with the folder's name.
    above = {str(parent) for name in found for parent in folder.parents(name)}
    names = [name for name, stored in found.items() if not (stored.size == 0 and name in above)]
    if not names:
        raise FetchError(
            f"There is no object under {location.shown}/: correct the folder in spec.model.uri; upper and lower case "
            "differ."
        )
    for name in names:
        folder.inside(Path(), name)
    left_out = formats.left_out(names, location.shown)
    kept = {name: found[name] for name in names if formats.is_kept(name)}
    folder.check_count(len(kept), location.shown)
    folder.check_names(kept, location.shown)
    if any(stored.size < 0 for stored in kept.values()):
        raise folder.UnusableError(f"{location.shown} has a file with a negative size.")
    folder.check_size(sum(stored.size for stored in kept.values()), max_bytes, location.shown)
    return Objects(kept, left_out)


def version(found: Objects) -> str:
    """The version of the source: a hash of its list. Empty where a file has no ETag, as a change would not show."""
    listed = sorted((name, stored.size, stored.etag) for name, stored in found.files.items())
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest() if all(etag for _, _, etag in listed) else ""


def plain(etag: object) -> str:
    """An ETag without W/ and quotes: a store may write quotes in its answers and none in its lists."""
    return str(etag or "").removeprefix("W/").strip('"')
