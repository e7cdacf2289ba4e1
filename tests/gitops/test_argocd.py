"""Argo CD's health and actions, by its own scripts in a real Lua interpreter over objects that the operator wrote."""

import json
from copy import deepcopy
from typing import Any

import pytest
import yaml

from slipway_cli.objects.deployment import read_deployment
from slipway_cli.objects.history import RevisionRecord
from slipway_cli.rollouts import intents
from slipway_cli.rollouts.intents import Change
from testkit import ROOT
from tests.gitops import lua, recorded
from tests.operator.planning.test_analysis import analyzing

FOLDER = ROOT / "deploy" / "argocd"
SCRIPTS = FOLDER / "slipway.dev"
HEALTHS = {"Healthy", "Progressing", "Degraded", "Suspended", "Missing", "Unknown"}
ACTIONS = {
    "promote": intents.promote,
    "promote-full": intents.promote_full,
    "abort": intents.abort,
    "retry": intents.retry,
    "pause": intents.pause,
    "resume": intents.resume,
}
ROLLED_OUT = ("ModelDeployment", "ModelAdapter")


def health(kind: str, obj: dict[str, Any]) -> dict[str, Any]:
    found = lua.run(SCRIPTS / kind / "health.lua", obj)
    assert found["status"] in HEALTHS and isinstance(found["message"], str)
    return dict(found)


def command_line(name: str, obj: dict[str, Any]) -> Change | None:
    """What `slipway NAME` would send; None where it has nothing to send."""
    of = read_deployment(obj)
    if name == "undo":
        revisions = {item for item in (of.current, of.stable, of.previous) if item}
        records = [RevisionRecord(number, item, None, "", None, {}) for number, item in enumerate(sorted(revisions), 1)]
        decided = intents.undo(of, records, None)
    else:
        decided = ACTIONS[name](of)
    return decided if isinstance(decided, Change) else None


def changed(name: str, obj: dict[str, Any]) -> dict[str, Any]:
    """The object after an action, whose spec alone may differ."""
    after = lua.action(SCRIPTS / "ModelDeployment" / "actions" / name / "action.lua", deepcopy(obj))
    assert {key: value for key, value in after.items() if key != "spec"} == {
        k: v for k, v in obj.items() if k != "spec"
    }
    return after


@pytest.mark.parametrize("name", recorded.SCENES)
def test_a_model_deployment_has_its_health_in_each_phase(name: str) -> None:
    [one] = (item for item in recorded.deployments() if item.name == name)
    assert health("ModelDeployment", one.obj)["status"] == one.health, one.obj["status"]


@pytest.mark.parametrize("one", recorded.others(), ids=lambda one: f"{one.kind}: {one.name}")
def test_every_other_kind_has_its_health(one: recorded.Recorded) -> None:
    assert health(one.kind, one.obj)["status"] == one.health, one.obj["status"]


def test_an_analysis_run_has_the_health_of_its_verdict() -> None:
    world = analyzing()
    seen = {}
    for _ in range(600):
        world.reconcile()
        if rollout := world.parsed().rollout:
            if rollout.analysis:
                run = world.saved_run()
                verdict = (run["status"].get("verdict") or {}).get("outcome")
                seen[verdict] = health("AnalysisRun", run)["status"]
        else:
            break
        world.pass_time()
    assert seen["Pass"] == "Healthy" and set(seen.values()) <= {"Healthy", "Progressing"}
    assert health("AnalysisRun", {"status": {"verdict": {"outcome": "Fail"}}})["status"] == "Degraded"


@pytest.mark.parametrize("kind", sorted(path.name for path in SCRIPTS.iterdir()))
def test_an_object_that_the_operator_has_not_read_is_progressing(kind: str) -> None:
    new = {"metadata": {"generation": 1}, "spec": {}}
    assert health(kind, new)["status"] == "Progressing"
    assert health(kind, new | {"status": {"observedGeneration": -1}})["status"] == "Progressing"


def test_every_kind_with_a_status_has_a_script() -> None:
    kinds = set()
    for path in (ROOT / "crds").glob("*.yaml"):
        crd = yaml.load(path.read_text(), yaml.CSafeLoader)
        if "status" in crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]:
            kinds.add(crd["spec"]["names"]["kind"])
    assert {path.name for path in SCRIPTS.iterdir()} == kinds


# --- actions


@pytest.mark.parametrize("name", recorded.SCENES)
def test_actions_are_those_of_the_command_line_with_its_tokens(name: str) -> None:
    [one] = (item for item in recorded.deployments() if item.name == name)
    offered = lua.run(SCRIPTS / "ModelDeployment" / "actions" / "discovery.lua", one.obj)
    assert set(offered) == {*ACTIONS, "undo"}
    for action, shown in offered.items():
        change = command_line(action, one.obj)
        assert shown["disabled"] is (change is None), (name, action, change)
        if change:
            wanted = deepcopy(one.obj["spec"]) | {key: value for key, value in change.spec.items() if key != "rollout"}
            if "rollout" in change.spec:
                wanted["rollout"] = {**(one.obj["spec"].get("rollout") or {}), **change.spec["rollout"]}
                if wanted["rollout"].get("rollbackTo", "") is None:
                    # The command line removes the field. An action cannot: Argo CD would keep the former map.
                    wanted["rollout"]["rollbackTo"] = "/".join([one.obj["status"]["currentRevision"]] * 2)
            assert changed(action, one.obj)["spec"] == wanted


def test_an_action_that_comes_too_late_changes_nothing() -> None:
    """Between the page and the click the rollout may have ended."""
    [one] = (item for item in recorded.deployments() if item.name == "healthy")
    for action in ("promote", "promote-full", "abort", "retry", "undo"):
        assert changed(action, one.obj) == one.obj
        assert changed(action, {"metadata": {}, "spec": {"model": {"uri": "x"}}})["spec"] == {"model": {"uri": "x"}}


def test_an_action_keeps_empty_maps_and_lists_of_the_spec() -> None:
    [one] = (item for item in recorded.deployments() if item.name == "pause step")
    assert {"pause": {}} in one.obj["spec"]["strategy"]["canary"]["steps"], "Lua has one empty table for both"
    assert changed("promote", one.obj)["spec"]["strategy"] == one.obj["spec"]["strategy"]


# --- what is installed


def test_the_config_map_has_the_scripts_by_the_names_that_argo_cd_looks_up() -> None:
    config = yaml.safe_load((FOLDER / "argocd-cm.yaml").read_text())
    assert config["metadata"]["name"] == "argocd-cm"
    for path in SCRIPTS.iterdir():
        assert (
            config["data"][f"resource.customizations.health.slipway.dev_{path.name}"]
            == (path / "health.lua").read_text()
        )
    for kind in ROLLED_OUT:
        actions = yaml.safe_load(config["data"][f"resource.customizations.actions.slipway.dev_{kind}"])
        assert {one["name"] for one in actions["definitions"]} == {*ACTIONS, "undo"}
        assert lua.run(actions["discovery.lua"], recorded.deployments()[2].obj)
        assert all(one["action.lua"].endswith("return obj\n") for one in actions["definitions"])
        ignored = yaml.safe_load(config["data"][f"resource.customizations.ignoreDifferences.slipway.dev_{kind}"])
        assert ignored == {"jsonPointers": ["/spec/rollout"]}
    assert len(json.dumps(config)) < 500_000, "a ConfigMap may have 1 MiB, and Argo CD's has other keys"


def test_a_script_has_no_library_that_argo_cd_does_not_give_it() -> None:
    assert lua.run("return { math == nil, string == nil, io == nil, os.execute == nil }", {}) == [True] * 4
    with pytest.raises(Exception, match="index"):
        lua.run("return { (''):upper() }", {})
    with pytest.raises(Exception, match="too long"):
        lua.run("while true do end", {})
