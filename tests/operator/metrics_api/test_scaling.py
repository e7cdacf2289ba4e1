"""From pages of pods and reports of gateways to the number of pods: models, demand, publishing, and a new operator."""

import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest

from slipway_contracts.service_levels import ServiceLevels
from slipway_operator.api.v1alpha1.status import AutoscalingStatus
from slipway_operator.metrics_api.exposition import ExposedSample
from slipway_operator.metrics_api.outcomes import OutcomeCounts
from slipway_operator.metrics_api.pod_loads import load_of
from slipway_operator.metrics_api.scaling_runner import ScalingRunner
from slipway_operator.metrics_api.scaling_state import LiveRevision, ScalingState, Terms
from slipway_operator.metrics_api.series import Followed, PodTarget, Series, Unknown
from slipway_operator.model.cluster.observed import Observed, Pod, ScalingReport, Workload
from slipway_operator.model.deployment.autoscaling import Objective
from slipway_operator.model.deployment.objectives import ErrorBudgetTerms
from slipway_operator.scaling_model import fit_text
from slipway_operator.scaling_model.forecast import BUCKET_S, Forecast
from slipway_operator.scaling_model.replicas import Policy, Rule

TTFT = "ttftP95/1000"
LEVELS = ErrorBudgetTerms(ServiceLevels(ttft_milliseconds=1000), Fraction(0), timedelta(days=28))
START = datetime(2026, 11, 2, tzinfo=UTC).timestamp()
FIXED_S, EACH_S = 0.01, 0.001


def terms(ready: int, **fields: Any) -> Terms:
    objective = Objective(fields.pop("acts", True), Policy(1, 20, window_s=60.0))
    return Terms(objective, LEVELS, ready, (LiveRevision("a", 1.0, ready, 0),), **fields)


class World:
    """Pods of one engine, which generate n/(0.01 + 0.001 n) tokens per second and miss above 40 requests."""

    def __init__(self, pods: int) -> None:
        self.names = [f"pod-{number}" for number in range(pods)]
        targets = tuple(PodTarget(name, "10.0.0.1", "a") for name in self.names)
        self.series = Series(Followed("u1", targets, pods, True, objectives=(TTFT,)), 0.0)
        self.now, self.tokens, self.firsts, self.late = 0.0, 0.0, 0.0, 0.0

    def tick(self, running: float, waiting: float = 0.0) -> None:
        rate = running / (FIXED_S + EACH_S * running)
        self.now += 10.0
        self.tokens += 10 * rate
        self.firsts += 10 * rate / 100
        self.late += 10 * rate / 100 * (1.0 if running > 40 else 0.0)
        met = self.firsts - self.late
        for name in self.names:
            buckets = ((0.1, met), (1.0, met), (5.0, self.firsts), (math.inf, self.firsts))
            sample = ExposedSample(waiting, running, self.tokens, 0.1, buckets, 3 * self.tokens)
            self.series.add_reading(name, sample, self.now)
        self.series.add_gateways(int(running) * len(self.names), self.now)
        counts = {TTFT: (round(self.firsts * len(self.names)), round(self.late * len(self.names)))}
        self.series.add_outcomes({"gw-1": counts}, self.now)

    def decide(self, state: ScalingState) -> Any:
        return state.decide(self.series, self.now, START + self.now)


def trained(pods: int = 4) -> tuple[World, ScalingState]:
    world, state = World(pods), ScalingState("u1", terms(pods))
    for step in range(400):
        world.tick(5 + abs(step % 100 - 50))
        world.decide(state)
    return world, state


def test_capacity_and_demand_give_the_pods_that_are_needed() -> None:
    world, state = trained()
    report = state.report
    assert report is not None and report.revisions[0].basis == "Measured"
    truth = 40 / (FIXED_S + EACH_S * 40) * (1 + 3 * state.models["a"].prompt_cost)
    assert report.revisions[0].per_second == pytest.approx(truth, rel=0.1)
    for _ in range(60):
        world.tick(10)
        last = world.decide(state)
    demand = 4 * 10 / (FIXED_S + EACH_S * 10) * (1 + 3 * state.models["a"].prompt_cost)
    assert state.report is not None and state.report.demand == pytest.approx(demand, rel=0.05)
    assert last.desired == math.ceil(demand / report.revisions[0].per_second / 0.8)


def test_a_queue_counts_as_demand_although_pods_serve_no_more() -> None:
    world, state = trained()
    for _ in range(40):
        world.tick(40)
        world.decide(state)
    before = state.report
    for step in range(4):
        world.tick(40, waiting=30.0 * (step + 1))
        last = world.decide(state)
    assert before and state.report and state.report.demand and before.demand
    assert state.report.demand > 1.3 * before.demand
    assert last.desired > before.desired


def test_a_new_operator_goes_on_with_the_numbers_of_the_status() -> None:
    world, state = trained()
    report = state.report
    assert report is not None
    now = datetime.fromtimestamp(START, UTC)
    status = AutoscalingStatus(
        "Act", report.desired, report.rule, report.message, now, now, revisions=report.revisions, history=report.history
    )
    again = ScalingState.restored("u1", terms(4), status, START + world.now)
    world.tick(20)
    first, second = world.decide(state), world.decide(again)
    assert second.desired == first.desired or second.rule is Rule.WAITING
    assert again.report is not None
    assert again.report.revisions[0].per_second == pytest.approx(report.revisions[0].per_second, rel=0.05)
    assert len(report.revisions[0].fit) < 4096 and len(report.history) < 12_288


@pytest.mark.parametrize("season_s", [86_400.0, 123_456.0, 604_800.0])
def test_a_new_operator_goes_on_with_the_forecast_at_its_bucket(season_s: float) -> None:
    forecast = Forecast(season_s)
    for bucket in range(forecast.length + 3):
        forecast = forecast.add(START + bucket * BUCKET_S, 10.0 + bucket % 7)
    again = Forecast.of(fit_text.numbers_of(fit_text.text_of(forecast.numbers())), season_s)
    assert (again.bucket, again.learned) == (forecast.bucket, forecast.learned) and forecast.learned > forecast.length
    later = START + (forecast.length + 4) * BUCKET_S
    assert again.add(later, 1.0).add(later + BUCKET_S, 1.0).learned == forecast.learned + 1


def test_a_lying_pod_makes_no_number_that_the_api_server_refuses() -> None:
    """It would refuse the whole status, and with it the rollback of the revision that lies."""
    world, state = World(1), ScalingState("u1", terms(1))
    tokens = firsts = 0.0
    for step in range(60):
        world.now += 10.0
        tokens += 1e15 if step > 50 else 10.0
        firsts += 10.0
        buckets = ((0.1, firsts), (math.inf, firsts))
        world.series.add_reading("pod-0", ExposedSample(0, 1, min(tokens, 1e15), 0, buckets, 0), world.now)
        world.series.add_gateways(1, world.now)
        world.decide(state)
        assert state.report is not None and (state.report.utilization_percent or 0) < 2**31
        if step == 52:
            assert state.report.demand is not None and state.report.demand > 1e12


@pytest.mark.parametrize("text", ["", "x", "nan nan nan", "1e308 " * 300, "-1 -1 -1", "1 1 9 " + "5 " * 50])
def test_forged_numbers_of_a_status_are_no_model(text: str) -> None:
    now = datetime.fromtimestamp(START, UTC)
    status = AutoscalingStatus("Act", 10**9, "", "", now, now, history=text)
    revision = replace(trained()[1].report.revisions[0], fit=text)  # type: ignore[union-attr]
    state = ScalingState.restored("u1", terms(2), replace(status, revisions=(revision,)), START)
    world = World(2)
    for _ in range(4):
        world.tick(5)
        decision = world.decide(state)
    assert 1 <= decision.desired <= 20


def test_silent_pods_are_not_zero_demand() -> None:
    world, state = trained()
    for name in world.names[1:]:
        world.series.add_reading(name, "it does not answer", world.now)
    world.now += 45.0
    world.series.add_reading("pod-0", ExposedSample(0, 0, world.tokens, 0, None, 0), world.now)
    decision = world.decide(state)
    assert decision.rule is Rule.UNKNOWN and state.report is not None and state.report.demand is None


def test_the_load_of_a_pod() -> None:
    readings = [
        (0.0, ExposedSample(0, 4, 100, 0, ((0.5, 0.0), (2.0, 0.0), (math.inf, 0.0)), 50)),
        (10.0, ExposedSample(2, 6, 300, 0, ((0.5, 5.0), (2.0, 8.0), (math.inf, 10.0)), 150)),
    ]
    load = load_of(readings, 1.25)
    assert (load.running, load.waiting, load.generated, load.prompts, load.requests) == (5, 2, 20, 10, 1)
    assert load.missed == pytest.approx(1 - 0.65)


def test_counters_of_gateways_that_come_go_and_begin_again() -> None:
    counts = OutcomeCounts(60.0)
    assert counts.within(60.0, 0.0) == (0.0, {})
    counts.add({"a": {TTFT: (1000, 10)}}, (TTFT,), 0.0)
    counts.add({"a": {TTFT: (1100, 20)}, "b": {TTFT: (500, 500)}}, (TTFT,), 10.0)
    counts.add({"a": {TTFT: (20, 2)}, "b": {TTFT: (510, 501)}, "c": {}}, (TTFT,), 20.0)
    assert counts.within(60.0, 20.0) == (20.0, {TTFT: (130, 13)})
    counts.add({}, (TTFT,), 81.0)
    assert counts.within(60.0, 81.0)[0] == 0.0


class Sampler:
    def __init__(self, series: Series, world: World) -> None:
        self._series, self._world = series, world

    def peek(self, _: Any) -> Series:
        return self._series

    def clock(self) -> float:
        return self._world.now


def runners(acts: bool) -> Iterator[tuple[World, ScalingRunner, list[Any]]]:
    world, state = trained()
    state.follow(replace(terms(4, acts=acts)))
    woken: list[Any] = []
    runner = ScalingRunner(Sampler(world.series, world), woken.append, lambda: START + world.now)  # type: ignore[arg-type]
    runner._states[("default", "chat")] = state
    yield world, runner, woken


@pytest.mark.parametrize("acts", [True, False])
def test_a_number_is_published_only_where_it_acts(acts: bool) -> None:
    for world, runner, woken in runners(acts):
        world.tick(20)
        runner.decide(("default", "chat"))
        assert woken == [("default", "chat")]
        if acts:
            number = world.series.number("slipway_desired_replicas", world.now)
            state = runner._states[("default", "chat")]
            assert state.report is not None and number.value == state.report.desired
            with pytest.raises(Unknown):  # nothing was decided for a while: autoscalers must not follow an old number
                world.series.number("slipway_desired_replicas", world.now + 31)
        else:
            with pytest.raises(Unknown, match="mode Act"):
                world.series.number("slipway_desired_replicas", world.now)


def test_advice_is_what_acting_would_publish() -> None:
    decisions = []
    for acts in (True, False):
        for world, runner, _ in runners(acts):
            numbers = []
            for step in range(60):
                world.tick(5 + step % 45)
                runner.decide(("default", "chat"))
                report = runner._states[("default", "chat")].report
                assert isinstance(report, ScalingReport)
                numbers.append((report.desired, report.rule, report.message))
            decisions.append(numbers)
    assert decisions[0] == decisions[1] and len(set(decisions[0])) > 5


async def test_numbers_that_break_a_decision_hinder_no_other_deployment(caplog: pytest.LogCaptureFixture) -> None:
    for world, runner, woken in runners(acts=True):
        state = runner._states[("default", "chat")]
        runner._states[("default", "broken")] = replace(state, terms=None)  # type: ignore[arg-type]
        world.tick(20)
        await runner.look()
        assert woken == [("default", "chat")] and "default/broken" in caplog.text


def test_a_pod_that_is_unready_for_a_moment_did_not_start_for_hours() -> None:
    for _, runner, _ in runners(acts=True):
        key, created = ("default", "chat"), datetime.fromtimestamp(START, UTC)
        state = runner._states[key]
        before = len(state.models["a"].starts_s)
        for minutes, ready in ((0, False), (2, True), (300, False), (600, True)):
            pod = Pod("chat-1", created, ready)
            observed = Observed(workloads={"a": Workload("a", "chat-a", 1, 1, int(ready), pods=(pod,))})
            runner._time_starts(key, state, observed, created + timedelta(minutes=minutes))
        assert state.models["a"].starts_s[before:] == (120.0,)
