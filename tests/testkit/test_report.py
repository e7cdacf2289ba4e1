"""Reports and their figures."""

import json
import math
from pathlib import Path

import pytest

from testkit.report import Bar, quantile, report, write


def test_a_report_has_its_machine_and_its_bars(tmp_path: Path) -> None:
    made = report("load", [{"requests": 3}], [Bar("failed requests", 1, "0", False)], seed=7)
    path = write(made, tmp_path)
    assert path == tmp_path / "build" / "reports" / "load.json"
    written = json.loads(path.read_text())
    assert list(written) == ["name", "commit", "machine", "seed", "rows", "bars"]
    assert written["bars"] == [{"bar": "failed requests", "value": 1, "limit": "0", "ok": False}]
    assert written["machine"]["cores"] >= 1 and written["commit"]


def test_a_bar_is_one_line() -> None:
    assert str(Bar("failed requests", 0, "0", True)) == "ok   failed requests: 0 (0)"
    assert str(Bar("failed requests", 2, "0", False)) == "MISS failed requests: 2 (0)"


@pytest.mark.parametrize(
    ("share", "value"), [(0.0, 1), (0.01, 1), (0.5, 50), (0.501, 51), (0.99, 99), (0.991, 100), (1.0, 100)]
)
def test_a_quantile_is_the_nearest_rank(share: float, value: int) -> None:
    assert quantile(range(100, 0, -1), share) == value


def test_a_quantile_of_nothing() -> None:
    assert math.isnan(quantile([], 0.5)) and quantile([], 0.5, 0.0) == 0.0
