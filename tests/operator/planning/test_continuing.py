"""Which analyses go on: whatever becomes of an AnalysisRun, it lets no revision pass, and weights hold."""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest

from slipway_operator.api.v1alpha1.analysis_run import Outcome, RunStatus
from slipway_operator.api.v1alpha1.status import AnalysisReference, Loss, StepVerdict
from slipway_operator.manifests.owner import Owner
from slipway_operator.model.analysis.stored_run import StoredRun, stored_run
from slipway_operator.planning.analysis.continuing import continued, loses, why_lost
from tests.operator.planning.test_analysis import BAD, analyzing, reasons, rows, step
from tests.operator.planning.test_ramp import of_run, ramping
from tests.support.model_cluster import Crashed, ModelCluster
from tests.support.model_gateway import START

RUN = RunStatus("r/1/1", "t", "h", START, START, sequence=4)
REFERENCE = AnalysisReference("r/1/1", "t", run="chat-r", uid="a", sequence=4)
STORED = StoredRun("chat-r", "a", "77", 4, "u1", RUN)


@pytest.mark.parametrize(
    ("stored", "loss"),
    [
        (STORED, None),
        (None, Loss.MISSING),
        (replace(STORED, uid="b"), Loss.FOREIGN),
        (replace(STORED, subject="u2"), Loss.FOREIGN),
        (replace(STORED, run=None), Loss.UNREADABLE),
        (replace(STORED, run=replace(RUN, sequence=3), generation=3), Loss.OLDER),
        (replace(STORED, run=replace(RUN, sequence=5), generation=5), Loss.NEWER),
        (replace(STORED, run=replace(RUN, sequence=5), generation=5, ours=True), None),
        (replace(STORED, generation=5), Loss.EDITED),
        (replace(STORED, generation=5, ours=True), Loss.EDITED),
        (replace(STORED, run=replace(RUN, sequence=5)), Loss.EDITED),  # a forged sequence
        (replace(STORED, run=replace(RUN, sequence=0), generation=0), Loss.OLDER),
        (replace(STORED, run=replace(RUN, id="r/1/2")), Loss.EDITED),
    ],
)
def test_only_the_run_that_the_status_names_as_it_was_written_counts(
    stored: StoredRun | None, loss: Loss | None
) -> None:
    assert why_lost(REFERENCE, stored, "u1") is loss


def test_a_run_that_is_being_deleted_is_missing() -> None:
    metadata = {"name": "chat-r", "uid": "a", "resourceVersion": "1", "generation": 1}
    assert stored_run({"metadata": metadata | {"deletionTimestamp": "2026-01-01T00:00:00Z"}}) is None
    read = stored_run({"metadata": metadata, "spec": {"subjectRef": 1}, "status": []})
    assert read and read.run is None and read.subject == ""


# --- in a rollout -----------------------------------------------------------------------------------------------------

Harm = Callable[[ModelCluster, str], None]


def deleted(world: ModelCluster, name: str) -> None:
    del world.runs[name]


def replaced(world: ModelCluster, name: str) -> None:
    """A client deletes it and creates one of that name that has passed."""
    edited(world, name)
    world.runs[name]["metadata"] |= {"uid": "theirs", "generation": world.runs[name]["status"]["sequence"]}


def edited(world: ModelCluster, name: str) -> None:
    """Another client writes a pass into it."""
    passed = {"outcome": "Pass", "reason": "NotWorse", "message": "m", "since": "2026-01-01T00:00:00Z"}
    world.runs[name]["status"]["verdict"] = passed | {"evidence": "0", "threshold": "100"}
    world.runs[name]["metadata"]["generation"] += 1


def filled(world: ModelCluster, name: str) -> None:
    """Its fields hold anything."""
    world.runs[name]["status"] = {"counts": [{"metric": "x" * 10_000}], "sequence": "7", "verdict": [None]}


def newer(world: ModelCluster, name: str) -> None:
    """An operator died after it wrote the run."""
    world.runs[name]["status"]["sequence"] += 1
    world.runs[name]["metadata"]["generation"] += 1


def older(world: ModelCluster, name: str) -> None:
    """A backup was restored, with the same UID."""
    world.runs[name]["status"]["sequence"] -= 1
    world.runs[name]["metadata"]["generation"] -= 1


HARMS = [deleted, replaced, edited, filled, newer, older]


@lru_cache
def _counting() -> ModelCluster:
    world = analyzing(step(maxDuration="2h"))
    world.rate = 2
    world.run_until("Analyzing")
    world.run(25)
    return world


def counting() -> ModelCluster:
    return copy.deepcopy(_counting())


def lost_condition(world: ModelCluster) -> Any:
    return next((one for one in world.parsed().conditions if one.type == "AnalysisRunLost"), None)


@pytest.mark.parametrize("harm", HARMS)
def test_the_analysis_starts_again_and_weights_hold(harm: Harm) -> None:
    world = counting()
    former, weights, seen = world.run_now(), world.weights(), len(world.events)
    assert former and former.counts
    harm(world, world.status["rollout"]["analysis"]["run"])
    world.reconcile()
    run, condition = world.run_now(), lost_condition(world)
    assert run and run.sequence == 1 and not run.counts and run.started_at > former.started_at
    assert condition and condition.status == "True" and condition.reason.startswith("Run")
    assert [one.reason for one in world.events[seen:]].count("AnalysisRunLost") == 1
    assert (world.state(), world.weights()) == ("Analyzing", weights)
    world.run(30)
    assert lost_condition(world) and world.weights() == weights, "it is shown until the step is over"
    world.rate = 50
    world.run_until(None, 300)
    assert lost_condition(world) is None and world.weights() == {"v2": 100}


@pytest.mark.parametrize("harm", HARMS)
def test_a_pass_in_the_status_does_not_outlive_its_run(harm: Harm) -> None:
    """Nothing is promoted by the contents of a run: the status is written first, and the pass is dropped."""
    world = counting()
    for _ in range(300):
        world.reconcile()
        reference = world.parsed().rollout.analysis  # type: ignore[union-attr]
        if reference and reference.verdict and reference.verdict.outcome is Outcome.PASS:
            break
        world.pass_time()
    assert reference and world.state() == "Analyzing"
    harm(world, reference.run)
    world.reconcile()
    kept = world.parsed().rollout.analysis  # type: ignore[union-attr]
    assert kept and kept.verdict is None and kept.sequence == 1 and kept.lost
    assert world.state() == "Analyzing" and "analysis-passed" not in rows(world)


def test_a_rejection_in_the_status_stands_without_its_run() -> None:
    world = counting()
    rollout = world.parsed().rollout
    assert rollout and rollout.analysis
    verdict = StepVerdict(Outcome.FAIL, "WorseThanStable", "m", START)  # type: ignore[arg-type]
    failed = replace(rollout, analysis=replace(rollout.analysis, verdict=verdict))
    kept, runs = continued(failed, {}, Owner("chat", "default", "u1"))
    assert kept and kept.analysis and kept.analysis.verdict == verdict and not runs and loses(failed, kept)


@pytest.mark.parametrize("harm", [deleted, edited])
def test_a_ramp_keeps_its_weight_and_what_it_has_spent(harm: Harm) -> None:
    """Or who deletes runs would have maxHarm again and again."""
    world = ramping()
    world.run(100, step=5)
    before = of_run(world)
    assert before and before.spent > 0
    harm(world, world.status["rollout"]["analysis"]["run"])
    world.reconcile()
    after = of_run(world)
    assert after and (after.weight, after.spent, after.passed_at) == (before.weight, before.spent, None)
    world.run(15, step=5)
    spent = of_run(world)
    assert spent and spent.spent >= before.spent


def test_a_fresh_read_comes_before_an_analysis_starts_again() -> None:
    """The cached status may be older than the run; then it is read again before anything is dropped."""
    world = counting()
    deleted(world, world.status["rollout"]["analysis"]["run"])
    assert world.reconcile().takes_away and not world.reconcile().takes_away


def test_while_no_run_can_be_written_the_analysis_waits() -> None:
    """The kind is not installed, say: what serves goes on, and a condition says why."""
    world = analyzing(step(maxDuration="10m"))
    world.run_refusal = "the API server does not know analysisruns.slipway.dev"
    world.run_until("Analyzing")
    world.run(60)
    [condition] = [one for one in world.parsed().conditions if one.type == "AnalysisRecorded"]
    assert (condition.status, condition.reason) == ("False", "RunRefused") and world.run_refusal in condition.message
    assert reasons(world).count("AnalysisRunRefused") == 1 and world.parsed().reason == "RunRefused"
    assert not world.runs and world.weights() == {"v1": 75, "v2": 25}
    world.run_refusal = ""
    world.run_until(None, 300)
    assert world.weights() == {"v2": 100} and not [
        one for one in world.parsed().conditions if one.type == "AnalysisRecorded"
    ]


def test_killed_between_both_writes_nothing_passes_that_was_not_judged() -> None:
    """At each write of a run: the next operator finds it newer than the status, and starts again."""
    restarts = 0
    for number in range(2, 6):
        world = analyzing(step(maxDuration="2h"))
        world.bad = {BAD: 0.1}
        world.run_until("Analyzing")
        for _ in range(400):
            if world.run_writes == number:
                world.calls_until_crash = world.calls + 1
            try:
                world.reconcile()
            except Crashed:
                world.calls_until_crash = None
                restarts += 1
            world.pass_time()
            if world.state() != "Analyzing":
                break
        assert world.state() in ("Aborting", "Aborted")
    assert restarts


def test_every_field_of_a_run_is_named_by_a_metric_of_its_template() -> None:
    """A metric that the template lacks is not counted on: the analysis starts again."""
    world = counting()
    name = world.status["rollout"]["analysis"]["run"]
    world.runs[name]["status"]["counts"][0]["metric"] = "invented"
    world.reconcile()
    world.pass_time(10)
    world.reconcile()
    run = world.run_now()
    assert run and all(item.metric != "invented" for item in run.counts)
