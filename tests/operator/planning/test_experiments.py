"""What is published of an Experiment, and what its counts prove."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from slipway_contracts.api.reading import encoded, read
from slipway_contracts.api.writing import to_json
from slipway_contracts.experiments.assignment import Assignment
from slipway_contracts.experiments.report import ArmReport, ExperimentReport, ExperimentsReport, OutcomeReport
from slipway_contracts.experiments.spec import MOST_EXPERIMENTS, ExperimentSpec, refusal
from slipway_contracts.model_routes.spec import ModelRouteSpec
from slipway_operator.api.v1alpha1.experiment import MOST_GATEWAYS, ExperimentStatus
from slipway_operator.judging.experiments import Values, is_mismatch, mean_interval, part_of
from slipway_operator.planning import experiments
from slipway_operator.planning.experiment_counts import Counted, count, merge
from slipway_operator.planning.experiments import DeploymentFacts, ExperimentWorld, Problem, propose

NOW = datetime(2026, 11, 30, tzinfo=UTC)
ROUTE = read(
    ModelRouteSpec, encoded({"aliases": ["alias"], "rules": [{"name": "rest", "backendRefs": [{"name": "chat"}]}]})
)
DEPLOYMENTS = {
    "prod/chat": DeploymentFacts("chat", frozenset({"r-one", "v2"})),
    "prod/small": DeploymentFacts("little"),
    "other/chat": DeploymentFacts("else"),
}


def spec(**fields: Any) -> ExperimentSpec:
    arms = [
        {"name": "control", "weight": 50, "deploymentRef": {"name": "chat"}},
        {"name": "small", "weight": 50, "deploymentRef": {"name": "small"}},
    ]
    return read(ExperimentSpec, encoded({"model": "chat", "unit": {"type": "User"}, "arms": arms} | fields))


def world(published: dict[str, Assignment] | None = None, **routes: ModelRouteSpec) -> ExperimentWorld:
    return ExperimentWorld(DEPLOYMENTS, {f"prod/{name}": route for name, route in routes.items()}, published or {})


def proposed(name: str = "prod/e", given: ExperimentWorld | None = None, **fields: Any) -> Assignment:
    found = propose(name, 1, spec(**fields), given or world(), NOW)
    assert isinstance(found, Assignment), found
    return found


def reason(name: str = "prod/e", given: ExperimentWorld | None = None, **fields: Any) -> tuple[str, str]:
    found = propose(name, 1, spec(**fields), given or world(), NOW)
    assert isinstance(found, Problem), found
    return found.kind, found.reason


# --- what is published


def test_names_lead_to_a_model_route_before_a_deployment() -> None:
    assert proposed().subject == "ModelDeployment/prod/chat"
    assert proposed(model="little").subject == "ModelDeployment/prod/small"
    assert proposed(given=world(chat=ROUTE)).subject == "ModelRoute/prod/chat"
    assert proposed(given=world(gpt=ROUTE), model="alias").subject == "ModelRoute/prod/gpt"
    assert reason(model="else") == ("ResolvedRefs", "ModelNotFound"), "it is of another namespace"


def test_arms_are_deployments_and_revisions_that_are_there() -> None:
    arms = [{"name": "a", "weight": 50, "revision": "r-one"}, {"name": "b", "weight": 50, "revision": "v2"}]
    assert [arm.deployment for arm in proposed(arms=arms).arms] == ["prod/chat"] * 2
    assert reason(arms=arms, given=world(chat=ROUTE)) == ("ResolvedRefs", "ArmNotFound")
    arms[1]["revision"] = "gone"
    assert reason(arms=arms) == ("ResolvedRefs", "RevisionNotFound")
    arms[1] = {"name": "b", "weight": 50, "deploymentRef": {"name": "gone"}}
    assert reason(arms=arms) == ("ResolvedRefs", "ArmNotFound")
    assert reason(rules=["rest"]) == ("ResolvedRefs", "RuleNotFound")
    assert proposed(rules=["rest"], given=world(chat=ROUTE)).rules == ("rest",)


def test_units_of_a_layer_are_those_of_one_experiment() -> None:
    one = proposed("prod/one", layer="ui", allocation={"start": 0, "end": 40})
    taken = {"prod/one": one}
    assert reason("prod/two", world(taken), layer="ui", allocation={"start": 39, "end": 60}) == (
        "Accepted",
        "AllocationOverlap",
    )
    assert proposed("prod/two", world(taken), layer="ui", allocation={"start": 40, "end": 60})
    assert proposed("prod/two", world(taken), layer="prices")
    assert proposed("prod/two", world(taken)), "a layer of its own"
    assert reason("prod/two", world(taken), layer="ui", allocation={"start": 40}, unit={"type": "Tenant"}) == (
        "Accepted",
        "LayerUnitMismatch",
    )
    ended = {"prod/one": replace(one, end_time=NOW - timedelta(hours=1))}
    assert proposed("prod/two", world(ended), layer="ui")
    assert proposed(
        "other/two",
        ExperimentWorld({"other/chat": DeploymentFacts("chat"), "other/small": DeploymentFacts("small")}, {}, taken),
        layer="ui",
    )


def test_a_namespace_has_a_bounded_number_and_those_that_are_there_may_change() -> None:
    full = {f"prod/e{n}": proposed(f"prod/e{n}") for n in range(MOST_EXPERIMENTS)}
    assert reason("prod/more", world(full)) == ("Accepted", "TooManyExperiments")
    assert proposed("prod/e0", world(full), holdoutPercentage=1).holdout == 1


def test_the_version_grows_when_arms_do_and_not_with_the_range() -> None:
    first = proposed(allocation={"end": 10})
    later = NOW + timedelta(days=1)
    wider = propose("prod/e", 2, spec(), world({"prod/e": first}), later)
    assert isinstance(wider, Assignment) and (wider.version, wider.since, wider.end) == (1, NOW, 100)
    moved = propose("prod/e", 3, spec(unit={"type": "Tenant"}), world({"prod/e": first}), later)
    assert isinstance(moved, Assignment) and (moved.version, moved.since) == (2, later)


def test_a_mistake_changes_no_traffic_and_is_an_event() -> None:
    good = proposed()
    before = experiments.status(1, good, Counted(), ExperimentStatus(), NOW)
    assert before.assignment == good and before.phase == "Running"
    wrong = propose("prod/e", 2, spec(model="gone"), world({"prod/e": good}), NOW)
    after = experiments.status(2, wrong, Counted(), before, NOW)
    assert after.assignment == good
    conditions = {one.type: (one.status, one.reason) for one in after.conditions}
    assert conditions["Accepted"] == ("False", "NotResolved")
    assert conditions["ResolvedRefs"] == ("False", "ModelNotFound")
    assert {event.reason for event in experiments.events(before, after)} == {"NotResolved", "ModelNotFound"}
    assert read(ExperimentStatus, encoded(to_json(after))) == after


@pytest.mark.parametrize(
    ("fields", "phase"),
    [
        ({}, "Running"),
        ({"paused": True}, "Paused"),
        ({"startTime": "2026-12-01T00:00:00Z"}, "Pending"),
        ({"endTime": "2026-11-29T00:00:00Z"}, "Ended"),
    ],
)
def test_phases(fields: dict[str, Any], phase: str) -> None:
    assert experiments.phase_of(proposed(**fields), NOW) == phase
    assert experiments.phase_of(None, NOW) == "Pending"


def test_what_the_schema_refuses_a_spec_without_an_api_server_refuses_too() -> None:
    assert not refusal(spec())
    arm = {"name": "a", "weight": 50, "revision": "r"}
    for fields, field in (
        ({"arms": [arm, {**arm, "name": "b", "weight": 51}]}, "weights"),
        ({"arms": [arm, arm]}, "same name"),
        ({"arms": [arm, {"name": "b", "weight": 50}]}, "arms[1]"),
        ({"arms": [arm, {**arm, "name": "holdout"}]}, "holdout"),
        ({"control": "none"}, "control"),
        ({"unit": {"type": "Header"}}, "unit.header"),
        ({"unit": {"type": "Header", "header": "Authorization"}}, "credential"),
        ({"allocation": {"start": 50, "end": 50}}, "allocation"),
        ({"startTime": "2026-12-01T00:00:00Z", "endTime": "2026-11-01T00:00:00Z"}, "startTime"),
    ):
        assert field in refusal(spec(**fields)), fields


# --- what counts prove


def report(
    incarnation: str, shared: bool = False, version: int = 1, forgotten: int = 0, **arms: Any
) -> ExperimentsReport:
    """Arms: units, or units with the units and the sum of the outcome `helpful`."""
    found = {}
    for name, counts in arms.items():
        units, rated, total = counts if isinstance(counts, tuple) else (counts, 0, 0.0)
        found[name] = ArmReport(units, units, 0, {"helpful": OutcomeReport(rated, total)} if rated else {})
    return ExperimentsReport(incarnation, shared, 0, {"prod/e": ExperimentReport("u", version, found, forgotten)})


def counted(*reports: ExperimentsReport, former: Any = (), **fields: Any) -> Counted:
    return count("prod/e", "u", proposed(outcomes=["helpful"], **fields), former, reports)


def test_counts_outlive_gateways_and_operators() -> None:
    first = counted(report("a", control=10, small=12), report("b", control=1, small=2))
    second = counted(report("b", control=3, small=2), report("c", control=4), former=first.gateways)
    assert {arm.name: arm.units for arm in second.arms} == {"control": 10 + 3 + 4, "small": 12 + 2}
    other = counted(report("a", version=2, control=5), former=())
    assert other.gateways == () and other.split[1] == "NoUnits"


def test_old_gateways_are_added_up_and_the_status_stays_small() -> None:
    gateways: Any = ()
    for n in range(50):
        made = counted(report(f"g{n}", shared=n % 2 == 0, control=1, small=(2, 1, 0.5)), former=gateways)
        gateways = made.gateways
    assert len(gateways) <= MOST_GATEWAYS + 2
    assert {arm.name: (arm.units, arm.outcomes[0].units) for arm in made.arms} == {
        "control": (50, 0),
        "small": (100, 50),
    }
    ranks = [one.rank for one in gateways if one.incarnation and not one.shared]
    assert len(set(ranks)) == len(ranks) and min(ranks) > 1, "each has a part of the error rate of its own"


def test_gateways_that_still_report_are_counted_once_however_many_others_came_and_went() -> None:
    gateways: Any = ()
    for n in range(3 * MOST_GATEWAYS):
        made = counted(report("stays", shared=True, control=7), report(f"g{n}", control=1), former=gateways)
        gateways = made.gateways
    assert made.arms[0].units == 7 + 3 * MOST_GATEWAYS
    gateways = ()
    for _ in range(4):
        crowd = [report(f"g{n}", shared=n % 2 == 0, control=1) for n in range(MOST_GATEWAYS + 3)]
        made = counted(*crowd, former=gateways)
        gateways = made.gateways
    assert made.arms[0].units == MOST_GATEWAYS and len(gateways) == MOST_GATEWAYS


def test_reports_of_any_numbers_are_bounded() -> None:
    made = counted(report("x" * 1000, control=(-5, 10, 1e300), small=(1 << 80, -1, -3.0)))
    assert made.arms[0].units == 0 and 0 <= (made.arms[0].outcomes[0].mean or 0) <= 1
    assert merge("prod/e", "another", proposed(), (), [report("a", control=5)]) == ()


def test_a_difference_that_is_proved_is_said_and_one_that_is_not_is_not() -> None:
    clear = counted(report("a", shared=True, control=(2000, 1000, 300.0), small=(2000, 1000, 600.0)))
    assert "is higher" in clear.verdict
    control, small = clear.arms
    assert control.outcomes[0].difference is None and small.outcomes[0].difference == pytest.approx(0.3)
    assert 0.15 < (small.outcomes[0].difference_lower or 0) < 0.3 < (small.outcomes[0].difference_upper or 0) < 0.45
    none = counted(report("a", shared=True, control=(2000, 1000, 300.0), small=(2000, 1000, 310.0)))
    assert "no difference is proved" in none.verdict
    apart = counted(*(report(n, control=(2000, 500, 150.0), small=(2000, 500, 300.0)) for n in "ab"))
    together = counted(*(report(n, True, control=(2000, 500, 150.0), small=(2000, 500, 300.0)) for n in "ab"))
    widths = [(one.arms[1].outcomes[0].upper or 0) - (one.arms[1].outcomes[0].lower or 0) for one in (together, apart)]
    assert widths[0] < widths[1], "gateways that count alone prove less"


def test_a_mismatch_is_found_and_ends_the_verdict() -> None:
    wrong = counted(report("a", control=(5400, 100, 90.0), small=(4600, 100, 10.0)))
    assert wrong.split[:2] == (True, "SampleRatioMismatch") and wrong.verdict.startswith("no verdict")
    assert counted(report("a", control=5050, small=4950)).split[:2] == (False, "AsExpected")
    assert counted(report("a", control=50, small=50, forgotten=3)).split[:2] == (None, "UnitsForgotten")
    assert counted(report("a", True, control=50, small=50, forgotten=3)).split[1] == "AsExpected"


def test_mismatches_are_seldom_reported_where_there_are_none_and_soon_where_there_are() -> None:
    """Experiments of 20,000 units, looked at after each 500."""
    generator = np.random.default_rng(7)
    weights = {"a": 50, "b": 30, "c": 20}

    def stopped(chances: list[float], runs: int) -> list[int]:
        found = []
        for _ in range(runs):
            units = np.cumsum(generator.multinomial(500, chances, size=40), axis=0)
            at = (
                n for n in range(40) if is_mismatch({1: dict(zip(weights, map(int, units[n]), strict=True))}, weights)
            )
            found.append(next(at, -1))
        return found

    assert sum(at >= 0 for at in stopped([0.5, 0.3, 0.2], 25)) == 0
    lost = stopped([0.5 / 0.97, 0.3 / 0.97, 0.17 / 0.97], 10)
    assert all(at >= 0 for at in lost), "an arm that loses 15 % of its units"


@pytest.mark.parametrize("values", ["bernoulli", "beta"])
def test_a_mean_is_in_its_interval_at_all_times(values: str) -> None:
    generator, missed = np.random.default_rng(3), 0
    for _ in range(60):
        drawn = generator.random(1500) < 0.4 if values == "bernoulli" else generator.beta(2, 3, 1500)
        sums = np.cumsum(drawn)
        ends = (mean_interval(Values(n, float(sums[n - 1])), 0.05) for n in range(1, 1500, 50))
        missed += any(not one.lower <= 0.4 <= one.upper for one in ends)
    assert missed <= 6


def test_parts_of_the_error_rate_are_one_together() -> None:
    assert sum(part_of(rank, 1.0) for rank in range(1, 10_000)) == pytest.approx(1, abs=1e-3)
