"""The operator acts on the patches of the command line, and the command line reads the status of the operator."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from slipway_cli import api
from slipway_cli.objects import lease as cli_lease
from slipway_cli.objects.deployment import Deployment, read_deployment
from slipway_cli.objects.history import RevisionRecord
from slipway_cli.objects.pods import list_rows
from slipway_cli.rollouts import intents, waiting
from slipway_cli.rollouts.intents import Change, Decision, Nothing
from slipway_cli.views import analysis as cli_analysis
from slipway_cli.views import steps
from slipway_operator import settings as operator_settings
from slipway_operator.api.v1alpha1.analysis_run import Outcome, Reason, RunVerdict
from slipway_operator.api.v1alpha1.status import State
from slipway_operator.model import labels
from slipway_operator.model.deployment.strategy import parse_strategy
from slipway_operator.planning.analysis import findings
from slipway_operator.planning.rollout.row import STEPPING
from tests.support.model_cluster import SETTINGS, ModelCluster, healthy, model
from tests.support.settings import parsed

STRATEGIES: list[dict[str, Any]] = [
    {"canary": {"steps": [{"setWeight": 10}, {"pause": {}}, {"setWeight": 50}]}},
    {"canary": {"steps": [{"pause": {"duration": "30s"}}, {"setWeight": 50}]}},
    {"canary": {"trafficPercent": 20}},
    {"blueGreen": {"autoPromotionEnabled": False}},
]


def seen(world: ModelCluster) -> Deployment:
    return read_deployment(world.obj())


def records(world: ModelCluster) -> list[RevisionRecord]:
    made = sorted(world.snapshots.values(), key=lambda item: item.ordinal)
    return [RevisionRecord(it.ordinal, it.revision, it.inputs.model.version, it.image, None, {}) for it in made]


def follow(world: ModelCluster, decided: Decision) -> None:
    """Merge the patch into the spec, as the API server does."""
    assert isinstance(decided, Change), decided
    rollout = decided.spec.get("rollout")
    if rollout is None:
        world.edit(**decided.spec)
    else:
        world.edit(**{f"rollout__{field}": value for field, value in rollout.items()})


def canary(**options: Any) -> ModelCluster:
    world = healthy(**options)
    world.edit(model=model("v2"))
    world.run_until("Paused")
    return world


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_promote_ends_the_pause_of_every_strategy(strategy: dict[str, Any]) -> None:
    world = healthy(strategy=strategy)
    world.edit(model=model("v2"))
    world.run_until("Paused")
    follow(world, intents.promote(seen(world)))
    assert isinstance(intents.promote(seen(world)), Nothing), "it was requested already"
    world.run_until(None)
    assert world.weights() == {"v2": 100}
    assert waiting.is_reached(waiting.Goal("healthy"), seen(world))


ROUTE = {"match": [{"headerName": "x-preview", "headerValue": {"exact": "1"}}]}
JUDGED = {"templates": [{"templateName": "llm-default"}]}
BLUE_GREENS: list[dict[str, Any]] = [
    {},
    {"autoPromotionSeconds": 30},
    {"autoPromotionSeconds": 0, "previewReplicaCount": 1},
    {"autoPromotionEnabled": False, "previewReplicaCount": 2, "previewRoute": ROUTE},
    {"prePromotionAnalysis": JUDGED, "postPromotionAnalysis": JUDGED, "autoPromotionEnabled": False},
]


@pytest.mark.parametrize("strategy", [*STRATEGIES, *({"blueGreen": chosen} for chosen in BLUE_GREENS)])
def test_each_step_has_a_description(strategy: dict[str, Any]) -> None:
    assert len([*steps.describe_steps(strategy)]) == len(parse_strategy(strategy).steps)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_step_list_is_as_long_as_the_operators(strategy: dict[str, Any]) -> None:
    world = healthy(strategy=strategy)
    world.edit(model=model("v2"))
    world.run_until("Paused")
    marks = [line.mark for line in steps.list_steps(seen(world))]
    assert marks.index(steps.NOW) == world.parsed().rollout.step_index  # type: ignore[union-attr]


def test_promote_full_skips_the_steps() -> None:
    world = canary()
    follow(world, intents.promote_full(seen(world)))
    world.run_until(None)
    assert world.weights() == {"v2": 100}


def test_abort_then_retry() -> None:
    world = canary()
    follow(world, intents.abort(seen(world)))
    world.run_until("Aborted")
    assert waiting.find_failure(seen(world))
    assert isinstance(intents.abort(seen(world)), Nothing)
    follow(world, intents.retry(seen(world)))
    world.run_until("Paused")
    assert world.parsed().rollout.attempt == 2  # type: ignore[union-attr]
    assert waiting.find_failure(seen(world)) is None
    follow(world, intents.abort(seen(world)))
    world.run_until("Aborted")


def test_undo_in_flight_after_a_promotion_and_back_again() -> None:
    world = canary()
    follow(world, intents.undo(seen(world), records(world), None))
    world.run_until(None)
    assert (world.weights()["v1"], seen(world).phase) == (100, "Healthy")
    assert waiting.is_reached(waiting.Goal("healthy"), seen(world)), "a rollback is what the user wants"
    follow(world, intents.undo(seen(world), records(world), "2"))
    world.run_until("Paused")
    follow(world, intents.promote_full(seen(world)))
    world.run_until(None)
    assert world.weights() == {"v2": 100}
    follow(world, intents.undo(seen(world), records(world), None))
    world.run_until(None)
    assert world.weights() == {"v1": 100}


@pytest.mark.finding("S11")
def test_a_rejection_keeps_its_reason_and_undo_to_it_warns() -> None:
    world = canary()
    follow(world, intents.abort(seen(world)))
    world.run_until("Aborted")
    rejected = world.parsed().rollout.revision  # type: ignore[union-attr]
    for version in ("v3", "v4", "v5", "v6", "v7", "v8"):
        world.edit(model=model(version))
        world.run_until("Paused")
        follow(world, intents.promote_full(seen(world)))
        world.run_until(None)
    assert len(seen(world).status["decisions"]) == 20, "older decisions are dropped by now"
    [rejection] = seen(world).rejections(rejected)
    assert rejection.message == "aborted by spec.rollout.abort"
    decided = intents.undo(seen(world), records(world), rejected)
    assert isinstance(decided, Change) and "aborted by spec.rollout.abort" in str(decided.warning)
    follow(world, decided)
    world.run_until(None)
    assert seen(world).rolled_back_to == rejected
    assert f"rollback to it holds in place of {seen(world).current}" in seen(world).message


def test_pause_holds_and_resume_lets_go() -> None:
    world = healthy(strategy={"canary": {"steps": [{"setWeight": 10}]}})
    follow(world, intents.pause(seen(world)))
    world.edit(model=model("v2"))
    world.run(20)
    assert (world.weights(), seen(world).phase) == ({"v1": 100, "v2": 0}, "Paused")
    follow(world, intents.resume(seen(world)))
    world.run_until(None)
    assert world.weights() == {"v2": 100}


def test_a_rejection_by_the_deadline_is_a_failure_and_a_superseded_attempt_is_none() -> None:
    world = healthy()
    world.broken = {"file:///models/v2"}
    world.edit(model=model("v2"))
    assert not waiting.is_reached(waiting.Goal("healthy"), seen(world)), "the status belongs to the former spec"
    world.run_until("Aborted")
    assert "shard 2 is missing" in (waiting.find_failure(seen(world)) or "")
    world.edit(model=model("v3"))
    while not waiting.is_reached(waiting.Goal("stable", "v3"), seen(world)):
        world.reconcile()
        world.pass_time()
        assert waiting.find_failure(seen(world)) is None
        if seen(world).phase == "Paused" and isinstance(decided := intents.promote(seen(world)), Change):
            follow(world, decided)


def test_every_state_that_has_steps_can_be_promoted_in_full_and_aborted() -> None:
    """The command line treats an unknown state of a newer operator as in flight."""
    for state in STEPPING:
        obj = canary().obj()
        obj["status"]["rollout"]["state"] = state.value
        assert isinstance(intents.promote_full(read_deployment(obj)), Change)
        assert isinstance(intents.abort(read_deployment(obj)), Change)


@pytest.mark.finding("S12")
@pytest.mark.parametrize("seconds", [1, 119, 120, 6120, 7200, 400_000])
def test_forecast_can_be_removed_from_the_message_of_the_operator(seconds: int) -> None:
    verdict = RunVerdict(Outcome.INCONCLUSIVE, Reason.UNDECIDED, "n=412", datetime(2026, 1, 1, tzinfo=UTC), "1", "100")
    assert " left" in findings.sentence(replace(verdict, seconds_left=seconds))
    assert (
        cli_analysis.strip_forecast(f"{findings.sentence(replace(verdict, seconds_left=seconds))}; and more")
        == f"{findings.sentence(verdict)}; and more"
    )


@pytest.mark.finding("S12")
def test_the_command_line_finds_the_operators_lease() -> None:
    assert cli_lease.parse_place(healthy().obj()) == tuple(SETTINGS.lease.split("/"))


@pytest.mark.finding("S10")
@pytest.mark.parametrize("before", [[], ["run"]])
def test_explain_runs_with_the_flags_of_the_operators_pod(before: list[str]) -> None:
    flags = ["--server-image=registry/server:1", "--keys-secret", "slipway-keys", "--admin-port=8001"]
    container = {"name": "operator", "command": ["slipway-operator"], "args": [*before, *flags]}
    sidecar = {"name": "proxy", "command": ["/bin/proxy"]}
    pod = {"metadata": {"name": "operator-1"}, "spec": {"containers": [sidecar, container]}}
    name, (program, *arguments) = cli_lease.explain_command(pod, "team-a", "chat")
    chosen = parsed(operator_settings.parse, arguments, {"POD_NAMESPACE": "slipway-system"})
    settings = chosen.settings
    assert (name, program, chosen.name) == ("operator", "slipway-operator", "explain")
    assert (chosen.namespace, chosen.target, settings.own_namespace) == ("team-a", "chat", "slipway-system")
    assert (settings.server_image, settings.keys_secret) == ("registry/server:1", "slipway-keys")


def test_strings_of_the_cli_are_those_of_the_operator() -> None:
    assert {"Initializing", "CapacityWait", "Paused", "Promoting", "Aborting", "Aborted"} <= {
        str(state) for state in State
    }
    assert api.GROUP_VERSION == labels.API_VERSION
    assert api.KIND == labels.PLURAL
    assert api.MODEL_DEPLOYMENT_LABEL == labels.MODEL_DEPLOYMENT
    assert api.REVISION_LABEL == labels.REVISION


def test_pods_lists_workers_of_groups_by_the_labels_of_the_operator() -> None:
    made = labels.child_labels("chat", "abcdefghij") | {labels.COMPONENT: labels.WORKER}
    worker = {"metadata": {"name": "chat-abcdefghij-0-1", "labels": made}, "spec": {"containers": [{}]}}
    assert [row.name for row in list_rows([worker], "chat", "abcdefghij", "leaders")] == ["chat-abcdefghij-0-1"]
    assert list_rows([worker], "chat", "another", "leaders") == []
