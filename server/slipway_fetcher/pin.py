"""What a revision's weights are: the commit and the digest that every pod of it must load.

The digest is the sha256 of what `sha256sum` prints for the model's files, sorted by name: `<sha256>  <name>\n` each.
The first pod of a revision reports its own; the operator keeps it and gives it to every later pod as a file.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from .folder import FetchError, UnusableError

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
LIMIT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ModelPin:
    """The weights that the operator recorded for a revision."""

    digest: str  # sha256:…
    commit: str = ""  # of an hf:// repository, or the digest of an oci:// manifest


@dataclass(frozen=True, slots=True)
class Report:
    """The model that a pod loads: the fetcher's termination message when it succeeded."""

    digest: str
    commit: str
    files: int
    bytes: int
    pinned: bool  # whether a pin was there to hold it to
    cached: bool | None = None  # whether a cache had it; None without a cache

    def text(self) -> str:
        """The JSON that the operator reads; see docs/contracts.md."""
        return json.dumps({"weights": {name: value for name, value in asdict(self).items() if value is not None}})


def read(path: Path | None) -> ModelPin | None:
    """The pin in a file; None where there is none yet.

    Raises:
        UnusableError: when it is no pin.
    """
    if path is None or not path.is_file():
        return None
    try:
        content = json.loads(path.read_bytes()[:LIMIT_BYTES])
        pin = ModelPin(str(content["digest"]), str(content.get("commit") or ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        pin = ModelPin("")
    if not _DIGEST.fullmatch(pin.digest) or (pin.commit and not _COMMIT.fullmatch(pin.commit)):
        raise UnusableError(f"The pin of the revision, {path.name}, is not what the operator writes.")
    return pin


def digest_of(files: Mapping[str, Mapping[str, object]]) -> str:
    """The model's digest over its files: `files` has each file's sha256 by its name."""
    lines = (f"{files[name]['sha256']}  {name}\n" for name in sorted(files))
    return "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()


def sha256_pin(revision: str) -> str | None:
    """The digest of a `sha256:` revision; None without a revision.

    Raises:
        FetchError: when the revision is written otherwise.
    """
    if not revision:
        return None
    if not _DIGEST.fullmatch(revision.lower()):
        raise FetchError(f"The revision of this model is sha256: and 64 hexadecimal digits, not {revision[:80]!r}.")
    return revision.lower().removeprefix("sha256:")


def check(found: str, pin: ModelPin | None, source: str) -> None:
    """Compare the fetched model with the pin.

    Raises:
        UnusableError: with both digests.
    """
    if pin and found != pin.digest:
        raise UnusableError(f"{source} has {found}; the revision is pinned to {pin.digest}.")
