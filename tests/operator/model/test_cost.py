"""Prices, and what pods with a node cost."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from prometheus_client.exposition import generate_latest

from slipway_operator.model.cluster.cost import RevisionPods, cost_per_hour, parse_prices, revision_pods
from slipway_operator.model.cluster.observed import Observed, Snapshot, Workload
from slipway_operator.model.inputs.pod_inputs import Engine, Model, PodInputs, Resources
from slipway_operator.settings import OperatorSettings, parse
from slipway_operator.telemetry import revisions
from slipway_operator.telemetry.metrics import Metrics
from tests.support.settings import parsed

GPUS = Resources("8", "16Gi", ("nvidia.com/gpu", 2))
PRICES = {"nvidia.com/gpu": 2.5, "cpu": 0.1, "memory": 0.01}
KEY = ("default", "chat")
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("resources", "prices", "expected"),
    [
        (GPUS, PRICES, 3 * (2 * 2.5 + 8 * 0.1 + 16 * 0.01)),
        (GPUS, {"nvidia.com/gpu": 2.5}, 15.0),
        (Resources("500m"), PRICES, 0.15),
        (Resources("500m", None, None), {"nvidia.com/gpu": 2.5}, None),
        (Resources("8", None, ("amd.com/gpu", 1)), PRICES, None),
        (Resources(), PRICES, None),
        (GPUS, {}, None),
        (Resources("many"), PRICES, None),
        (Resources("1e400"), PRICES, None),
    ],
    ids=(
        *("all", "devices alone", "cores", "no price for it", "a device without a price"),
        *("no request", "no price", "edited by hand", "too large"),
    ),
)
def test_cost_of_three_pods(resources: Resources, prices: dict[str, float], expected: float | None) -> None:
    cost = cost_per_hour(resources, 3, prices)
    assert cost is None if expected is None else cost == pytest.approx(expected)


def test_without_pods_a_known_price_costs_nothing() -> None:
    assert cost_per_hour(GPUS, 0, PRICES) == 0.0


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([("cpu", "")], "cpu=: a price is a number above 0"),
        ([("cpu", "-1")], "cpu=-1: a price is a number above 0"),
        ([("cpu", "0")], "cpu=0: a price is a number above 0"),
        ([("cpu", "nan")], "cpu=nan: a price is a number above 0"),
        ([("cpu", "1e10")], "at most 1000000000"),
        ([("cpu", "1"), ("cpu", "2")], "write each resource once, for example nvidia.com/gpu=2.5"),
        ([("", "1")], "write each resource once"),
        ([(f"r{number}", "1") for number in range(33)], "33 prices: at most 32 are possible"),
    ],
)
def test_an_invalid_price_is_named(pairs: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_prices(pairs)


def test_the_flag_has_the_prices(capsys: pytest.CaptureFixture[str]) -> None:
    def settings(text: str) -> OperatorSettings:
        return parsed(parse, [f"--prices={text}"]).settings

    assert settings("nvidia.com/gpu=2.5, cpu=0.03").prices == (("nvidia.com/gpu", 2.5), ("cpu", 0.03))
    assert settings("").prices == ()
    with pytest.raises(SystemExit):
        settings("nvidia.com/gpu=free")
    assert "nvidia.com/gpu=free: a price is a number above 0" in capsys.readouterr().err


def workload(name: str, *pods: str) -> Workload:
    return Workload(name, len(pods), len(pods), len(pods), scheduled=pods)


def observed(*workloads: Workload) -> Observed:
    inputs = PodInputs(Model("hf://org/m", "chat"), Engine(), GPUS)
    names = ("stable", "canary", "asleep")
    snapshots = {name: Snapshot(name, 1, inputs, "server:1", 300, 2) for name in names}
    return Observed(snapshots=snapshots, workloads={item.revision: item for item in workloads})


def test_pods_with_a_node_count_whatever_their_revision_is_for() -> None:
    """A baseline runs its stable's inputs; a retired revision without pods is no series."""
    seen = observed(
        workload("stable", "stable-1"), workload("stable-baseline", "b-1"), workload("old"), workload("asleep")
    )
    found = revision_pods(seen, ("stable", None, "asleep"))
    assert [(item.revision, item.pods) for item in found] == [
        ("asleep", ()),
        ("stable", ("stable-1",)),
        ("stable-baseline", ("b-1",)),
    ]


def test_standby_pods_cost_whether_they_wait_or_serve() -> None:
    """One that serves counts in the workload of its revision too, and costs once."""
    seen = observed(workload("stable", "stable-1", "s-1"))
    seen = replace(seen, standby={"stable": workload("stable-standby", "s-1", "s-2")})
    assert [item.pods for item in revision_pods(seen, ("stable",))] == [("stable-1", "s-1", "s-2")]


def text(metrics: Metrics) -> str:
    return generate_latest(metrics.registry).decode()


def test_pods_and_their_cost_are_series_that_go_with_the_deployment() -> None:
    metrics = Metrics("1", {"nvidia.com/gpu": 2.5})
    metrics.costs.show(KEY, [RevisionPods("r1", ("chat-r1-a", "chat-r1-b"), GPUS)])
    page = text(metrics)
    assert 'slipway_pod_info{name="chat",namespace="default",pod="chat-r1-b",revision="r1"} 1.0' in page
    assert 'slipway_cost_per_hour{name="chat",namespace="default",revision="r1"} 10.0' in page
    metrics.costs.forget(KEY)
    assert "slipway_pod_info{" not in text(metrics) and "slipway_cost_per_hour{" not in text(metrics)


def test_without_prices_there_is_no_cost() -> None:
    metrics = Metrics("1")
    metrics.costs.show(KEY, [RevisionPods("r1", ("a",), GPUS)])
    assert "slipway_cost_per_hour" not in text(metrics)
    assert "slipway_pod_info{" in text(metrics)


def test_pods_have_a_bounded_number_of_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revisions, "MOST_PODS", 3)
    metrics = Metrics("1", {"nvidia.com/gpu": 2.5})
    metrics.costs.show(KEY, [RevisionPods(name, ("a", "b"), GPUS) for name in ("r1", "r2", "r3")])
    page = text(metrics)
    assert page.count("slipway_pod_info{") == 3
    assert "slipway_pod_info_left_out 3.0" in page
    assert page.count("slipway_cost_per_hour{") == 3, "the cost counts all pods"
