"""The bench of twin shadows: which bars fall for what, and a short run of all its parts."""

from typing import Any

import pytest

from bench import twin_shadow
from bench.shadow import server


def rows(**changes: Any) -> list[dict[str, Any]]:
    def row(load: str, measure: str, times: float, **pairs: int) -> dict[str, Any]:
        added = {"added_ms": changes.get("added", 0.1), "off_ms": 4.0, "low_ms": 4.0 * (times - 1)}
        return {"load": load, "measure": measure, "pairs": pairs} | added

    times = changes.get("times", {})
    return [
        row("moderate", "ttft p99", 1.0, paired=changes.get("paired", 100), busy=100 - changes.get("paired", 100)),
        row("crossing", "e2e p99", times.get("crossing", 1.1), paired=50, busy=50),
        row("overload", "e2e p99", times.get("overload", 1.1), paired=10, busy=changes.get("busy", 80), full=10),
    ]


def fallen(**changes: Any) -> set[str]:
    return {bar.bar for bar in twin_shadow.bars(rows(**changes)) if not bar.ok}


def test_each_bar_falls_by_its_own_figure() -> None:
    assert fallen() == set()
    assert fallen(added=1.1) == {"added p99 of the first event, all copied, ms"}
    assert fallen(paired=90) == {"share of requests that gave a pair"}
    assert fallen(busy=-10) == {"overload: share of pairs that was withheld"}
    for load in ("crossing", "overload"):
        assert fallen(times={load: 2.1}) == {f"{load}: p99 of clients, times that without pairs, lower end"}


@pytest.mark.integration
async def test_a_short_run_measures_every_load(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PAIRS", 1), ("BLOCK_S", 0.3), ("SETTLE_S", 0.1), ("CALIBRATED_S", 0.3), ("RATE", 20)):
        monkeypatch.setattr(twin_shadow, name, value)
    # Aside they would get no time beside other tests.
    monkeypatch.setattr(twin_shadow, "server", lambda *_: server())
    measured = await twin_shadow.measure()
    assert {row["load"] for row in measured} == {"moderate", "crossing", "overload"} and len(measured) == 12
    assert all(row["off_ms"] < 60_000 and row["on_ms"] < 60_000 for row in measured), "no request failed"
    assert all(sum(row["pairs"].values()) > 0 for row in measured)
    assert len(twin_shadow.bars(measured)) == 5
