"""The ReplicaSet of a revision. Its template is rendered once and never changed."""

from collections.abc import Sequence
from typing import Any

from slipway_operator.api.v1alpha1.pod_inputs import HUB_TOKEN
from slipway_operator.manifests import bounds, environment
from slipway_operator.manifests.owner import Owner
from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.deployment.spec import KeyRef, Model, PodInputs

HTTP_PORT = 8000
PROBE_PORT = 8001
MODEL_DIR = "/mnt/models"
CLAIM_DIR = "/mnt/pvc"
USER_ID = 65532

PRE_STOP_S = 5  # gateways see that a pod terminates before it gets SIGTERM
GRACE_MARGIN_S = 10  # from the end of the drain to the kill
STARTUP_PERIOD_S = 1
STARTUP_LIMIT_S = 3600  # the rollout's progress deadline rejects long before; this only bounds a forgotten pod


def replica_set(owner: Owner, snapshot: Snapshot, replicas: int, revision: str = "") -> dict[str, Any]:
    """One immutable workload per revision; only its `spec.replicas` is ever written again.

    `revision`: the label of its pods where it differs from the snapshot's, for a baseline.
    """
    revision = revision or snapshot.revision
    pod_labels = labels.child_labels(owner.name, revision)
    selector = {key: pod_labels[key] for key in (labels.MODEL_DEPLOYMENT, labels.REVISION)}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": owner.child_metadata(revision),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {
                    "labels": pod_labels,
                    "annotations": {"kubectl.kubernetes.io/default-container": "server"},
                },
                "spec": _rendered(owner, snapshot, selector),
            },
        },
    }


def _rendered(owner: Owner, snapshot: Snapshot, selector: dict[str, str]) -> dict[str, Any]:
    """The pod spec, rendered by the template version that the revision was created with."""
    pod = _pod_spec(snapshot, selector)
    return bounds.bounded(pod, owner, snapshot) if snapshot.template_version > 1 else pod


def _pod_spec(snapshot: Snapshot, selector: dict[str, str]) -> dict[str, Any]:
    return {
        "terminationGracePeriodSeconds": PRE_STOP_S + snapshot.drain_timeout_s + GRACE_MARGIN_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": [_fetcher(snapshot)],
        "containers": [_server(snapshot)],
        "volumes": _volumes(snapshot.inputs),
        **_placement(snapshot.inputs, selector),
        **_pull_secrets(snapshot.inputs),
    }


def _placement(inputs: PodInputs, selector: dict[str, str]) -> dict[str, Any]:
    """The nodes that the user chose. Pods are spread among those of their revision."""
    placement = inputs.placement
    spread = [
        {**constraint, "labelSelector": {"matchLabels": selector}}
        for constraint in placement.get("topologySpreadConstraints", ())
    ]
    return {**placement, **({"topologySpreadConstraints": spread} if spread else {})}


def _pull_secrets(inputs: PodInputs) -> dict[str, Any]:
    names = inputs.engine.image_pull_secrets
    return {"imagePullSecrets": [{"name": name} for name in names]} if names else {}


def _fetcher(snapshot: Snapshot) -> dict[str, Any]:
    model = snapshot.inputs.model
    revision = ["--revision", model.revision] if model.revision else []
    return {
        "name": "fetch",
        **_container(snapshot, _hub_token(model)),
        "command": ["slipway-fetcher"],
        "args": ["--uri", model.uri, *revision, "--dest", MODEL_DIR],
        "resources": _resources(snapshot.inputs, with_accelerator=False),
    }


def _server(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "name": "server",
        **_container(snapshot, [_variable(name, reference) for name, reference in snapshot.inputs.engine.env_from]),
        "command": ["slipway-server"],
        "args": server_args(snapshot),
        "ports": [
            {"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"},
            {"name": "probe", "containerPort": PROBE_PORT, "protocol": "TCP"},
        ],
        "resources": _resources(snapshot.inputs, with_accelerator=True),
        "startupProbe": _probe("/readyz", STARTUP_PERIOD_S, STARTUP_LIMIT_S // STARTUP_PERIOD_S),
        "readinessProbe": _probe("/readyz", 2, 2),
        "livenessProbe": _probe("/healthz", 10, 3),
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_S}}},
    }


def server_args(snapshot: Snapshot) -> list[str]:
    """Arguments of slipway-server; tests/contract checks that the server accepts them."""
    model = snapshot.inputs.model
    length = ["--max-model-len", str(model.max_model_len_tokens)] if model.max_model_len_tokens else []
    return [
        *("--model", MODEL_DIR),
        *("--served-model-name", model.name),
        *("--model-version", model.version or snapshot.revision),
        *("--task", model.task),
        *("--dtype", model.dtype),
        *(("--quantization", model.quantization) if model.quantization != "none" else ()),
        *length,
        *_device(snapshot),
        *("--port", str(HTTP_PORT)),
        *("--probe-port", str(PROBE_PORT)),
        *("--drain-timeout", str(snapshot.drain_timeout_s)),
        *snapshot.inputs.engine.args,
    ]


def _device(snapshot: Snapshot) -> tuple[str, ...]:
    """The device argument: without it, a server with an accelerator could use the CPU instead of failing.

    Since template version 2: earlier revisions are rendered as before.
    """
    with_accelerator = snapshot.inputs.resources.accelerator is not None
    return ("--device", "cuda") if with_accelerator and snapshot.template_version >= 2 else ()


def _hub_token(model: Model) -> list[dict[str, Any]]:
    """The hub token, for the fetcher only: the server never gets it. One key, whatever else the Secret has."""
    return [_variable(HUB_TOKEN, model.secret)] if model.secret else []


def _variable(name: str, reference: KeyRef) -> dict[str, Any]:
    return {"name": name, "valueFrom": {reference.kind: {"name": reference.name, "key": reference.key}}}


def _container(snapshot: Snapshot, own: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The fields that both containers share, with the container's own variables."""
    engine = snapshot.inputs.engine
    mounts: list[dict[str, Any]] = [{"name": "models", "mountPath": MODEL_DIR}, {"name": "tmp", "mountPath": "/tmp"}]
    if claim_of(snapshot.inputs.model.uri):
        mounts.append({"name": "claim", "mountPath": CLAIM_DIR, "readOnly": True})
    return {
        "image": snapshot.image,
        "imagePullPolicy": "IfNotPresent",
        # The user may override HOME and POD_NAME; no variable that a pod depends on is in this list.
        "env": environment.merged(
            [
                {"name": "HOME", "value": "/tmp"},
                {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            ],
            [{"name": name, "value": value} for name, value in engine.env],
            own,
        ),
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _resources(inputs: PodInputs, *, with_accelerator: bool) -> dict[str, Any]:
    """Requests equal limits, so another pod's burst never starves or evicts a model pod."""
    wanted = {"cpu": inputs.resources.cpu, "memory": inputs.resources.memory}
    amounts = {key: value for key, value in wanted.items() if value}
    if with_accelerator and inputs.resources.accelerator:
        resource, count = inputs.resources.accelerator
        amounts[resource] = str(count)
    return {"requests": amounts, "limits": amounts} if amounts else {}


def _volumes(inputs: PodInputs) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [{"name": "models", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]
    claim = claim_of(inputs.model.uri)
    if claim:
        volumes.append({"name": "claim", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
    return volumes


def claim_of(uri: str) -> str | None:
    """The claim that a pvc:// URI names; None for any other URI."""
    scheme, _, rest = uri.partition("://")
    return rest.split("/", 1)[0] if scheme == "pvc" else None


def _probe(path: str, period_s: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "probe"},
        "periodSeconds": period_s,
        "failureThreshold": failures,
        "timeoutSeconds": 3,
    }
