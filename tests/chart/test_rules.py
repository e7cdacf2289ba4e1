"""Recording rules: promtool runs the rules on synthetic series, and every series has an exporter."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from slipway_contracts.route_table import Backend
from slipway_contracts.service_levels import ServiceLevels
from slipway_gateway.balancing.load_balancer import LoadBalancer
from slipway_gateway.routing.table import Route, build
from slipway_gateway.telemetry.metrics import GatewayMetrics
from slipway_operator.model.cluster.cost import RevisionPods
from slipway_operator.model.inputs.pod_inputs import Resources
from slipway_operator.telemetry import revisions
from slipway_operator.telemetry.metrics import Metrics
from testkit.cluster.tools import tool
from tests.chart.rendered import CHART

RULES = CHART / "files" / "rules.yaml"
TESTS = Path(__file__).with_name("rules_test.yaml")
BACKENDS = (Backend("r1", 100),)
OURS = re.compile(r"\bslipway_[a-z0-9_]+")
RECORDED = re.compile(r"\b[a-z_]+:slipway_[a-z0-9_]+:[a-z0-9]+")


def expressions() -> list[str]:
    """All of the rules."""
    return [str(rule["expr"]) for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def records() -> set[str]:
    rules = (rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"])
    return {rule["record"] for rule in rules}


def exported() -> set[str]:
    """The names on /metrics of the operator and of gateways."""
    metrics = Metrics("1", {"cpu": 1.0})
    metrics.costs.show(("n", "chat"), [RevisionPods("r1", ("a",), Resources("1"))])
    names = (*revisions.GAUGES, *revisions.COUNTERS)
    metrics.follow_engines(lambda: iter([("n", "chat", "r1", dict.fromkeys(names, 1.0))]))
    gateway = GatewayMetrics("1")
    LoadBalancer(gateway).publish(
        build([Route("n/chat", "u", "chat", backends=BACKENDS, slo=ServiceLevels(1, 1, 1, True))], ())
    )
    families = [*metrics.registry.collect(), *gateway.registry.collect()]
    shown = {sample.name for family in families for sample in family.samples} | {family.name for family in families}
    ends = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",)}
    return shown | {f"{family.name}{end}" for family in families for end in ends.get(family.type, ())}


def test_every_series_is_exported_or_recorded() -> None:
    for text in expressions():
        assert set(RECORDED.findall(text)) <= records(), text
        assert set(OURS.findall(RECORDED.sub("", text))) <= exported(), text


@pytest.fixture(scope="module")
def promtool() -> str:
    return tool("promtool")


def _run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def _in(folder: Path, rules: str) -> Path:
    (folder / "rules.yaml").write_text(rules)
    return Path(shutil.copy(TESTS, folder))


@pytest.mark.extended
def test_rules_record_what_their_tests_expect(promtool: str, tmp_path: Path) -> None:
    done = _run(promtool, "test", "rules", _in(tmp_path, RULES.read_text()))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.extended
@pytest.mark.parametrize(
    ("part", "other"),
    [
        ('"pod", "$1", "exported_pod"', '"pod", "$1", "other"'),
        (" / 100\n", "\n"),
        (', sub_dev=""', ""),
        ("[1h:1m]) / 60", "[1h:1m])"),
        ("max by (namespace, pod, uuid)", "sum by (namespace, pod)"),
    ],
)
def test_a_wrong_rule_fails(promtool: str, tmp_path: Path, part: str, other: str) -> None:
    assert part in RULES.read_text()
    assert _run(promtool, "test", "rules", _in(tmp_path, RULES.read_text().replace(part, other))).returncode != 0
