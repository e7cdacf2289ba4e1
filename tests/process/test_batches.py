"""A batch with poisoned records: these alone are left out, in few calls of the writer."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_process.batches import MAX_QUARANTINE_BYTES, Quarantine, write_apart

pytestmark = pytest.mark.finding("F4")


class Writer:
    """Writes all or none. A negative record is refused; after `works` calls the writer is away."""

    def __init__(self, works: int = 1 << 30) -> None:
        self.written: list[int] = []
        self.calls, self._works = 0, works

    def write(self, records: Sequence[int]) -> int:
        self.calls += 1
        if self.calls > self._works:
            raise OSError("it is away")
        if any(record < 0 for record in records):
            raise OverflowError("it is poisoned")
        self.written += records
        return len(records)


def is_of_record(error: Exception) -> bool:
    return isinstance(error, OverflowError)


@given(st.lists(st.integers(-3, 100), max_size=60))
def test_every_good_record_is_written_once_and_in_order(batch: list[int]) -> None:
    writer = Writer()
    found = write_apart(writer.write, batch, is_of_record)
    assert writer.written == [record for record in batch if record >= 0]
    assert [record for record, _ in found.refused] == [record for record in batch if record < 0]
    assert sum(result for _, result in found.parts) == len(writer.written)
    assert (found.left, found.error) == ([], None)


@given(st.lists(st.integers(-3, 100), max_size=60), st.integers(0, 40))
def test_what_was_not_written_when_the_writer_went_away_is_left(batch: list[int], works: int) -> None:
    writer = Writer(works)
    found = write_apart(writer.write, batch, is_of_record)
    assert (found.error is None) == (not found.left)
    assert sorted([*writer.written, *(record for record, _ in found.refused), *found.left]) == sorted(batch)


def test_few_calls_find_few_poisoned_records() -> None:
    batch = [*range(5000)]
    for place in (0, 17, 4999):
        batch[place] = -1
    writer = Writer()
    write_apart(writer.write, batch, is_of_record)
    assert writer.calls <= 1 + 2 * 3 * math.ceil(math.log2(5000))


def test_a_quarantine_keeps_the_latest_records_in_bounded_files(tmp_path: Path) -> None:
    count = [0]
    path = tmp_path / "quarantine.jsonl"

    def counted(more: int) -> None:
        count[0] += more

    kept = Quarantine("ledger", path, counted)
    for number in range(60):
        kept.put([({"id": number, "text": "x" * 50_000}, ValueError("no"))])
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["quarantine.jsonl", "quarantine.jsonl.1"]
    assert all(file.stat().st_size <= MAX_QUARANTINE_BYTES for file in files)
    assert json.loads(path.read_text().splitlines()[-1])["record"]["id"] == 59
    assert count == [60]


def test_a_quarantine_raises_nothing(tmp_path: Path) -> None:
    kept = Quarantine("ledger", tmp_path / "missing" / "file", lambda more: None)
    kept.put([({"id": object()}, ValueError("\ud800"))])
