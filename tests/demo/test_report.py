"""The summary and its bars."""

import json
from pathlib import Path

from examples.demo.report import as_json, bars, by_version, summary
from examples.demo.story import Outcome
from testkit.load.closed import Failure, Report
from testkit.report import write


def outcome(**changes: object) -> Outcome:
    fields: dict[str, object] = {"requests": 600, "streams": 500, "min_streams": 11, "by_revision": {"aaa": 600}}
    return Outcome(
        seconds={"serve": 10.0},
        reached={"v2 is promoted": True},
        versions={"aaa": "v1"},
        report=Report(**fields | changes),  # type: ignore[arg-type]
    )


def test_all_bars_hold() -> None:
    assert all(bar.ok for bar in bars(outcome()))


def test_each_bar_can_fail() -> None:
    failing = {"requests": 499, "min_streams": 9, "failed": 1, "broken": 1}
    for field, value in failing.items():
        assert [bar.value for bar in bars(outcome(**{field: value})) if not bar.ok] == [value]
    missed = outcome()
    missed.reached["v2 is promoted"] = False
    assert [bar.bar for bar in bars(missed) if not bar.ok] == ["v2 is promoted"]


def test_by_version_keeps_what_it_cannot_name() -> None:
    report = Report(by_revision={"aaa": 2, "zzz": 1}, failures_by_revision={"aaa": 1, "": 4})
    assert by_version(report, {"aaa": "v1"}) == {"v1": (2, 1), "zzz": (1, 0), "-": (0, 4)}


def test_summary_shows_failures_and_what_did_not_hold() -> None:
    failure = Failure(at=0.5, request_id="load-1", broken=True, revision="aaa", text="no [DONE]")
    text = summary(outcome(broken=1, failures=(failure,)), 100)
    assert "load-1 revision=aaa: no [DONE]" in text
    assert "not held: broken streams is 1, must be 0" in text


def test_report_file(tmp_path: Path) -> None:
    path = write(as_json(outcome(), 100), tmp_path)
    assert path == tmp_path / "build" / "reports" / "demo.json"
    written = json.loads(path.read_text())
    assert set(written) >= {"name", "commit", "machine", "rows", "bars"}
    assert written["machine"]["cores"] >= 1
    assert {"phase": "total", "seconds": 100} in written["rows"]
