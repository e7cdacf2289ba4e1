"""The file that lists the adapters of a deployment, and the folder of each."""

import hashlib
from pathlib import Path

import msgspec

from slipway_contracts.adapters import MAX_FILE_BYTES, AdapterEntry, AdapterFile, lora_name


class AdapterFileError(Exception):
    """The file cannot be read, or is wrong; the sentence says where."""


class NoFileError(AdapterFileError):
    """There is no file: its ConfigMap is not there."""


def read_file(file: Path) -> tuple[AdapterEntry, ...]:
    """The entries of a file, each name and revision once. Raises AdapterFileError."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise NoFileError(f"There is no file {file}.") from None
    except OSError as error:
        raise AdapterFileError(f"The file {file} cannot be read: {error.strerror}.") from None
    if len(content) > MAX_FILE_BYTES:
        raise AdapterFileError(f"The file {file} has more than {MAX_FILE_BYTES} bytes.")
    try:
        entries = msgspec.json.decode(content, type=AdapterFile).adapters
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise AdapterFileError(f"The file {file} is wrong: {error}.") from None
    names = [name_of(entry) for entry in entries]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise AdapterFileError(f"The file {file} lists {twice} twice.")
    return entries


def name_of(entry: AdapterEntry) -> str:
    """The name by which the engine knows it."""
    return lora_name(entry.name, entry.revision)


def folder_of(entry: AdapterEntry) -> str:
    """The name of an entry's folder: names of adapters have characters that folders have not."""
    return f"{entry.revision}-{hashlib.sha256(entry.name.encode()).hexdigest()[:10]}"


def alias_of(folder: Path, digest: str) -> Path:
    """The path of an entry's files that no other files ever have."""
    return folder / f"of-{digest.rpartition(':')[2][:16]}"
