"""Set-ups that are broken in one way each: what people get wrong, and the status that a ModelDeployment must have.

Nothing in the product has a switch to fail. Most of them never start a container, so all are made at once.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from testkit.cluster.deployment import LABEL as LABEL
from testkit.cluster.deployment import MODELS, Json
from testkit.report import machine

GPU = "amd.com/gpu"  # so that a cluster with the usual ones is no exception
# A device that one node is made to offer once, for a pod that keeps it.
TAKEN = "example.com/taken"


@dataclass(frozen=True, slots=True)
class Setup:
    """One mistake. `words`: what the message must contain, of the fault, its place and the remedy."""

    name: str  # of its ModelDeployment
    mistake: str
    reason: str
    words: tuple[str, ...]
    spec: Json = field(default_factory=dict)
    condition: str = "Available"
    place: str = "shared"  # which of the namespaces
    needs: str = ""  # API that a cluster may not serve yet


@dataclass(frozen=True, slots=True)
class Row:
    """What was seen. Seconds are from `kubectl apply`."""

    setup: Setup
    seconds: float
    message: str


def model(uri: str, **more: Any) -> Json:
    return {"model": {"uri": uri, **more}}


def devices(resource: str) -> Json:
    return {"resources": {"accelerator": {"resource": resource, "count": 1}}}


GOOD = model(f"{MODELS}/tiny-v1")
MUTATING = "mutatingadmissionpolicies.admissionregistration.k8s.io"

SETUPS = (
    Setup("no-gpu", "a GPU request, no node has a GPU", "NoNodeOffersResource",
          (f"nodes have 1 {GPU}, even when empty", "device plugin"), devices(GPU)),
    Setup("gpus-taken", "nodes have such devices, another pod has them", "InsufficientCapacity",
          (f"1 x 1 {TAKEN} missing, too little is free on", "add nodes"), devices(TAKEN)),
    Setup("quota", "a ResourceQuota leaves no room", "QuotaExceeded",
          ("ReplicaSet quota-", "exceeded quota: none", "raise that ResourceQuota"), place="quota"),
    Setup("limit-range", "a LimitRange forbids that much memory", "LimitRangeExceeded",
          ("maximum memory usage per Container is 64Mi", "spec.resources"),
          {"resources": {"memory": "256Mi"}}, place="limits"),
    Setup("pod-security", "a policy adds the host's network to pods", "PodSecurityViolated",
          ("host namespaces", "find the webhook or policy"), needs=MUTATING),
    Setup("wrong-node", "a claim with its volume on a missing node", "NoMatchingNode",
          ("didn't match PersistentVolume's node affinity", "label"), model("pvc://elsewhere/chat")),
    Setup("no-such-node", "a node selector that no node matches", "NoMatchingNode",
          ("didn't match Pod's node affinity/selector", "spec.placement"),
          {"placement": {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100"},
                         "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]}}),
    Setup("no-claim", "a pvc:// model on a missing claim", "ClaimNotFound",
          ('persistentvolumeclaim "weights" not found', "create that"), model("pvc://weights/chat")),
    Setup("no-secret", "a variable from a missing Secret", "SecretNotFound",
          ("container fetch", 'secret "hub" not found', "create that Secret"), needs=MUTATING),
    Setup("no-priority", "a missing PriorityClass", "PriorityClassNotFound",
          ("no PriorityClass with name urgent", "create that"), needs=MUTATING),
    Setup("no-account", "a missing ServiceAccount", "ServiceAccountNotFound",
          ('serviceaccount "trainer" not found', "create that"), needs=MUTATING),
    Setup("denied", "a policy wants a label on every pod", "AdmissionDenied",
          ("every pod needs the label team", "meet that policy")),
    Setup("no-webhook", "a mandatory webhook is missing", "WebhookUnavailable",
          ("failed calling webhook", "bring that webhook back")),
    Setup("no-image", "an image that does not exist", "ImagePullFailed",
          ("container fetch", "registry.invalid/server:1", "spec.engine.imagePullSecrets"),
          {"engine": {"image": "registry.invalid/server:1", "imagePullSecrets": [{"name": "missing"}]}}),
    Setup("wrong-image", "an image without the fetcher: the operator's", "ContainerStartFailed",
          ("slipway-fetcher", "spec.engine.image must have"), {"engine": {"image": "OPERATOR"}}),
    Setup("unknown-host", "a model URI with an unknown host", "ModelNotFetched",
          ("https://models.invalid/chat.tar failed 5 times", "correct spec.model.uri"),
          model("https://models.invalid/chat.tar")),
    Setup("no-folder", "a model URI with a missing folder", "ModelNotFetched",
          ("There is no folder", "correct spec.model.uri"), model(f"{MODELS}/tiny-v9")),
    Setup("damaged", "weights without one of their files", "ModelNotLoaded",
          ("model-00002-of-00002.safetensors is missing", "exit code 65"), model(f"{MODELS}/tiny-broken")),
    Setup("bad-arguments", "an argument that the server does not have", "InvalidArguments",
          ("unrecognized arguments: --fast", "correct spec.engine.args"), {"engine": {"args": ["--fast"]}}),
    Setup("out-of-memory", "less memory than the server needs", "OOMKilled",
          ("out of memory", "raise spec.resources.memory"), {"resources": {"memory": "128Mi"}}),
    Setup("never-ready", "a server that listens where no probe gets", "ProgressDeadlineExceeded",
          ("container server is running and not ready yet",),
          {"engine": {"env": [{"name": "SLIPWAY_HOST", "value": "127.0.0.1"}]}, "progressDeadlineSeconds": 10},
          condition="Progressing"),
    Setup("two-scalers", "two autoscalers on one ModelDeployment", "TwoScalers",
          ("HorizontalPodAutoscaler two-scalers and spec.autoscaling would fight", "keep one"),
          {"replicas": 0, "autoscaling": {"maxReplicas": 2, "metrics": [{"type": "QueueDepth", "target": "4"}]}},
          condition="Autoscaling"),
    Setup("dead-metrics", "an autoscaler on a missing metric", "FailedGetExternalMetric",
          ("HorizontalPodAutoscaler dead-metrics", "queue_of_nobody"), condition="Autoscaling"),
)  # fmt: skip
# The next version of the same object: it cannot be had, and the former one serves on.
CANARY = Setup("dead-metrics", "a new version with a missing folder; the former one serves", "ModelNotFetched",
               ("There is no folder", "serves on with 1 of 1 pods"), model(f"{MODELS}/tiny-v9"),
               condition="CanaryHealthy")  # fmt: skip


def manifest(setup: Setup, namespace: str, operator_image: str) -> Json:
    """Its ModelDeployment, under a model name that no other test uses; all else is as people leave it."""
    spec: Json = {**GOOD, **setup.spec}
    spec["model"] = {**spec["model"], "name": f"{setup.name}.{namespace}"}
    if (spec.get("engine") or {}).get("image") == "OPERATOR":
        spec["engine"] = {"image": operator_image}
    metadata = {"name": setup.name, "namespace": namespace}
    return {"apiVersion": "slipway.dev/v1alpha1", "kind": "ModelDeployment", "metadata": metadata, "spec": spec}


# --- what is broken around them ---------------------------------------------------------------------------------------


def surroundings(shared: str, quota: str, limits: str) -> list[Json]:
    """What is broken in the namespaces."""
    return [
        _of("v1", "ResourceQuota", "none", {"hard": {"pods": "0"}}, quota),
        _of("v1", "LimitRange", "small", {"limits": [{"type": "Container", "max": {"memory": "64Mi"}}]}, limits),
        _of("v1", "PersistentVolumeClaim", "elsewhere", {**_VOLUME, "volumeName": _name("elsewhere", shared),
            "resources": {"requests": {"storage": "1Mi"}}}, shared),
        _autoscaler("two-scalers", shared),
        _autoscaler("dead-metrics", shared),
    ]  # fmt: skip


_VOLUME: Json = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}


def volume(shared: str) -> Json:
    """Of a claim, on a node that is not there."""
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["gone"]}]}
    spec = {
        **_VOLUME,
        "capacity": {"storage": "1Mi"},
        "hostPath": {"path": "/gone"},
        "claimRef": {"namespace": shared, "name": "elsewhere"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
    }
    return _of("v1", "PersistentVolume", _name("elsewhere", shared), spec)


def _autoscaler(name: str, namespace: str) -> Json:
    metric = {"metric": {"name": "queue_of_nobody"}, "target": {"type": "AverageValue", "averageValue": "4"}}
    target = {"apiVersion": "slipway.dev/v1alpha1", "kind": "ModelDeployment", "name": name}
    spec = {"scaleTargetRef": target, "maxReplicas": 3, "metrics": [{"type": "External", "external": metric}]}
    return _of("autoscaling/v2", "HorizontalPodAutoscaler", name, spec, namespace)


def occupant(image: str, namespace: str) -> Json:
    """A pod that keeps the only device."""
    user = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    container = {
        "name": "keeps",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "3600"],
        "resources": {"limits": {TAKEN: "1"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {"terminationGracePeriodSeconds": 0, "securityContext": user, "containers": [container]}
    return _of("v1", "Pod", "occupant", spec, namespace)


def policies(shared: str) -> list[Json]:
    """What platform teams put before the API server, for the pods of one ModelDeployment each."""
    webhook = {
        "name": "ask.example.com",
        "clientConfig": {"service": {"name": "gone", "namespace": shared}},
        "rules": [_PODS],
        "namespaceSelector": _in(shared),
        "objectSelector": {"matchLabels": {LABEL: "no-webhook"}},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "timeoutSeconds": 1,
    }
    described = _of(
        "admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", _name("no-webhook", shared), {}
    )
    rule = {
        "validations": [{"expression": "has(object.metadata.labels.team)", "message": "every pod needs the label team"}]
    }
    bound = {"validationActions": ["Deny"]}
    return [
        {key: value for key, value in described.items() if key != "spec"} | {"webhooks": [webhook]},
        *_policy("Validating", "denied", shared, rule, bound),
    ]  # fmt: skip


def mutations(shared: str) -> list[Json]:
    """Policies that add what pods of Slipway never have by themselves."""
    secret = "Object.spec.initContainers.env.valueFrom.secretKeyRef{name: 'hub', key: 'token'}"
    source = f"Object.spec.initContainers.env.valueFrom{{secretKeyRef: {secret}}}"
    variable = f"Object.spec.initContainers.env{{name: 'HF_TOKEN', valueFrom: {source}}}"
    added = {
        "no-secret": ("/spec/initContainers/0/env/-", variable),
        "no-priority": ("/spec/priorityClassName", "'urgent'"),
        "no-account": ("/spec/serviceAccountName", "'trainer'"),
        "pod-security": ("/spec/hostNetwork", "true"),
    }
    return [item for name, (path, value) in added.items() for item in _mutation(name, shared, path, value)]


def _mutation(name: str, shared: str, path: str, value: str) -> list[Json]:
    patch = {"expression": f"[JSONPatch{{op: 'add', path: '{path}', value: {value}}}]"}
    does = {"mutations": [{"patchType": "JSONPatch", "jsonPatch": patch}], "reinvocationPolicy": "Never"}
    return _policy("Mutating", name, shared, does, {})


_PODS: Json = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}


def _policy(kind: str, name: str, shared: str, does: Json, binds: Json) -> list[Json]:
    group, full = "admissionregistration.k8s.io/v1", _name(name, shared)
    matched = {"resourceRules": [_PODS], "namespaceSelector": _in(shared),
               "objectSelector": {"matchLabels": {LABEL: name}}}  # fmt: skip
    spec = {"failurePolicy": "Fail", "matchConstraints": matched, **does}
    bound = {"policyName": full, **binds}
    return [
        _of(group, f"{kind}AdmissionPolicy", full, spec),
        _of(group, f"{kind}AdmissionPolicyBinding", full, bound),
    ]


def _in(namespace: str) -> Json:
    return {"matchLabels": {"kubernetes.io/metadata.name": namespace}}


def _name(name: str, shared: str) -> str:
    """Of a cluster-wide object: the namespace in it keeps two runs apart."""
    return f"{shared}-{name}"


def _of(api_version: str, kind: str, name: str, spec: Json, namespace: str = "") -> Json:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}


_RESOLVER = re.compile(r" on \[?[\da-f.:]+\]?:53")  # of the node: different everywhere


# --- the table --------------------------------------------------------------------------------------------------------


def markdown(rows: list[Row]) -> str:
    """For docs/troubleshooting.md, in the order of SETUPS."""
    head = f"On {machine()['cpu']}, {machine()['cores']} cores, all made at once."
    lines = [head, "", "| set-up | condition | reason | message | s |", "|---|---|---|---|---|"]
    for row in rows:
        setup, message = row.setup, _RESOLVER.sub("", row.message).replace("|", "/").replace("\n", " ")
        lines.append(f"| {setup.mistake} | `{setup.condition}` | `{setup.reason}` | {message} | {row.seconds:.0f} |")
    return "\n".join(lines)
