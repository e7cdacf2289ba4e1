"""`python -m slipway_gateway.generations.export`: writes rows of the generation log, with plain contents, to a file.

A file that ends with .parquet is Parquet, which takes the package pyarrow; any other one has a line of JSON for each
row. Rows whose key is lost are written without their contents, and counted on stderr.
"""

import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from itertools import islice
from typing import Any, BinaryIO

import msgspec

from slipway_process import logs
from slipway_process.database_errors import UNAVAILABLE
from slipway_process.sealing import Keyring

from ..wire.responses import read_text, read_text_of_events
from .settings import ExportSettings, opened

PYARROW = "pyarrow"
_GROUP_ROWS = 256  # of Parquet, in memory at once
_NUMBERS = ("status", "input_tokens", "output_tokens", "input_bytes", "output_bytes")

Row = Mapping[str, Any]


def main() -> None:
    settings = ExportSettings.parse(sys.argv[1:])
    logs.configure(settings.log_level)
    try:
        table = opened(settings.generation_log_url, Keyring(settings.generation_log_keys_file))
        try:
            rows = table.read(settings.tenant, settings.first, settings.end)
            written, unreadable = write(map(exported, rows), settings.out)
        finally:
            table.close()
    except (ValueError, *UNAVAILABLE) as error:
        sys.exit(f"slipway_gateway.generations.export: {error}")
    note = f", {unreadable} of them without contents, whose keys are lost" if unreadable else ""
    sys.stderr.write(f"{written} rows written{note}\n")


def write(rows: Iterable[Row], out: str) -> tuple[int, int]:
    """Writes rows to a new file; returns how many, and how many of them could not be opened.

    Raises:
        OSError: the file cannot be written, or exists.
        ValueError: Parquet cannot be written here.
    """
    counts = {"written": 0, "unreadable": 0}

    def counted() -> Iterator[Row]:
        for row in rows:
            counts["written"] += 1
            counts["unreadable"] += row["unreadable"] is not None
            yield row

    write_rows = _write_parquet if out.endswith(".parquet") else _write_lines
    if write_rows is _write_parquet:
        _pyarrow()  # before there is a file
    with _file(out) as file:
        write_rows(counted(), file)
    return counts["written"], counts["unreadable"]


def exported(row: Row) -> Row:
    """A row with texts: contents that are no text in UTF-8 are null. `texts`: those of the response, by choice."""
    shown = {name: value for name, value in row.items() if name != "bytes"}
    if isinstance(row["at"], str):
        shown["at"] = datetime.fromisoformat(row["at"])
    output = row["output"] if not row["output_encoding"] else None
    pieces = None
    if output is not None:
        pieces = read_text_of_events(output) if row["stream"] else read_text(output)
    shown["texts"] = ["".join(parts) for _, parts in sorted(pieces.texts.items())] if pieces else None
    shown["input"], shown["output"] = _text(row["input"]), _text(output)
    return shown


def _text(content: bytes | None) -> str | None:
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        return None


def _file(out: str) -> AbstractContextManager[BinaryIO]:
    """A new file that its owner alone may read. Raises OSError."""
    if out == "-":
        return nullcontext(sys.stdout.buffer)
    return os.fdopen(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def _write_lines(rows: Iterable[Row], file: BinaryIO) -> None:
    for row in rows:
        file.write(msgspec.json.encode({**row, "at": _utc(row["at"])}) + b"\n")


def _utc(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds")


def _write_parquet(rows: Iterable[Row], file: BinaryIO) -> None:
    arrow, parquet = _pyarrow()
    iterator = iter(rows)
    group = list(islice(iterator, _GROUP_ROWS))
    schema = _schema(arrow)
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        while group:
            writer.write_table(arrow.Table.from_pylist(group, schema=schema))
            group = list(islice(iterator, _GROUP_ROWS))


def _schema(arrow: Any) -> Any:
    texts = ("id", "tenant", "route", "revision", "request_id", "path", "outcome", "input_hash", "output_hash")
    omitted = ("output_encoding", "input", "output", "input_omitted", "output_omitted", "unreadable")
    return arrow.schema([
        ("at", arrow.timestamp("ms", tz="UTC")),
        *((name, arrow.int64()) for name in _NUMBERS),
        ("seconds", arrow.float64()),
        ("stream", arrow.bool_()),
        *((name, arrow.string()) for name in (*texts, *omitted)),
        ("texts", arrow.list_(arrow.string())),
    ])  # fmt: skip


def _pyarrow() -> Sequence[Any]:
    """Raises ValueError: it is not installed."""
    try:
        return importlib.import_module(PYARROW), importlib.import_module(f"{PYARROW}.parquet")
    except ImportError:
        raise ValueError("Parquet needs the package pyarrow: pip install 'slipway[parquet]', or write .jsonl") from None


if __name__ == "__main__":
    main()
