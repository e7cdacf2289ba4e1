"""Alerts: each has a section with what to do, its series have an exporter, and promtool has it fire and stay silent."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from testkit import ROOT
from testkit.cluster.tools import tool
from tests.chart.rendered import CHART
from tests.chart.test_rules import OURS, RECORDED, exported, records

ALERTS, RULES, PAGE = CHART / "files" / "alerts.yaml", CHART / "files" / "rules.yaml", ROOT / "docs" / "alerts.md"
# BaseLoader leaves scalars as text: 0x20 are samples and no number.
WORDS: list[dict[str, Any]] = [
    alert
    for group in yaml.load((ROOT / "docs" / "alerts.yaml").read_text(), yaml.BaseLoader)["groups"]
    for alert in group["alerts"]
]
# What people ask for by name, and what a person on call needs.
NEEDED = {
    "LatencyP99High", "ErrorRateHigh", "GPUIdle", "GPUSaturated", "AccuracyLow", "QueueLong", "PrefixCacheHitsFell",
    "ErrorBudgetBurnsFast", "ErrorBudgetBurnsSlowly", "RevisionBurnsBudget", "RolloutStuck", "AnalysisInconclusive",
    "PodsFailing", "GatewaysDisagree", "QuotaNearlySpent", "LedgerNotWritten", "JobsLate", "GatewayCertificateExpires",
    "InternalCertificateExpires", "ModelCacheFull", "OperatorNotLeading", "EngineRestarts", "DeploymentDegraded",
    "NameConflict",
}  # fmt: skip
BY_ENGINES = re.compile(r"\bvllm:[a-z_]+")


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def test_every_alert_that_is_needed_is_there_with_severity_and_runbook() -> None:
    alerts = {rule["alert"]: rule for rule in rules() if "alert" in rule}
    assert {f"Slipway{name}" for name in NEEDED} <= set(alerts)
    sections = set(re.findall(r"^### (\w+)$", PAGE.read_text(), re.MULTILINE))
    for name, rule in alerts.items():
        assert name in sections and rule["annotations"]["runbook_url"] == f"docs/alerts.md#{name.lower()}"
        assert rule["labels"]["severity"] in ("critical", "warning", "info") and rule["annotations"]["summary"]


def test_every_series_of_an_alert_is_exported_or_recorded() -> None:
    """Those of our own server too; vLLM has the same names."""
    known = exported() | of_servers()
    recorded = records() | {rule["record"] for rule in rules() if "record" in rule}
    for rule in rules():
        text = rule["expr"]
        assert set(RECORDED.findall(text)) <= recorded, text
        assert set(OURS.findall(RECORDED.sub("", text))) <= known, text
        assert {name.removesuffix("_total") for name in BY_ENGINES.findall(text)} <= known, text


def of_servers() -> set[str]:
    """Names on the pages of the jobs process and of the server of language models."""
    code = (
        "from slipway_jobs.telemetry import JobsMetrics; from slipway_server.metrics import ServerMetrics\n"
        "jobs = JobsMetrics().registry.collect(); server = ServerMetrics('m').registry.collect()\n"
        "print(*(name for family in (*jobs, *server) for name in (family.name, *(s.name for s in family.samples))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return {name for shown in done.stdout.split() for name in (shown, f"{shown}_total")}


@pytest.fixture(scope="module")
def promtool() -> str:
    return tool("promtool")


def _test(alert: dict[str, Any], case: str) -> dict[str, Any]:
    """One test of promtool: what ALERTS has of this alert at the time of the case."""
    found = alert[case]
    series = [{"series": name, "values": values} for name, values in found["series"].items()]
    labels = {"alertname": alert["alert"], "alertstate": "firing", "severity": alert["severity"]} | found.get(
        "labels", {}
    )
    text = ", ".join(f'{name}="{value}"' for name, value in labels.items())
    fires = [{"labels": f"ALERTS{{{text}}}", "value": 1}]
    query = f'ALERTS{{alertname="{alert["alert"]}", alertstate="firing"}}'
    expected = {"expr": query, "eval_time": found["at"], "exp_samples": fires if case == "fires" else []}
    return {
        "name": f"{alert['alert']} {case}",
        "interval": "1m",
        "input_series": series,
        "promql_expr_test": [expected],
    }


def _run(promtool: str, folder: Path, alerts: str, cases: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    (folder / "alerts.yaml").write_text(alerts)
    (folder / "rules.yaml").write_text(RULES.read_text())
    written = {"rule_files": ["rules.yaml", "alerts.yaml"], "evaluation_interval": "1m", "tests": cases}
    (folder / "test.yaml").write_text(yaml.safe_dump(written))
    command = (promtool, "test", "rules", folder / "test.yaml")
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.extended
@pytest.mark.parametrize("case", ["fires", "silent"])
@pytest.mark.parametrize("alert", WORDS, ids=lambda alert: str(alert["alert"]))
def test_an_alert_fires_when_it_should_and_is_silent_when_not(
    promtool: str, tmp_path: Path, alert: dict[str, Any], case: str
) -> None:
    done = _run(promtool, tmp_path, ALERTS.read_text(), [_test(alert, case)])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "part", "other"),
    [
        ("SlipwayGatewayCertificateExpires", "< 7 * 24 * 3600", "< 7 * 3600"),
        ("SlipwayGatewayCertificateExpires", "_seconds > 0)", "_seconds)"),
        ("SlipwayErrorBudgetBurnsFast", 'outcome="bad"', 'outcome="good"'),
        ("SlipwayErrorBudgetBurnsSlowly", "> 3", "> 0.3"),
        ("SlipwayRevisionBurnsBudget", "unless on (namespace, name, objective)", "unless on (revision)"),
        ("SlipwayEngineRestarts", "delta(", "resets("),
        ("SlipwayRolloutStuck", 'phase="Paused"', 'phase="Other"'),
    ],
)
def test_a_wrong_alert_fails(promtool: str, tmp_path: Path, name: str, part: str, other: str) -> None:
    assert part in ALERTS.read_text()
    cases = [_test(alert, case) for alert in WORDS if alert["alert"] == name for case in ("fires", "silent")]
    assert _run(promtool, tmp_path, ALERTS.read_text().replace(part, other), cases).returncode != 0
