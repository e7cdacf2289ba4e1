"""Content keys: the same pins give the same key everywhere, and any change of what matters gives another (pure)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

from devcluster.pins import GoModule

_LENGTH = 12


def key_of(parts: Iterable[str | bytes]) -> str:
    """A short key of an ordered list of parts; the lengths are hashed too, so that ab+c and a+bc differ."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(f"{len(data)}:".encode())
        digest.update(data)
    return digest.hexdigest()[:_LENGTH]


def key_of_files(files: Mapping[str, bytes]) -> str:
    """A key of file names and contents, whatever their order."""
    return key_of(part for name in sorted(files) for part in (name, files[name]))


def module_key(module: GoModule, files: Mapping[str, bytes], machine: str) -> str:
    """The key of the binaries of one wrapper module on one kind of processor."""
    recipe = [*(f"{n}={p}" for n, p in module.binaries), *(f"{n}={v}" for n, v in module.variables), *module.tags]
    return key_of([module.name, machine, key_of_files(files), *recipe])


def version_in(text: str) -> tuple[int, ...]:
    """The first dotted version in a program's answer: 'go1.26.8' → (1, 26, 8); nothing found → ()."""
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part) for part in found.groups(default="0")) if found else ()


def new_enough(text: str, at_least: str) -> bool:
    """Whether a program's answer names a version that is not older than the wanted one."""
    have = version_in(text)
    return bool(have) and have >= version_in(at_least)
