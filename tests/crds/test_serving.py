"""What the API server makes of the CRD: defaults, subresources, columns, explain, names (real API server)."""

import copy
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from slipway_operator.api.v1alpha1.hooks import Ended, HookOutcome, HookState, HookType
from slipway_operator.api.v1alpha1.status import Rollout, State, Status
from slipway_operator.model.deployment.spec import Spec
from slipway_operator.model.deployment.spec import parse as parse_spec
from slipway_operator.model.deployment.status import render
from slipway_operator.planning.facts.revision import revision_hash
from testkit import ROOT
from testkit.cluster.api import Api
from tests.crds.objects import dry_run, model_deployment, path
from tests.crds.schema import walk
from tests.support.tools import kubectl

pytestmark = pytest.mark.integration

RELEASE_STEPS = [
    {"analysis": {"templates": [{"templateName": "llm-release"}], "twinShadow": {}}},
    {"ramp": {"templates": [{"templateName": "llm-release"}]}},
]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
# Those for GitOps tools are of kinds that this API server does not serve: tests/gitops/test_examples.py reads them.
# That of v1beta1 needs its webhook: tests/operator/conversion applies it.
EXAMPLES = sorted(
    file for file in (ROOT / "examples").rglob("*.yaml") if file.parent.name != "gitops" and file.stem != "v1beta1"
)


def test_objects_stay_as_they_were_written(api: Api) -> None:
    change = {
        "resources": {"accelerator": {"count": 1}},
        "strategy": {"canary": {"baselinePod": True, "steps": RELEASE_STEPS}, "capacity": {}},
        "drain": {},
    }
    written = model_deployment(change)
    spec = dry_run(api, written).body["spec"]
    assert spec == written["spec"] | {"replicas": 1}, (
        "the scale subresource reads replicas, and nothing else is filled in"
    )


def test_defaults_in_an_object_of_a_former_release_change_nothing(api: Api) -> None:
    """Former schemas wrote these defaults into each object."""
    short = {
        "resources": {"accelerator": {"count": 1}},
        "strategy": {"canary": {"baselinePod": True, "steps": RELEASE_STEPS}},
        "drain": {},
    }
    times = {"scaleDownDelaySeconds": 30, "abortScaleDownDelaySeconds": 30}
    analysis, ramp = (copy.deepcopy(step) for step in RELEASE_STEPS)
    analysis["analysis"] |= {
        "untilVerdict": True,
        "maxDuration": "30m",
        "twinShadow": {"maxPairsPerSecond": 10, "reference": "BaselinePod"},
    }
    ramp["ramp"] |= {"auto": {"maxHarm": 20, "maxWeight": 50, "bake": "10m"}, "maxDuration": "30m"}
    former = {
        "model": {"task": "auto", "format": "auto", "dtype": "auto", "quantization": "none", "cache": "none"},
        "resources": {"accelerator": {"count": 1, "resource": "nvidia.com/gpu"}},
        "strategy": {"canary": {"baselinePod": True, "steps": [analysis, ramp], **times}},
        "drain": {"timeoutSeconds": 600},
        "paused": False,
        "progressDeadlineSeconds": 600,
        "revisionHistoryLimit": 5,
    }
    kept = dry_run(api, model_deployment(former))
    assert kept.ok and all(kept.body["spec"][name] == value for name, value in former.items() if name != "model")
    old, new = parse_spec(kept.body), parse_spec(dry_run(api, model_deployment(short)).body)
    assert isinstance(old, Spec) and isinstance(new, Spec) and old == new
    assert revision_hash(old.inputs) == revision_hash(new.inputs)


def test_minimal_object_gets_no_defaults_inside_absent_parts(api: Api) -> None:
    spec = dry_run(api, model_deployment()).body["spec"]
    assert not {"strategy", "rollout", "resources", "engine", "drain"} & set(spec)


def test_kubectl_scale(api: Api, api_server: Path, namespace: str) -> None:
    assert api.post(path(namespace), model_deployment()).ok
    done = kubectl(api_server, "-n", namespace, "scale", "modeldeployments.slipway.dev/chat", "--replicas=3")
    assert done.returncode == 0, done.stderr
    assert api.get(path(namespace, "chat")).body["spec"]["replicas"] == 3


def test_scale_shows_what_the_autoscaler_reads(api: Api, namespace: str) -> None:
    assert api.post(path(namespace), model_deployment({"replicas": 2})).ok
    status = {"replicas": 2, "selector": "slipway.dev/modeldeployment=chat"}
    assert api.merge(path(namespace, "chat", "status"), {"status": status}).ok
    scale = api.get(path(namespace, "chat", "scale")).body
    assert scale["spec"] == {"replicas": 2}
    assert scale["status"] == status


def test_status_is_written_by_its_subresource_only(api: Api, namespace: str) -> None:
    body = {**model_deployment(), "status": {"phase": "Healthy"}}
    assert api.post(path(namespace), body).body["status"] == {"observedGeneration": -1}
    changed = api.merge(path(namespace, "chat"), {"status": {"phase": "Healthy"}})
    assert changed.body["status"] == {"observedGeneration": -1}
    written = api.merge(path(namespace, "chat", "status"), {"status": {"phase": "Healthy"}, "spec": {"replicas": 7}})
    assert written.body["status"] == {"observedGeneration": -1, "phase": "Healthy"}
    assert written.body["spec"]["replicas"] == 1


def test_schema_keeps_all_of_hooks_in_the_status(api: Api, namespace: str) -> None:
    now = datetime(2026, 11, 21, tzinfo=UTC)
    state = HookState("a", HookType.ROLLOUT, "step 1, weight 5", "k", HookOutcome.PASSED, now, 2, now, "200 OK")
    rollout = Rollout(State.SHIFTING, "abcdefgh22", 1, now, now, now, hooks=(state,))
    status = render(Status(rollout=rollout, ended=Ended("abcdefgh33", 2, 1, True, "promoted", now, (state,))))
    made = api.post(path(namespace), model_deployment()).body
    answer = api.put(path(namespace, "chat", "status"), {**made, "status": status}, fieldValidation="Strict")
    assert answer.ok, answer.message
    assert answer.body["status"] == status


def test_unknown_phase_is_refused(api: Api, namespace: str) -> None:
    assert api.post(path(namespace), model_deployment()).ok
    answer = api.merge(path(namespace, "chat", "status"), {"status": {"phase": "Fine"}})
    assert answer.status == 422
    assert "phase: Unsupported value" in answer.message  # before Kubernetes 1.31 without the path of the subresource


def test_generation_moves_with_the_spec_only(api: Api, namespace: str) -> None:
    assert api.post(path(namespace), model_deployment()).body["metadata"]["generation"] == 1
    status = api.merge(path(namespace, "chat", "status"), {"status": {"message": "x"}})
    assert status.body["metadata"]["generation"] == 1
    assert api.merge(path(namespace, "chat"), {"spec": {"paused": True}}).body["metadata"]["generation"] == 2


def test_kubectl_get_shows_the_columns(api: Api, api_server: Path, namespace: str) -> None:
    assert api.post(path(namespace), model_deployment()).ok
    status = {"phase": "Progressing", "step": "2/5", "weight": 25, "ready": "3/4", "message": "waiting for pods"}
    status |= {
        "reason": "Provisioning",
        "stableRevision": "abcdefgh22",
        "canaryRevision": "abcdefgh33",
        "model": "chat",
        "endpoint": "http://gw/v1",
    }
    assert api.merge(path(namespace, "chat", "status"), {"status": status}).ok
    header, row = kubectl(api_server, "-n", namespace, "get", "mdep").stdout.splitlines()
    assert header.split() == ["NAME", "PHASE", "REASON", "STEP", "WEIGHT", "READY", "STABLE", "CANARY", "AGE"]
    assert row.split()[:8] == ["chat", "Progressing", "Provisioning", "2/5", "25", "3/4", "abcdefgh22", "abcdefgh33"]
    header, row = kubectl(api_server, "-n", namespace, "get", "mdep", "-o", "wide").stdout.splitlines()
    assert header.split()[9:] == ["STANDBY", "MODEL", "ENDPOINT", "MESSAGE"]
    assert "http://gw/v1" in row
    assert "waiting for pods" in row


@pytest.mark.parametrize("word", ["mdep", "modeldeployment", "modeldeployments.slipway.dev", "slipway"])
def test_every_resource_name_works(api: Api, api_server: Path, namespace: str, word: str) -> None:
    assert api.post(path(namespace), model_deployment()).ok
    found = kubectl(api_server, "-n", namespace, "get", word, "-o", "name")
    assert found.stdout.strip() == "modeldeployment.slipway.dev/chat", found.stderr


def test_explain_names_every_field(api_server: Path) -> None:
    explained = kubectl(api_server, "explain", "modeldeployments.slipway.dev", "--recursive")
    assert explained.returncode == 0, explained.stderr
    words = {line.split()[0] for line in explained.stdout.splitlines() if line.split()}
    wanted = {path.rstrip("[]").rpartition(".")[2] for path, _ in walk() if path}
    assert wanted <= words


@pytest.mark.parametrize(
    "field", ["spec.model.uri", "spec.strategy.canary.steps", "spec.rollout.promote", "status.phase"]
)
def test_explain_describes_a_field(api_server: Path, field: str) -> None:
    explained = kubectl(api_server, "explain", f"modeldeployments.slipway.dev.{field}").stdout
    description = next(node["description"] for path, node in walk() if path == field)
    assert " ".join(description.split()) in " ".join(explained.split())


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_example_is_accepted(api: Api, file: Path) -> None:
    documents = [document for document in yaml.safe_load_all(file.read_text()) if document]
    assert documents
    for document in documents:
        answer = _apply(api, document)
        assert answer.ok, f"{file.name}: {answer.message}"
        assert not answer.warnings


def _apply(api: Api, document: dict):
    rights = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
    kinds = {
        "Role": f"{rights}/roles",
        "RoleBinding": f"{rights}/rolebindings",
        "ModelDeployment": path("default"),
        "ModelPool": path("default", plural="modelpools"),
        "ModelAdapter": path("default", plural="modeladapters"),
        "ModelRoute": path("default", plural="modelroutes"),
        "Experiment": path("default", plural="experiments"),
        "AnalysisTemplate": path("default", plural="analysistemplates"),
        "PersistentVolumeClaim": "/api/v1/namespaces/default/persistentvolumeclaims",
    }
    target = f"{kinds[document['kind']]}/{document['metadata']['name']}"
    return api.apply(target, document, dryRun="All", fieldValidation="Strict")
