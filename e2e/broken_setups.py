"""Set-ups that are broken in one way each: what people get wrong, and the status that a ModelDeployment must have.

Nothing in the product has a switch to fail. Most of them never start a container, so many are made at once.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from testkit.cluster.deployment import LABEL as LABEL
from testkit.cluster.deployment import MODELS, Json
from testkit.cluster.release import Images
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
    lacks: str = ""  # API that must not be there


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


# An engine that needs nothing but a program; where it listens, it has no such path.
CUSTOM: Json = {"type": "custom", "image": "SERVER", "custom": {"readinessPath": "/none", "preStopSeconds": 5}}
STORE = "http://store.NAMESPACE.svc:8000"  # of broken_sources.py
AT_THE_HUB: Json = {"engine": {"env": [{"name": "HF_ENDPOINT", "value": STORE}]}}
POOL = "example.com/pool"  # a label of a node that is only described: nothing runs there
GOOD = model(f"{MODELS}/tiny-v1")
CLAIMS = "resourceclaimtemplates.resource.k8s.io"
GROUPS = "leaderworkersets.leaderworkerset.x-k8s.io"
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
    Setup("tainted", "the only matching node has a taint", "NoMatchingNode",
          ("had untolerated taint", "spec.placement"), {"placement": {"nodeSelector": {POOL: "tainted"}}}),
    Setup("wrong-gpu", "an accelerator type that no node has", "NoMatchingNode",
          ("didn't match Pod's node affinity/selector", "spec.placement"),
          {"resources": {"accelerator": {"type": "h100", "count": 1}}}),
    Setup("no-template", "devices by a missing ResourceClaimTemplate", "ResourceClaimNotCreated",
          ('"missing" not found', "create that ResourceClaimTemplate"),
          {"resources": {"accelerator": {"resourceClaimTemplateName": "missing", "count": 1}}}, needs=CLAIMS),
    Setup("no-such-gpu", "an accelerator type that is not described", "UnknownAcceleratorType",
          ("spec.resources.accelerator.type 'h900' is not known", "acceleratorTypes"),
          {"resources": {"accelerator": {"type": "h900", "count": 1}}}, condition="Accepted"),
    Setup("no-cache", "a cache on the nodes that the namespace has not", "ModelCacheNotConfigured",
          ("has no cache on the nodes", "modelCache.namespaces"), model("hf://org/m", cache="node"),
          condition="Accepted"),
    Setup("no-cache-claim", "a cache in a missing claim", "ClaimNotFound",
          ('persistentvolumeclaim "models" not found', "spec.model.cacheClaimName"),
          model("hf://org/m", cache="claim", cacheClaimName="models")),
    Setup("too-big", "more memory than any node has", "NoNodeOffersResource",
          ("nodes have 64Ti memory, even when empty", "spec.resources"), {"resources": {"memory": "64Ti"}}),
    Setup("no-zone", "a spread over zones where nodes have none", "NoMatchingNode",
          ("topology spread constraints", "spec.placement"),
          {"placement": {"topologySpreadConstraints": [
              {"maxSkew": 1, "topologyKey": "example.com/rack", "whenUnsatisfiable": "DoNotSchedule"}]}}),
    Setup("unbound", "a claim without a volume", "ClaimNotBound",
          ("unbound immediate PersistentVolumeClaims", "StorageClass"), model("pvc://unbound/chat")),
    Setup("own-account", "a service account that is not allowed", "NotAllowed",
          ("spec.pod.serviceAccountName 'admin' is not allowed in namespace", "podPolicy"),
          {"pod": {"serviceAccountName": "admin"}}, condition="Accepted"),
    Setup("own-priority", "a priority class that is not allowed", "NotAllowed",
          ("spec.pod.priorityClassName 'system-node-critical' is not allowed", "podPolicy"),
          {"pod": {"priorityClassName": "system-node-critical"}}, condition="Accepted"),
    Setup("own-runtime", "a runtime class that is not allowed", "NotAllowed",
          ("spec.pod.runtimeClassName 'kata' is not allowed", "podPolicy"),
          {"pod": {"runtimeClassName": "kata"}}, condition="Accepted"),
    Setup("own-scheduler", "a scheduler that is not allowed", "NotAllowed",
          ("spec.pod.schedulerName 'mine' is not allowed", "podPolicy"),
          {"pod": {"schedulerName": "mine"}}, condition="Accepted"),
    Setup("own-annotation", "an annotation that is not allowed", "NotAllowed",
          ("spec.pod.annotations 'example.com/inject=yes' is not allowed", "podPolicy"),
          {"pod": {"annotations": {"example.com/inject": "yes"}}}, condition="Accepted"),
    Setup("no-runtime", "a missing RuntimeClass", "RuntimeClassNotFound",
          ('RuntimeClass "kata" not found', "create that RuntimeClass"), needs=MUTATING),
    Setup("no-token", "a hub's token from a missing Secret", "SecretNotFound",
          ("container fetch", 'secret "hub-token" not found', "create that Secret"),
          model("hf://example/chat", secretRef={"name": "hub-token", "key": "token"})),
    Setup("no-key", "a hub's token from a missing key", "SecretNotFound",
          ("container fetch", "couldn't find key nothing in Secret", "create that Secret or key"),
          model("hf://example/chat", secretRef={"name": "present", "key": "nothing"})),
    Setup("no-variables", "variables from a missing ConfigMap", "ConfigMapNotFound",
          ("container server", 'configmap "tuning" not found', "create that ConfigMap"),
          {"engine": {"envFrom": [{"configMapRef": {"name": "tuning"}}]}}),
    Setup("no-certificates", "a volume from a missing Secret", "SecretNotFound",
          ("FailedMount", 'secret "certificates" not found', "create that Secret"),
          {"pod": {"volumes": [{"name": "certs", "secret": {"secretName": "certificates"}}]},
           "engine": {"volumeMounts": [{"name": "certs", "mountPath": "/etc/extra"}]}}),
    Setup("no-store", "a bucket of a store that cannot be found", "ModelNotFetched",
          ("store.invalid", "correct spec.model.uri"),
          model("s3://models/chat", objectStore={"endpoint": "https://store.invalid"})),
    Setup("no-registry", "an artefact of an unknown registry", "ModelNotFetched",
          ("registry.invalid", "correct spec.model.uri"), model("oci://registry.invalid/team/chat:1")),
    Setup("node-identity", "a bucket at the node's metadata service", "ModelNotFetched",
          ("169.254.169.254", "a metadata service of a cloud"),
          model("s3://models/chat", objectStore={"endpoint": "http://169.254.169.254"})),
    Setup("no-bucket", "a bucket that its store does not have", "ModelNotFetched",
          ("There is no bucket weights at http://store.", "correct spec.model.uri, or spec.model.objectStore"),
          model("s3://weights/chat", objectStore={"endpoint": STORE})),
    Setup("no-repository", "a repository that its hub does not have", "ModelNotFetched",
          ("it does not exist", "correct spec.model.uri"), {**model("hf://org/none"), **AT_THE_HUB}),
    Setup("small-disk", "less storage than the model has bytes", "StorageTooSmall",
          ("bytes; the limit is", "raise spec.resources.storage"),
          {**model("hf://org/large"), **AT_THE_HUB, "resources": {"storage": "1Gi"}}),
    Setup("pickled", "a repository that has pickles alone", "ModelNotLoaded",
          ("pytorch_model.bin", "serve another"), {**model("hf://org/pickled"), **AT_THE_HUB}),
    Setup("other-weights", "weights that are not those of the digest", "WeightsDiffer",
          ("spec.model.revision is sha256:0000", "change spec.model"),
          model(f"{MODELS}/tiny-v1", revision="sha256:" + "0" * 64)),
    Setup("no-groups", "several machines without LeaderWorkerSet", "LeaderWorkerSetNotInstalled",
          ("the cluster has no LeaderWorkerSet", "helm install lws"),
          {"engine": {**CUSTOM, "parallelism": {"nodes": 2}}}, condition="Accepted", lacks=GROUPS),
    Setup("no-program", "an engine's command that its image lacks", "ContainerStartFailed",
          ("serve-it", "spec.engine.image must have"),
          {"engine": {**CUSTOM, "command": ["serve-it"]}}),
    Setup("ends", "an engine that ends at once", "ContainerCrashed",
          ("no such model architecture", "exit code 1", "kubectl logs"),
          {"engine": {**CUSTOM, "command": ["python3", "-c", "import sys; sys.exit('no such model architecture')"]}}),
    Setup("wrong-path", "an engine whose readiness path is wrong", "ProgressDeadlineExceeded",
          ("container server is running and not ready yet",),
          {"engine": {**CUSTOM, "command": ["python3", "-m", "http.server", "$(SLIPWAY_PORT)"]},
           "progressDeadlineSeconds": 10, "drain": {"timeoutSeconds": 5}}, condition="Progressing"),
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

_RUN = {
    *("ModelNotFetched", "ModelNotLoaded", "InvalidArguments", "OOMKilled", "ContainerCrashed", "ContainerStartFailed"),
    *("ProgressDeadlineExceeded", "ConfigMapNotFound", "FailedGetExternalMetric", "StorageTooSmall", "WeightsDiffer"),
}
TOGETHER = 6  # that run a container: two cores are busy with their starts


def runs(setup: Setup) -> bool:
    """Whether a container has to run, or to end, until the mistake shows."""
    return setup.reason in _RUN


def groups(setups: list[Setup]) -> list[list[Setup]]:
    """Those that run no container, which can be made at once, and then a few others at a time."""
    still = [setup for setup in setups if not runs(setup)]
    running = [setup for setup in setups if runs(setup)]
    return [still, *(running[at : at + TOGETHER] for at in range(0, len(running), TOGETHER))]


def manifest(setup: Setup, namespace: str, images: Images) -> Json:
    """Its ModelDeployment, under a model name that no other test uses; all else is as people leave it."""
    spec: Json = json.loads(json.dumps({**GOOD, **setup.spec}).replace("NAMESPACE", namespace))
    spec["model"] = {**spec["model"], "name": f"{setup.name}.{namespace}"}
    if named := (spec.get("engine") or {}).get("image"):
        real = {"OPERATOR": images.operator, "SERVER": images.server}
        spec["engine"] = {**spec["engine"], "image": real.get(named, named)}
    metadata = {"name": setup.name, "namespace": namespace}
    return {"apiVersion": "slipway.dev/v1alpha1", "kind": "ModelDeployment", "metadata": metadata, "spec": spec}


# --- what is broken around them ---------------------------------------------------------------------------------------


def surroundings(shared: str, quota: str, limits: str) -> list[Json]:
    """What is broken in the namespaces."""
    return [
        _of("v1", "ResourceQuota", "none", {"hard": {"pods": "0"}}, quota),
        _of("v1", "LimitRange", "small", {"limits": [{"type": "Container", "max": {"memory": "64Mi"}}]}, limits),
        _without_spec(_of("v1", "Secret", "present", {}, shared), stringData={"a": "b"}),
        _of("v1", "PersistentVolumeClaim", "unbound", _CLAIM, shared),
        _of("v1", "PersistentVolumeClaim", "elsewhere", {**_CLAIM, "volumeName": _name("elsewhere", shared)}, shared),
        _autoscaler("two-scalers", shared),
        _autoscaler("dead-metrics", shared),
    ]  # fmt: skip


_VOLUME: Json = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
_CLAIM: Json = {**_VOLUME, "resources": {"requests": {"storage": "1Mi"}}}


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


def tainted_node(shared: str) -> Json:
    """A node that is there for the scheduler only."""
    found = _of("v1", "Node", _name("tainted", shared), {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]})
    found["metadata"]["labels"] = {POOL: "tainted"}
    room = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    return found | {"status": {"capacity": room, "allocatable": room}}


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
        _without_spec(described, webhooks=[webhook]),
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
        "no-runtime": ("/spec/runtimeClassName", "'kata'"),
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


def _without_spec(item: Json, **fields: Any) -> Json:
    return {key: value for key, value in item.items() if key != "spec"} | fields


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
    head = f"On {machine()['cpu']}, {machine()['cores']} cores, made in groups."
    lines = [head, "", "| set-up | condition | reason | message | s |", "|---|---|---|---|---|"]
    for row in rows:
        setup, message = row.setup, _RESOLVER.sub("", row.message).replace("|", "/").replace("\n", " ")
        lines.append(f"| {setup.mistake} | `{setup.condition}` | `{setup.reason}` | {message} | {row.seconds:.0f} |")
    return "\n".join(lines)
