"""Dashboards: every query can be parsed, every series in it has an exporter, and no panel is silent about a lack."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from testkit.cluster.tools import tool
from tests.chart.rendered import CHART
from tests.chart.test_alerts import BY_ENGINES, of_servers
from tests.chart.test_alerts import rules as alert_rules
from tests.chart.test_rules import OURS, RECORDED, exported, expressions, records

BOARDS: dict[str, dict[str, Any]] = {
    file.stem: json.loads(file.read_text()) for file in sorted((CHART / "files" / "dashboards").glob("*.json"))
}
UNITS = {"short", "percent", "percentunit", "s", "reqps", "ops"}
SECONDS, SHARE = re.compile(r"_seconds(_bucket)?\b"), re.compile(r"_ratio\b|:ratio1h|utilization:avg")
TIMES = {"$__rate_interval": "5m", "$__range": "3h"}


def panels(board: str) -> list[dict[str, Any]]:
    return [panel for panel in BOARDS[board]["panels"] if panel["type"] != "row"]


def queries(board: str) -> list[str]:
    """All of a dashboard, its variables included."""
    variables = [item["query"] for item in BOARDS[board]["templating"]["list"] if item["type"] == "query"]
    return [target["expr"] for panel in panels(board) for target in panel["targets"]] + variables


def test_there_is_one_for_each_question() -> None:
    assert set(BOARDS) == {"fleet", "model", "tenants", "engines", "jobs"}
    assert len({board["uid"] for board in BOARDS.values()}) == len(BOARDS)


@pytest.mark.parametrize("board", BOARDS)
def test_every_series_is_exported_or_recorded(board: str) -> None:
    recorded = records() | {rule["record"] for rule in alert_rules() if "record" in rule}
    known = exported() | of_servers()
    for text in queries(board):
        assert set(RECORDED.findall(text)) <= recorded, text
        assert set(OURS.findall(RECORDED.sub("", text))) <= known, text
        assert {name.removesuffix("_total") for name in BY_ENGINES.findall(text)} <= known, text


@pytest.mark.parametrize("board", BOARDS)
def test_a_panel_says_what_it_shows_and_what_is_missing(board: str) -> None:
    """On a cluster without GPUs and prices a graph of zeros would lie."""
    shown = panels(board)
    assert len({panel["id"] for panel in BOARDS[board]["panels"]}) == len(BOARDS[board]["panels"])
    for panel in shown:
        assert panel["fieldConfig"]["defaults"]["noValue"] and panel["description"] and panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}" and panel["targets"]
        assert all(target["legendFormat"] for target in panel["targets"])
    placed = [(grid["x"], grid["y"]) for panel in shown for grid in [panel["gridPos"]]]
    assert len(set(placed)) == len(placed), "no panel is over another"


@pytest.mark.parametrize("board", BOARDS)
def test_units_follow_from_the_series(board: str) -> None:
    for panel in panels(board):
        unit = panel["fieldConfig"]["defaults"]["unit"]
        assert unit in UNITS, panel["title"]
        for target in panel["targets"]:
            if SECONDS.search(target["expr"]):
                assert unit == "s", panel["title"]
            if SHARE.search(target["expr"]) and "cost" not in target["expr"]:
                assert unit == "percentunit", panel["title"]


def test_every_rule_is_used_by_a_dashboard_or_another_rule() -> None:
    used = " ".join(
        (*expressions(), *(rule["expr"] for rule in alert_rules()), *(q for b in BOARDS for q in queries(b)))
    )
    assert not [name for name in records() if name not in used]


@pytest.mark.extended
def test_every_query_of_the_dashboards_can_be_parsed(tmp_path: Path) -> None:
    texts = [text for board in BOARDS for text in queries(board) if not text.startswith("label_values")]
    listed = [{"record": f"query:{number}", "expr": _with_times(text)} for number, text in enumerate(texts)]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": listed}]}))
    command = (tool("promtool"), "check", "rules", file)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and f"{len(texts)} rules found" in done.stdout, done.stdout + done.stderr


def _with_times(text: str) -> str:
    for name, value in TIMES.items():
        text = text.replace(name, value)
    return text
