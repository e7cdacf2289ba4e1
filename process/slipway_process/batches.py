"""Batches of records of which one may be poisoned: it is written nowhere, and stops no other.

`write_apart` finds the records that a writer refuses, `Quarantine` keeps them.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

log = logging.getLogger(__name__)

# Of a file of quarantined records, and of its predecessor.
MAX_QUARANTINE_BYTES = 1 << 20
_MAX_LINE_BYTES = 64 << 10
_MAX_ERROR = 300

Record = TypeVar("Record")
Result = TypeVar("Result")


@dataclass
class Written(Generic[Record, Result]):
    """What became of a batch. `error`: of the writer itself, so that the records in `left` wait; else None."""

    parts: list[tuple[Sequence[Record], Result]] = field(default_factory=list)
    refused: list[tuple[Record, Exception]] = field(default_factory=list)
    left: list[Record] = field(default_factory=list)
    error: Exception | None = None


def write_apart(
    write: Callable[[Sequence[Record]], Result], batch: Sequence[Record], is_of_record: Callable[[Exception], bool]
) -> Written[Record, Result]:
    """Writes a batch; where that fails because of a record, its halves, down to the record alone. It blocks.

    `write`: writes all of its records or none. `is_of_record`: whether an error of it is one of a record; after any
    other one nothing more is tried. Of n records with k poisoned ones it makes some k · log2(n / k) calls.
    """
    found: Written[Record, Result] = Written()
    waiting = [batch] if batch else []
    while waiting:
        part = waiting.pop()
        try:
            found.parts.append((part, write(part)))
        except Exception as error:
            if not is_of_record(error):
                found.error = error
                found.left = [record for some in (part, *reversed(waiting)) for record in some]
                return found
            if len(part) == 1:
                found.refused.append((part[0], error))
                continue
            half = len(part) // 2
            waiting += [part[half:], part[:half]]
    return found


class Quarantine:
    """Records that a writer refused: a log line for each, and a line of JSON in a file of bounded size."""

    def __init__(self, name: str, path: Path | None, count: Callable[[int], None]) -> None:
        """`name`: of what refuses them, in logs. `path`: None: the log alone has them. `count`: gets their number."""
        self._name, self._path, self._count = name, path, count

    def put(self, records: Iterable[tuple[Mapping[str, Any], Exception]]) -> None:
        """Keeps records, each with the error of its write. It blocks, and raises nothing."""
        lines = []
        for record, error in records:
            # An error quotes what a stranger wrote, which need not be valid Unicode.
            reason = f"{type(error).__name__}: {error}"[:_MAX_ERROR].encode("utf-8", "backslashreplace").decode()
            line = json.dumps({"error": reason, "record": record}, default=str)
            log.error("the %s refuses a record; it is left out: %s", self._name, reason, extra={"record": record})
            lines.append(line.encode()[:_MAX_LINE_BYTES] + b"\n")
        self._count(len(lines))
        if lines and self._path is not None:
            try:
                _append(self._path, b"".join(lines))
            except OSError as error:
                log.warning("records in quarantine are in the log alone: %s", error)


def _append(path: Path, lines: bytes) -> None:
    if path.exists() and path.stat().st_size + len(lines) > MAX_QUARANTINE_BYTES:
        path.replace(path.with_name(f"{path.name}.1"))
    with path.open("ab") as file:
        file.write(lines[:MAX_QUARANTINE_BYTES])
