"""What was found: a missed bar fails its test and is in the report all the same; the table has its own order."""

from pathlib import Path

import pytest

from e2e.autoscaling import COOLDOWN_S, SHRUNK_S, Climb, Descent, Findings, at_least, at_most, exactly, step_bars
from testkit.load.closed import Load, Report

CROWD = Load("http://127.0.0.1:9/v1", "model")


@pytest.mark.parametrize(
    ("failed", "wanted", "ready", "back", "missed"),
    [(0, 60, 120, COOLDOWN_S + SHRUNK_S, 0), (1, 60, 120, 0, 1), (0, 61, 121, 0, 2), (0, 9, 9, 99, 1)],
)
def test_each_promise_of_a_load_step_can_be_broken(
    failed: int, wanted: float, ready: float, back: float, missed: int
) -> None:
    up, down = Climb(CROWD, 5.0, 5.0 + wanted, 5.0 + ready), Descent(Report(), 200.0, 200.0 + back)
    assert [bar.ok for bar in step_bars("a step", up, down, failed)].count(False) == missed


def test_a_missed_bar_fails_and_is_kept() -> None:
    found = Findings()
    found.add("second", "well", at_least("pods", 4, 4), at_most("s", 1.26, 2))
    with pytest.raises(AssertionError, match="failed requests is 3, must be 0"):
        found.add("first", "badly", exactly("failed requests", 3, 0))
    assert found.markdown(("first", "second")).splitlines()[-2:] == ["| first | badly |", "| second | well |"]
    report = found.report()
    assert [(bar["value"], bar["ok"]) for bar in report["bars"]] == [(4, True), (1.3, True), (3, False)]
    assert report["rows"][0] == {"experiment": "second", "seen": "well"}


def test_the_page_has_a_place_for_the_table() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "autoscaling.md").read_text()
    assert page.count("<!-- table -->") == page.count("<!-- end of the table -->") == 1
