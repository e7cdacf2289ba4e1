"""What the API server makes of AnalysisRuns: no field is dropped, and it counts each change (real API server)."""

import copy
import json
from typing import Any

import pytest

from slipway_operator.api.v1alpha1.status import Loss
from slipway_operator.model.analysis.stored_run import stored_run
from slipway_operator.model.deployment.status import parse as parse_status
from slipway_operator.planning.analysis.continuing import why_lost
from testkit.cluster.api import GROUP_PATH, Api
from tests.crds.objects import model_deployment, path
from tests.operator.model.test_former_run import recorded
from tests.support.model_cluster import ModelCluster, healthy, model

pytestmark = pytest.mark.integration
JUDGED = {"templates": [{"templateName": "llm-default"}]}


@pytest.fixture(scope="module")
def world() -> ModelCluster:
    """In the middle of an analysis, with another one in the background; read only."""
    world = healthy(replicas=4, steps=[{"setWeight": 25}, {"analysis": JUDGED}])
    world.spec["strategy"]["canary"]["analysis"] = JUDGED
    world.rate, world.inflight = 10, {}
    world.run(30)
    world.edit(model=model("v2"))
    world.run_until("Analyzing")
    world.run(125)  # the warm-up is over: latency thresholds are fixed
    world.restarts = {"file:///models/v2": 2}
    world.run(20)
    world.gateways[0].reachable = False
    world.run(20)
    return world


def runs_path(namespace: str, name: str = "") -> str:
    return f"{GROUP_PATH}/namespaces/{namespace}/analysisruns" + (f"/{name}" if name else "")


def created(api: Api, namespace: str, run: dict[str, Any]) -> dict[str, Any]:
    """The object as the API server keeps it; its owner is of no cluster."""
    made = copy.deepcopy(run)
    kept = {name: made["metadata"][name] for name in ("name", "labels")}
    sent = made | {"metadata": kept | {"namespace": namespace}}
    answer = api.post(runs_path(namespace), sent, fieldValidation="Strict")
    assert answer.ok, answer.message
    return dict(answer.body)


@pytest.mark.parametrize("field", ["analysis", "background"])
def test_schema_keeps_all_of_a_run(api: Api, namespace: str, world: ModelCluster, field: str) -> None:
    """The API server drops a field without a schema silently, and a restarted operator lacks it."""
    run = json.loads(json.dumps(world.saved_run(field)))
    assert set(run["status"]) >= {
        "thresholds", "timed", "clocks", "counts", "seen", "load", "restarts", "symptoms", "verdict", "decisions",
        "missingSince", "series", "trace", "sequence",
    }  # fmt: skip
    found = created(api, namespace, run)
    assert (found["status"], found["spec"]) == (run["status"], run["spec"])
    read = stored_run(found)
    assert read and read.run == world.run_now(field)


def test_schema_keeps_all_of_the_reference(api: Api, namespace: str, world: ModelCluster) -> None:
    made = api.post(path(namespace), model_deployment()).body
    status = json.loads(json.dumps(world.status))
    written = api.put(path(namespace, "chat", "status"), {**made, "status": status}, fieldValidation="Strict")
    assert written.ok, written.message
    assert written.body["status"] == status
    assert parse_status(written.body["status"]) == world.parsed()


@pytest.mark.parametrize("name", ["step", "ramp"])
def test_schema_keeps_what_a_release_without_runs_wrote(api: Api, namespace: str, name: str) -> None:
    """The API server drops what the schema lacks also from objects that are stored."""
    made = api.post(path(namespace), model_deployment()).body
    status = recorded()[name]["status"]
    written = api.put(path(namespace, "chat", "status"), {**made, "status": status})
    assert written.ok, written.message
    kept, sent = (one["rollout"]["analysis"] for one in (written.body["status"], status))
    assert {field: kept.get(field) for field in sent if field != "verdict"} == {
        field: value for field, value in sent.items() if field != "verdict"
    }
    assert kept["verdict"] == {field: value for field, value in sent["verdict"].items() if field != "metrics"}


def test_each_change_of_the_contents_is_counted_by_the_api_server(
    api: Api, namespace: str, world: ModelCluster
) -> None:
    """The operator compares that count with the sequence: a change by another client is found."""
    run = json.loads(json.dumps(world.saved_run()))
    run["status"]["sequence"] = 1
    live = created(api, namespace, run)
    reference = parse_status(json.loads(json.dumps(world.status))).rollout.analysis  # type: ignore[union-attr]
    assert reference

    def loss(obj: dict[str, Any], sequence: int) -> Loss | None:
        found = stored_run(obj)
        assert found
        named = type(reference)(**{**as_fields(reference), "uid": found.uid, "sequence": sequence})
        return why_lost(named, found, found.subject)

    assert (live["metadata"]["generation"], loss(live, 1)) == (1, None)
    live["status"]["sequence"] = 2
    live = dict(api.put(runs_path(namespace, live["metadata"]["name"]), live).body)
    assert (live["metadata"]["generation"], loss(live, 2), loss(live, 1)) == (2, None, Loss.NEWER)
    forged = {"status": {"verdict": {"outcome": "Pass"}}}
    live = dict(api.merge(runs_path(namespace, live["metadata"]["name"]), forged).body)
    assert loss(live, 2) is Loss.EDITED
    labelled = {"metadata": {"labels": {"a": "b"}}}
    unchanged = dict(api.merge(runs_path(namespace, live["metadata"]["name"]), labelled).body)
    assert unchanged["metadata"]["generation"] == live["metadata"]["generation"]


def as_fields(reference: Any) -> dict[str, Any]:
    return {name: getattr(reference, name) for name in type(reference).__dataclass_fields__}
