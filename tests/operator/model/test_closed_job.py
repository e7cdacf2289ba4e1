"""The closed JobSpec of analyses: a template gives its author no rights that he does not have."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway_operator.model.analysis.closed_job import LARGEST, closed, secrets_of

pytestmark = pytest.mark.attack_class(2, 14)

CONTAINER: dict[str, Any] = {"name": "smoke", "image": "registry.example.com/smoke:1"}


def job(container: dict[str, Any] | None = None, pod: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    containers = [{**CONTAINER, **(container or {})}]
    return {"template": {"spec": {"restartPolicy": "Never", "containers": containers, **(pod or {})}}, **fields}


def volume(**source: Any) -> dict[str, Any]:
    return job(pod={"volumes": [{"name": "v", **source}]})


def security(**fields: Any) -> dict[str, Any]:
    return job({"securityContext": fields})


REFUSED: list[tuple[dict[str, Any], str]] = [
    # The node.
    *(
        (job(pod={field: True}), f"template.spec.{field}: is not allowed here")
        for field in ("hostNetwork", "hostPID", "hostIPC")
    ),
    (volume(hostPath={"path": "/"}), "volumes[0].hostPath: is not allowed here"),
    (job({"ports": [{"containerPort": 1, "hostPort": 1}]}), "containers[0].ports: is not allowed here"),
    (security(privileged=True), "securityContext.privileged: must be false"),
    (security(allowPrivilegeEscalation=True), "securityContext.allowPrivilegeEscalation: must be false"),
    (security(capabilities={"add": ["SYS_ADMIN"]}), "capabilities.add: is not allowed here"),
    (security(procMount="Unmasked"), "procMount: is not allowed here"),
    (security(runAsUser=0), "runAsUser: must be at least 1"),
    (security(runAsNonRoot=False), "runAsNonRoot: must be true"),
    (security(seccompProfile={"type": "Unconfined"}), "seccompProfile.type: must be"),
    (security(seLinuxOptions={}), "seLinuxOptions: is not allowed here"),
    (job(pod={"securityContext": {"runAsUser": 0}}), "runAsUser: must be at least 1"),
    (job(pod={"securityContext": {"sysctls": []}}), "sysctls: is not allowed here"),
    (job(pod={"nodeName": "control-plane"}), "nodeName: is not allowed here"),
    (job(pod={"tolerations": [{"operator": "Exists"}]}), "tolerations[0].key: is missing"),
    (job(pod={"tolerations": [{"key": "node-role.kubernetes.io/control-plane"}]}), "a taint of your own"),
    (job(pod={"tolerations": [{"key": "{{args.a}}"}]}), "a taint of your own"),
    (job(pod={"priorityClassName": "system-node-critical"}), "priorityClassName: is not allowed here"),
    (job(pod={"runtimeClassName": "a"}), "runtimeClassName: is not allowed here"),
    # The API and other's secrets.
    (job(pod={"serviceAccountName": "admin"}), "serviceAccountName: must be default"),
    (job(pod={"serviceAccountName": "{{args.a}}"}), "serviceAccountName: must be default"),
    (job(pod={"serviceAccount": "admin"}), "serviceAccount: is not allowed here"),
    (job(pod={"automountServiceAccountToken": True}), "automountServiceAccountToken: must be false"),
    (job(pod={"automountServiceAccountToken": 0}), "automountServiceAccountToken: must be false"),
    *(
        (volume(**{kind: {}}), f"volumes[0].{kind}: is not allowed here")
        for kind in ("secret", "projected", "csi", "persistentVolumeClaim", "nfs", "downwardAPI", "ephemeral", "image")
    ),
    (job({"envFrom": [{"secretRef": {"name": "a"}}]}), "envFrom[0].secretRef: is not allowed here"),
    # Labels and a namespace of others; requests that the kubelet sends.
    (job(template={"metadata": {"labels": {"app": "victim"}}, "spec": {}}), "metadata.labels.app: is not allowed here"),
    (job(template={"metadata": {"namespace": "kube-system"}, "spec": {}}), "metadata.namespace: is not allowed here"),
    *(
        (job({field: {"httpGet": {}}}), f"{field}: is not allowed here")
        for field in ("livenessProbe", "startupProbe", "lifecycle")
    ),
    (job(pod={"hostAliases": []}), "hostAliases: is not allowed here"),
    (job(pod={"dnsConfig": {}}), "dnsConfig: is not allowed here"),
    (job(pod={"ephemeralContainers": []}), "ephemeralContainers: is not allowed here"),
    (job(pod={"initContainers": [{**CONTAINER, "restartPolicy": "Always"}]}), "initContainers[0].restartPolicy"),
    # Other Jobs' pods, and bounds.
    (job(manualSelector=True, selector={}), "job.spec.manualSelector: is not allowed here"),
    (job(managedBy="a/b"), "job.spec.managedBy: is not allowed here"),
    (job(suspend=True), "job.spec.suspend: is not allowed here"),
    (job(backoffLimit=7), "backoffLimit: must be at most 6"),
    (job(activeDeadlineSeconds=86401), "activeDeadlineSeconds: must be at most 86400"),
    (job(activeDeadlineSeconds=True), "activeDeadlineSeconds: must be a whole number"),
    (job(ttlSecondsAfterFinished=-1), "ttlSecondsAfterFinished: must be at least 60"),
    (job(ttlSecondsAfterFinished=0), "ttlSecondsAfterFinished: must be at least 60"),
    (job(parallelism=1000), "parallelism: must be at most 4"),
    (job({"resources": {"limits": {"memory": "65Gi"}}}), "limits.memory: must be 64Gi at most"),
    (job({"resources": {"limits": {"nvidia.com/gpu": 9}}}), "limits.nvidia.com/gpu: must be 8 at most"),
    (job({"resources": {"limits": {"hugepages-2Mi": 1}}}), "limits.hugepages-2Mi: is not allowed here"),
    (job({"resources": {"claims": []}}), "resources.claims: is not allowed here"),
    (job({"resources": {"limits": {"cpu": "many"}}}), "limits.cpu: 'many' is no quantity"),
    (volume(emptyDir={"sizeLimit": "1Ti"}), "sizeLimit: must be 16Gi at most"),
    # Kubernetes reads 0, and a volume of no kind, as: without a limit.
    *((job({"resources": {"limits": {name: "0"}}}), f"limits.{name}: must be more than 0") for name in LARGEST),
    (volume(emptyDir={"sizeLimit": "0"}), "sizeLimit: must be more than 0"),
    (volume(), "volumes[0]: must have one of emptyDir and configMap"),
    (volume(emptyDir={}, configMap={"name": "c"}), "volumes[0]: must have one of emptyDir and configMap"),
    (job(pod={"containers": []}), "containers: must have at least 1 item"),
    (job(pod={"containers": [CONTAINER] * 5}), "containers: must have at most 4 items"),
    ({}, "job.spec.template: is missing"),
    ({"template": {}}, "job.spec.template.spec: is missing"),
    ({"template": {"spec": None}}, "job.spec.template.spec: must be an object"),
]


@pytest.mark.finding(16)
@pytest.mark.parametrize(("spec", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_job_field_that_grants_rights_is_refused_by_name(spec: dict[str, Any], message: str) -> None:
    """Safety 16: any service account, Secret mount or hostPath passed."""
    with pytest.raises(ValueError) as caught:
        closed(spec)
    assert str(caught.value).startswith("job.spec") and message in str(caught.value)


def test_missing_fields_get_safe_defaults() -> None:
    found = closed(job())
    pod = found["template"]["spec"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("default", False)
    assert (
        pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    )
    (container,) = pod["containers"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert container["resources"] == {
        "limits": {"cpu": "1", "memory": "512Mi", "ephemeral-storage": "1Gi"},
        "requests": {"cpu": "100m"},
    }
    of_nothing = closed(job({"resources": {"requests": {"memory": "0"}}}))["template"]["spec"]["containers"][0]
    assert of_nothing["resources"]["limits"]["memory"] == "512Mi"
    assert closed(volume(emptyDir={}))["template"]["spec"]["volumes"][0]["emptyDir"] == {"sizeLimit": "1Gi"}


def test_null_is_a_field_that_is_left_out() -> None:
    """As the API server reads it; it takes away no default."""
    fields = ("resources", "securityContext", "command", "env")
    pod = {"securityContext": None, "serviceAccountName": None, "automountServiceAccountToken": None, "volumes": []}
    empty = job(dict.fromkeys(fields), pod, activeDeadlineSeconds=None)
    assert closed(empty) == closed(job(pod={"volumes": []}))


def test_several_problems_are_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"template\.spec\.hostNetwork: .*; job\.spec\.backoffLimit: "):
        closed(job(pod={"hostNetwork": True}, backoffLimit=7))


def test_fields_of_an_ordinary_job_are_kept() -> None:
    container = {
        "command": ["sh", "-c"],
        "args": ["curl {{args.url}}"],
        "env": [
            {"name": "A", "value": "b"},
            {"name": "T", "valueFrom": {"secretKeyRef": {"name": "token", "key": "k"}}},
            {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
            {"name": "P", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        "envFrom": [{"configMapRef": {"name": "c"}}],
        "resources": {"requests": {"memory": "2Gi"}, "limits": {"nvidia.com/gpu": "1", "cpu": 2}},
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        "securityContext": {"runAsUser": 7, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["NET_RAW"]}},
    }
    pod = {
        "volumes": [{"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}],
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"gpu": "yes"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    }
    given = job(container, pod, backoffLimit=0, activeDeadlineSeconds=60)
    given["template"]["metadata"] = {"annotations": {"sidecar.istio.io/inject": "false"}}
    before = copy.deepcopy(given)
    found = closed(given)
    assert given == before, "the template stays as it is"
    assert (found["backoffLimit"], found["activeDeadlineSeconds"]) == (0, 60)
    assert found["template"]["metadata"] == given["template"]["metadata"]
    kept = found["template"]["spec"]["containers"][0]
    for name in ("command", "args", "env", "envFrom", "volumeMounts"):
        assert kept[name] == container[name]
    assert kept["resources"]["limits"] == {
        "cpu": "2",
        "memory": "2Gi",
        "ephemeral-storage": "1Gi",
        "nvidia.com/gpu": "1",
    }
    assert kept["securityContext"]["capabilities"] == {"drop": ["ALL"]} and kept["securityContext"]["runAsUser"] == 7
    for name in ("volumes", "imagePullSecrets", "nodeSelector", "tolerations"):
        assert found["template"]["spec"][name] == pod[name]
    assert set(secrets_of(found)) == {"token", "registry"}
    assert closed(found) == found, "what was closed stays as it is"


WORDS = ["template", "spec", "containers", "name", "image", "env", "value", "volumes", "securityContext", "hostNetwork"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(["a", "", "default"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None, max_examples=300)
@given(JSON, JSON, JSON)
def test_invalid_job_is_refused_with_a_message_and_no_other_exception(whole: Any, pod: Any, container: Any) -> None:
    for given_ in (whole, {"template": {"spec": pod}}, {"template": {"spec": {"containers": [container]}}}):
        try:
            assert closed(closed(given_)) == closed(given_)
        except ValueError as error:
            assert str(error).startswith("job.spec")
