"""Where an ONNX file keeps its numbers: external files must be plain ones in its own folder.

onnxruntime opens what the file names. A path that leads out of the folder, or a link, would read what the process can.
The scan knows only the fields of the format that can hold a tensor; anything else is skipped by its length.
"""

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from . import ModelError

MAX_DEPTH = 64
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
# Message → field → message that it holds.
_FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}


@dataclass(frozen=True, slots=True)
class _Field:
    number: int
    start: int
    stop: int


def check_external_data(path: Path) -> None:
    """Raise ModelError for a file that names external data anywhere but in plain files of its own folder."""
    for location in dict.fromkeys(locations(path.read_bytes(), path.name)):
        _check(path.parent, location)


def locations(data: bytes, name: str) -> Iterator[str]:
    """All external files that the model names."""
    try:
        yield from _walk(memoryview(data), "model", 0)
    except (IndexError, UnicodeDecodeError):
        raise ModelError(f"{name} is not a whole ONNX file.") from None


def _walk(data: memoryview, kind: str, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        raise ModelError(f"The ONNX model has graphs inside of graphs, deeper than {MAX_DEPTH}.")
    for field in _fields(data):
        inner = _FIELDS[kind].get(field.number)
        if inner == "entry":
            key, value = _entry(data[field.start : field.stop])
            if key == "location":
                yield value
        elif inner:
            yield from _walk(data[field.start : field.stop], inner, depth + 1)


def _fields(data: memoryview) -> Iterator[_Field]:
    """The length-delimited fields of a message. Raises IndexError where the data ends too early."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            _, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        elif kind == _LENGTH:
            size, at = _varint(data, at)
            if at + size > len(data):
                raise IndexError
            yield _Field(tag >> 3, at, at + size)
            at += size
        else:
            raise IndexError  # groups are not in the format


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError


def _entry(data: memoryview) -> tuple[str, str]:
    texts = {field.number: bytes(data[field.start : field.stop]).decode() for field in _fields(data)}
    return texts.get(1, ""), texts.get(2, "")


def _check(folder: Path, location: str) -> None:
    pure = PurePosixPath(location)
    if not location or pure.is_absolute() or ".." in pure.parts or "\\" in location or "\0" in location:
        raise ModelError(f"The ONNX model keeps numbers in {location[:200]!r}, which leads out of its folder.")
    path = folder
    for part in pure.parts:
        path = path / part
        if path.is_symlink():
            raise ModelError(f"The ONNX model keeps numbers in {location[:200]!r}, which is a link: copy the file.")
    try:
        found = path.stat()
    except OSError:
        raise ModelError(f"The ONNX model keeps numbers in {location[:200]!r}, which is missing.") from None
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        raise ModelError(f"The ONNX model keeps numbers in {location[:200]!r}, which is no plain file of its own.")
