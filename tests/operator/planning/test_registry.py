"""An alias of a registered model that moves is a new revision, and nothing else of a registry moves anything."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from slipway_operator.model.cluster.observed import RegistryAnswer
from slipway_operator.model.deployment.spec import Invalid, parse
from slipway_operator.model.inputs.registry import (
    RegistryFacts,
    RegistryReference,
    RegistryVersion,
    read_reference,
    source_of,
)
from slipway_operator.planning.facts import registry, verdicts
from tests.support.model_cluster import ModelCluster, cluster
from tests.support.planned import plan

URI = "models:/chat@champion"


def answer(version: str, uri: str = URI, **facts: Any) -> RegistryAnswer:
    found = RegistryVersion(uri, version, f"mlflow-artifacts:///1/run{version}/artifacts/model", RegistryFacts(**facts))
    return RegistryAnswer(found)


def following(version: str = "3", uri: str = URI) -> ModelCluster:
    """A world in which this version of the model serves."""
    world = cluster(model={"uri": uri})
    world.registry = answer(version, uri)
    world.run_until(None)
    return world


def reasons(world: ModelCluster) -> list[str]:
    return [event.reason for event in world.events]


def condition(world: ModelCluster, kind: str) -> tuple[str, str]:
    return next(((one.status, one.reason) for one in world.parsed().conditions if one.type == kind), ("", ""))


def test_a_moved_alias_is_a_canary_of_the_new_version_and_the_spec_stays() -> None:
    world = following()
    spec, stable = dict(world.spec), world.parsed().stable_revision
    assert world.weights() == {"3": 100} and condition(world, "RegistryResolved") == ("True", "Resolved")
    world.registry = answer("4")
    world.run_until("Paused")
    status = world.parsed()
    assert world.weights() == {"3": 90, "4": 10} and status.stable_revision == stable and world.spec == spec
    assert {one.role: one.registry for one in status.revisions} == {
        "stable": "models:/chat/3",
        "canary": "models:/chat/4",
    }
    assert status.registry and (status.registry.version, status.registry.uri) == ("4", URI)
    assert reasons(world).count("ModelAliasMoved") == 1


def test_a_rejected_version_is_tried_again_only_when_the_alias_moves_again() -> None:
    world = following()
    world.broken = {"mlflow-artifacts:///1/run4/artifacts/model"}
    world.registry = answer("4")
    world.run_until("Aborted")
    attempts = world.parsed().aborted_revisions
    world.run(300)
    assert world.parsed().aborted_revisions == attempts and world.state() == "Aborted"
    assert world.weights() == {"3": 100}, "the alias names the rejected version, and the former one serves"
    world.broken = set()
    world.registry = answer("5")
    world.run_until("Paused")
    assert world.weights() == {"3": 90, "5": 10}


def test_an_alias_that_moves_back_ends_the_rollout_and_moves_nothing_else() -> None:
    world = following()
    world.registry = answer("4")
    world.run_until("Paused")
    world.registry = answer("3")
    world.run_until(None)
    assert world.weights() == {"3": 100} and not registry.verdicts(world.parsed(), world.observed())


@pytest.mark.parametrize("reason", [one for one in registry.REASONS if one != registry.NOT_RESOLVED])
def test_a_registry_that_fails_changes_nothing_even_after_a_restart(reason: str) -> None:
    """The new process has no answer but the failure: the version is that of the status."""
    world = following()
    revisions, table = set(world.snapshots), world.weights()
    world.registry = RegistryAnswer(None, "the tracking server: no answer within 10 s", reason)
    world.run(90)
    assert (set(world.snapshots), world.weights(), world.parsed().phase) == (revisions, table, "Healthy")
    assert condition(world, "RegistryResolved") == ("False", reason)
    assert reasons(world).count("RegistryNotResolved") == 1
    world.registry = answer("3")
    world.run(5)
    assert condition(world, "RegistryResolved") == ("True", "Resolved") and set(world.snapshots) == revisions


def test_without_a_version_nothing_is_made_and_what_served_before_serves() -> None:
    world = cluster(model={"uri": URI})
    world.registry = RegistryAnswer(None, "registered model 'chat' is not in the registry", registry.NOT_FOUND)
    decided = plan(world.obj(), world.parsed(), world.observed(), world.settings, world.now)
    [accepted] = (one for one in decided.status.conditions if one.type == "Accepted")
    assert (accepted.status, accepted.reason) == ("False", registry.NOT_FOUND) and not decided.create
    assert [event.reason for event in decided.events] == ["RegistryNotResolved"] and decided.requeue_after_s
    served = following()
    served.edit(model={"uri": "models:/other@champion"})
    served.run(30)
    assert served.weights() == {"3": 100} and len(served.snapshots) == 1
    assert condition(served, "Accepted") == ("False", registry.NOT_RESOLVED), "the answer is about another URI"


def test_an_alias_and_the_number_of_its_version_are_one_revision() -> None:
    world = following()
    world.edit(model={"uri": "models:/chat/3"})
    world.registry = answer("3", "models:/chat/3")
    world.run(20)
    assert len(world.snapshots) == 1 and world.state() is None and world.weights() == {"3": 100}


def test_the_same_number_with_other_files_is_another_revision() -> None:
    """A registered model that was deleted and made again counts from 1."""
    world = following()
    again = answer("3")
    assert again.version
    world.registry = replace(again, version=replace(again.version, source="s3://models/chat/again"))
    world.run_until("Paused")
    assert len(world.snapshots) == 2


@pytest.mark.parametrize("source", ["file:///etc", "http://169.254.169.254/", "s3://models/../x", "oci://a/b:c", ""])
def test_a_forged_source_in_the_status_is_not_used(source: str) -> None:
    world = following()
    assert world.parsed().registry
    world.forge(world.status | {"registry": world.status["registry"] | {"source": source, "version": "9"}})
    world.registry = RegistryAnswer(None, "away", registry.UNAVAILABLE)
    world.run(30)
    assert len(world.snapshots) == 1 and world.weights() == {"3": 100}


def test_a_forged_number_in_the_status_is_not_used_for_a_fixed_version() -> None:
    world = following(uri="models:/chat/3")
    forged = {"source": "mlflow-artifacts:///1/run9/artifacts/model", "version": "9"}
    world.forge(world.status | {"registry": world.status["registry"] | forged})
    world.registry = RegistryAnswer(None, "away", registry.UNAVAILABLE)
    world.run(30)
    assert len(world.snapshots) == 1 and world.weights() == {"3": 100}


def test_the_decision_about_another_revision_is_no_verdict_about_the_stable_one() -> None:
    """A status from a backup has the decisions of its time, and the stable revision of now."""
    world = following()
    for number in ("4", "5"):
        world.registry = answer(number)
        world.run_until("Paused")
        rollout = world.parsed().rollout
        assert rollout
        world.edit(rollout__promoteFull=rollout.attempt_token)
        world.run_until(None)
        world.run(10)  # until the records have it
        if number == "4":
            backup = dict(world.status)
    stable = world.parsed().stable_revision
    world.forge(backup)
    status = plan(world.obj(), world.parsed(), world.observed(), world.settings, world.now).status
    assert status.stable_revision == stable, "by the records of the revisions"
    assert not registry.verdicts(status, world.observed())


def test_a_verdict_is_about_the_version_and_has_its_own_time() -> None:
    world = following()
    assert not registry.verdicts(world.parsed(), world.observed()), "the first revision is compared with nothing"
    world.registry = answer("4")
    world.run_until("Paused")
    rollout = world.parsed().rollout
    assert rollout
    world.edit(rollout__abort=rollout.attempt_token)
    world.run_until("Aborted")
    [rejected] = registry.verdicts(world.parsed(), world.observed())
    assert (rejected.source.uri, rejected.verdict) == ("models:/chat/4", verdicts.REJECTED)
    assert "UserAbort" in rejected.reason
    world.run(60)
    assert registry.verdicts(world.parsed(), world.observed()) == (rejected,), "it is the same at each look"
    world.registry = answer("5")
    world.run_until("Paused")
    rollout = world.parsed().rollout
    assert rollout
    world.edit(rollout__abort=None, rollout__promoteFull=rollout.attempt_token)
    world.run_until(None)
    found = registry.verdicts(world.parsed(), world.observed())
    assert [(one.source.version, one.verdict) for one in found] == [("5", verdicts.PROMOTED)]
    assert str(world.parsed().stable_revision) in found[0].reason
    assert world.now - found[0].at < timedelta(minutes=1)


def test_facts_of_the_registry_are_in_the_status_and_move_nothing() -> None:
    world = following()
    world.registry = answer("3", owner="ann", description="d", tags=("a=b",), metrics=("loss=0.5",), aliases=("x=3",))
    world.run(5)
    shown = world.parsed().registry
    assert shown and (shown.owner, shown.tags, shown.metrics) == ("ann", ("a=b",), ("loss=0.5",))
    assert len(world.snapshots) == 1


@pytest.mark.parametrize(
    ("uri", "reference"),
    [
        ("models:/chat@champion", RegistryReference("chat", "champion")),
        ("models:/a.b my_model/12", RegistryReference("a.b my_model", version="12")),
        ("models:/é@x-1", RegistryReference("é", "x-1")),
    ],
)
def test_uris_of_mlflow(uri: str, reference: RegistryReference) -> None:
    assert read_reference(uri) == reference and reference.uri == uri


@pytest.mark.parametrize(
    "uri",
    [
        *("models:/chat", "models:/chat/Production", "models:/chat/latest", "models:/chat/0", "models:/chat@"),
        *("models:/m-0123456789abcdef", "models://chat@x", "models:/a:b@x", "models:/a%2f@x", "models:/chat@a/3"),
        *("models:/a\nb@x", "models:/a\u202eb@x", "models:/chat/3 ", "models:/ a@x", "models:/a?b=c@x", "models:"),
    ],
)
def test_other_uris_are_refused_with_the_field(uri: str) -> None:
    spec = parse({"metadata": {"name": "chat"}, "spec": {"model": {"uri": uri}}})
    assert isinstance(spec, Invalid) and "spec.model.uri" in spec.message


@pytest.mark.parametrize(
    ("model", "field"),
    [
        ({"uri": URI, "revision": "sha256:" + "0" * 64}, "spec.model.revision"),
        ({"uri": "models:/chat/3", "task": "predict", "revision": "sha256:" + "0" * 64}, "spec.pool"),
    ],
)
def test_what_does_not_go_with_a_registry_is_refused(model: dict[str, Any], field: str) -> None:
    pool = {"pool": {"name": "small"}} if "pool" in field else {}
    spec = parse({"metadata": {"name": "chat"}, "spec": {"model": model, **pool}})
    assert isinstance(spec, Invalid) and field in spec.message


@pytest.mark.parametrize(
    ("artifacts", "source"),
    [
        ("mlflow-artifacts:/1/abc/artifacts/model", "mlflow-artifacts:///1/abc/artifacts/model"),
        ("mlflow-artifacts://mlflow.example.com:5000/1/m/", "mlflow-artifacts:///1/m"),
        ("s3://models/chat/", "s3://models/chat"),
    ],
)
def test_locations_of_files(artifacts: str, source: str) -> None:
    assert source_of(artifacts, "mlflow.example.com:5000") == source


@pytest.mark.parametrize(
    "artifacts",
    [
        *("file:///mnt/models", "/mnt/models", "dbfs:/models", "gs://models/chat", "http://a.b/c", "models:/m-1", ""),
        *("mlflow-artifacts://elsewhere:5000/1/m", "mlflow-artifacts:/", "mlflow-artifacts:/1/../2", "s3://M/x"),
        *("s3://models/a?b", "mlflow-artifacts:/a\nb", "mlflow-artifacts:/" + "a" * 3000, "wasbs://a@b/c"),
    ],
)
def test_other_locations_are_refused_by_name(artifacts: str) -> None:
    with pytest.raises(ValueError, match="its files are at") as refusal:
        source_of(artifacts, "mlflow.example.com:5000")
    assert str(refusal.value).isprintable() and len(str(refusal.value)) < 400
