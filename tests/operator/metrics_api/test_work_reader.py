"""What the work of revisions is read from: pages of pods, counts of gateways, and prices."""

from dataclasses import replace
from typing import Any

import pytest

from slipway_contracts.counters import GenerationCounts, RevisionCounts
from slipway_operator.component import ReconciledDeployment
from slipway_operator.metrics_api.exposition import ExposedSample
from slipway_operator.metrics_api.series import Followed, PodTarget, Series
from slipway_operator.metrics_api.work_reader import MOST_READINGS, WorkReader
from slipway_operator.model.analysis.template import Template, parse
from slipway_operator.model.cluster.observed import Gateway, Observed, RevisionWork, Snapshot, Workload
from slipway_operator.model.inputs.pod_inputs import parse_inputs

KEY = ("default", "chat")
COST = {"name": "cost", "event": "CostIncrease", "share": 0.5, "maxCostIncrease": 0.1}
ERRORS = {"name": "errors", "event": "FirstAttemptError", "share": 0.5}
TEMPLATES = {"release": parse("release", {"metrics": [ERRORS, COST]})}
RESOURCES = {"accelerator": {"resource": "nvidia.com/gpu", "count": 2}}
INPUTS = parse_inputs({"model": {"uri": "file:///models/v1"}, "resources": RESOURCES}, "chat")
SNAPSHOT = Snapshot("a", 1, INPUTS, "image", 600, 3)
PLAIN = {"release": parse("release", {"metrics": [ERRORS]})}


class Sampler:
    """A sampler with the series of one ModelDeployment, and how often it was read."""

    def __init__(self, clock: Any) -> None:
        self.clock, self.reads = clock, 0
        targets = tuple(PodTarget(f"pod-{number}", "10.0.0.1", "a") for number in range(2))
        self.held = Series(Followed("u1", targets, 2, True), 0.0)

    def series(self, key: Any) -> Series:
        assert key == KEY
        self.reads += 1
        return self.held


class World:
    """Two pods of revision a: 3 and 5 requests in progress, 100 and 200 tokens per second; 8 predictions a second."""

    def __init__(self, prices: dict[str, float] | None = None, *, sampled: bool = True) -> None:
        self.now = 0.0
        self.sampler = Sampler(lambda: self.now)
        sampler: Any = self.sampler if sampled else None
        self.reader = WorkReader(sampler, {"nvidia.com/gpu": 2.5} if prices is None else prices, lambda: self.now)
        self.silent: set[str] = set()
        self.templates: dict[str, Template] = TEMPLATES
        self.restarted = False
        self.work: dict[str, RevisionWork] = {}

    def pass_time(self, seconds: int) -> RevisionWork:
        for _ in range(seconds // 5):
            self.now += 5.0
            if self.now % 10 == 0:
                for number, (running, rate) in enumerate(((3.0, 100.0), (5.0, 200.0))):
                    if (name := f"pod-{number}") not in self.silent:
                        self.sampler.held.add_reading(name, ExposedSample(0.0, running, rate * self.now, 0.1), self.now)
            self.observe()
        return self.work.get("a", RevisionWork(0, 0.0))

    def observe(self) -> None:
        count = int(8 * self.now) if not self.restarted else 3
        slow = {"e2e": {"s": (0, count // 2, 0)}}  # each session's first request takes between 0.4 and 0.6 s
        counts = GenerationCounts(1, {"a": 100}, {"a": RevisionCounts(requests=count, slow=slow)})
        bounds = {"e2e": (0.4, 0.6)}
        gateway = Gateway("gw", True, True, incarnation="i", samples=(counts,), bounds=bounds)
        gone = replace(gateway, name="old", gone=True, incarnation="j", samples=())
        observed = Observed(
            snapshots={"a": SNAPSHOT},
            workloads={"a": Workload("a", 2, 2, 2), "b": Workload("b", 1, 1, 0)},
            gateways=(gateway, gone),
            templates=self.templates,
        )
        obj = {"metadata": {"uid": "u1"}, "spec": {}}
        self.work = self.reader.observe(ReconciledDeployment(KEY, obj, None), observed).work  # type: ignore[arg-type]


def test_tokens_are_those_of_pages_and_predictions_those_of_gateways() -> None:
    work = World().pass_time(120)
    assert (work.pods, work.price, work.problem) == (2, 5.0, "")
    assert work.running == pytest.approx(8.0) and work.in_progress == pytest.approx(4.0)
    assert work.tokens == pytest.approx(300 * work.seconds) and work.predictions == pytest.approx(8 * work.seconds)
    assert 55 <= work.seconds <= 60


def test_without_pages_there_are_predictions() -> None:
    work = World(sampled=False).pass_time(120)
    assert work.tokens is None and work.running is None
    assert work.predictions == pytest.approx(8 * work.seconds)


def test_what_is_missing_is_named() -> None:
    assert World({"cpu": 1.0}).pass_time(120).problem.startswith("no price of nvidia.com/gpu: set `pricing`")
    assert World({}).pass_time(120).problem.startswith("no price of nvidia.com/gpu")
    assert World().pass_time(20).problem == "its pods were not read for a minute yet"
    assert World(sampled=False).pass_time(20).problem == "gateways were not read for a minute yet"
    world = World()
    world.silent.add("pod-1")
    assert world.pass_time(120).problem == "the metrics of a pod cannot be read"


def test_a_gateway_that_begins_again_adds_no_jump() -> None:
    world = World(sampled=False)
    world.pass_time(120)
    world.restarted = True
    work = world.pass_time(10)
    assert work.predictions is not None and 0 < work.predictions <= 8 * work.seconds


def test_nothing_is_read_while_no_template_compares_costs() -> None:
    world = World()
    world.templates = PLAIN
    assert world.pass_time(60) == RevisionWork(0, 0.0) and world.sampler.reads == 0
    world.templates = TEMPLATES
    world.pass_time(5)
    assert world.sampler.reads == 1 and set(world.work) == {"a"}, "b has no ready pod"


def test_what_is_kept_is_bounded() -> None:
    world = World(sampled=False)
    for _ in range(3 * MOST_READINGS):
        world.now += 1.0
        world.observe()
    ((_, kept),) = world.reader._read.values()
    assert len(kept) == MOST_READINGS
    world.reader.forget(KEY)
    assert not world.reader._read
