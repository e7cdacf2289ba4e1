"""The audit log on disk: its chain goes on after a restart, a crash and another operator."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from slipway_contracts.hash_chain import Chain, read_line
from slipway_operator.audit.trail import Trail

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)


def opened(path: Path | str) -> Trail:
    trail = Trail(str(path), lambda: NOW)
    trail.open()
    return trail


def record(generation: int, **fields: Any) -> dict[str, Any]:
    about = {"kind": "Tenant", "namespace": "", "name": "team-a", "uid": "t1", "generation": generation}
    return about | {"action": "changed", "by": []} | fields


def read(path: Path) -> list[dict[str, Any]]:
    chain, found = Chain(), []
    with path.open("rb") as file:
        while line := read_line(file):
            found.append(chain.follow(line))
    return found


def test_the_chain_goes_on_after_a_restart_and_knows_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    opened(path).append([record(1), record(2, field="spec", digest="d")])
    again = opened(path)
    assert (again.known["t1"].generation, dict(again.known["t1"].fields), again.since) == (2, {"spec": "d"}, NOW)
    again.append([record(3)])
    assert [(one["seq"], one["action"], one.get("generation")) for one in read(path)] == [
        (1, "begun", None),
        (2, "changed", 1),
        (3, "changed", 2),
        (4, "changed", 3),
    ]
    assert path.stat().st_mode & 0o007 == 0


def test_two_operators_append_to_one_chain(tmp_path: Path) -> None:
    """The second one leads after the first: each reads what the other appended."""
    path = tmp_path / "audit.log"
    first, second = opened(path), opened(path)
    assert first.append([record(1)])
    # What it found may be what the other one wrote: it looks again.
    assert not second.append([record(1)]) and second.known["t1"].generation == 1
    assert second.append([record(2)])
    assert not first.append([record(3)]) and first.append([record(3)])
    assert [one.get("generation") for one in read(path)] == [None, 1, 2, 3]
    second.open()
    assert second.known["t1"].generation == 3


def test_a_line_that_was_written_in_part_is_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "audit.log"
    opened(path).append([record(1)])
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines()[1][:40])
    again = opened(path)
    assert path.read_bytes() == whole and "not whole" in caplog.text
    again.append([record(2)])
    assert [one.get("generation") for one in read(path)] == [None, 1, 2]


def test_a_chain_that_was_changed_takes_nothing_more(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    opened(path).append([record(1), record(2)])
    path.write_bytes(path.read_bytes().replace(b'"generation":1', b'"generation":7'))
    with pytest.raises(OSError, match="broken at line 3"):
        opened(path)


def test_records_are_written_all_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.log"
    trail = opened(path)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            trail.append([record(1), record(2)])
    assert path.read_bytes() == before and not trail.known
    trail.append([record(1)])
    assert [one.get("generation") for one in read(path)] == [None, 1]


def test_without_a_file_the_log_of_the_process_has_the_chain(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "slipway.audit")
    opened("").append([record(1)])
    chain = Chain()
    lines = [entry.__dict__["audit"].encode() + b"\n" for entry in caplog.records if entry.name == "slipway.audit"]
    assert [chain.follow(line)["action"] for line in lines] == ["begun", "changed"]
    assert caplog.records[-1].__dict__["sha256"] == chain.head


def test_what_is_no_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="none"):
        opened(tmp_path / "none" / "audit.log")
    with pytest.raises(OSError, match="directory"):
        opened(tmp_path)


def test_the_time_of_a_record_is_that_of_its_writing(tmp_path: Path) -> None:
    moments = iter(NOW + timedelta(seconds=n) for n in range(9))
    trail = Trail(str(tmp_path / "a"), lambda: next(moments))
    trail.open()
    trail.append([record(1)])
    assert [one["at"] for one in read(tmp_path / "a")] == [
        "2026-11-25T12:00:00.000+00:00",
        "2026-11-25T12:00:01.000+00:00",
    ]
