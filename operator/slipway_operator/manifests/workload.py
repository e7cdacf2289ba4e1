"""The ReplicaSet of a revision. Its template is rendered once and never changed."""

from typing import Any

from slipway_operator.api.v1alpha1.pod_inputs import HUB_TOKEN
from slipway_operator.manifests import bounds, environment
from slipway_operator.manifests.engines import custom, sglang, slipway, vllm
from slipway_operator.manifests.engines.profile import MODEL_DIR, EngineProfile
from slipway_operator.manifests.owner import Owner
from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.deployment.spec import SLIPWAY, KeyRef, Model, PodInputs

CLAIM_DIR = "/mnt/pvc"
# The user may replace HOME and POD_NAME; no variable that a pod depends on is among these.
_POD_NAME = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}


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


PROFILES = {
    SLIPWAY: slipway.profile,
    "vllm": vllm.profile,
    "sglang": sglang.profile,
    "custom": custom.profile,
}


def _rendered(owner: Owner, snapshot: Snapshot, selector: dict[str, str]) -> dict[str, Any]:
    """The pod spec, rendered by the template version that the revision was created with."""
    pod = _pod_spec(snapshot, selector, PROFILES[snapshot.inputs.engine.type](snapshot))
    return bounds.bounded(pod, owner, snapshot) if snapshot.template_version > 1 else pod


def _pod_spec(snapshot: Snapshot, selector: dict[str, str], profile: EngineProfile) -> dict[str, Any]:
    fetchers = [_fetcher(snapshot)] if _fetches(snapshot) else []
    return {
        "terminationGracePeriodSeconds": profile.grace_s,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": profile.user_id,
            "runAsGroup": profile.user_id,
            "fsGroup": profile.user_id,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **({"initContainers": fetchers} if fetchers else {}),
        "containers": [_server(snapshot, profile)],
        "volumes": _volumes(snapshot, profile),
        **_placement(snapshot.inputs, selector),
        **_pull_secrets(snapshot.inputs),
    }


def _fetches(snapshot: Snapshot) -> bool:
    """Whether pods have a fetcher: not for a model in the image of another engine."""
    return snapshot.inputs.engine.type == SLIPWAY or not snapshot.inputs.model.uri.startswith("file://")


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
    foreign = ["--any-engine"] if snapshot.inputs.engine.type != SLIPWAY else []
    engine = snapshot.inputs.engine
    variables = environment.merged(
        [{"name": "HOME", "value": "/tmp"}, _POD_NAME],
        [{"name": name, "value": value} for name, value in engine.env],
        _hub_token(model),
    )
    return {
        "name": "fetch",
        **_container(snapshot, snapshot.fetcher_image or snapshot.image, variables, read_only_root=True),
        "command": ["slipway-fetcher"],
        "args": ["--uri", model.uri, *revision, "--dest", MODEL_DIR, *foreign],
        "resources": _resources(snapshot.inputs, with_accelerator=False),
    }


def _server(snapshot: Snapshot, profile: EngineProfile) -> dict[str, Any]:
    engine = snapshot.inputs.engine
    variables = environment.merged(
        [*({"name": name, "value": value} for name, value in profile.env), _POD_NAME],
        [{"name": name, "value": value} for name, value in engine.env],
        [_variable(name, reference) for name, reference in engine.env_from],
        [{"name": name, "value": value} for name, value in profile.owned_env],
    )
    container = _container(snapshot, snapshot.image, variables, read_only_root=profile.read_only_root)
    if _shared_memory(snapshot, profile):
        container["volumeMounts"].append({"name": "shm", "mountPath": "/dev/shm"})
    return {
        "name": "server",
        **container,
        **({"command": list(profile.command)} if profile.command else {}),
        "args": [*profile.args, *engine.args],
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in profile.ports],
        "resources": _resources(snapshot.inputs, with_accelerator=True),
        "startupProbe": profile.startup.render(),
        "readinessProbe": profile.readiness.render(),
        "livenessProbe": profile.liveness.render(),
        "lifecycle": {"preStop": {"sleep": {"seconds": profile.pre_stop_s}}},
    }


def _hub_token(model: Model) -> list[dict[str, Any]]:
    """The hub token, for the fetcher only: the server never gets it. One key, whatever else the Secret has."""
    return [_variable(HUB_TOKEN, model.secret)] if model.secret else []


def _variable(name: str, reference: KeyRef) -> dict[str, Any]:
    return {"name": name, "valueFrom": {reference.kind: {"name": reference.name, "key": reference.key}}}


def _container(
    snapshot: Snapshot, image: str, variables: list[dict[str, Any]], *, read_only_root: bool
) -> dict[str, Any]:
    """The fields that both containers share."""
    mounts: list[dict[str, Any]] = [{"name": "models", "mountPath": MODEL_DIR}, {"name": "tmp", "mountPath": "/tmp"}]
    if claim_of(snapshot.inputs.model.uri):
        mounts.append({"name": "claim", "mountPath": CLAIM_DIR, "readOnly": True})
    return {
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "env": variables,
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": read_only_root,
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


def _volumes(snapshot: Snapshot, profile: EngineProfile) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [{"name": "models", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]
    claim = claim_of(snapshot.inputs.model.uri)
    if claim:
        volumes.append({"name": "claim", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
    if size := _shared_memory(snapshot, profile):
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}})
    return volumes


def _shared_memory(snapshot: Snapshot, profile: EngineProfile) -> str | None:
    return snapshot.inputs.resources.shared_memory or profile.shared_memory


def claim_of(uri: str) -> str | None:
    """The claim that a pvc:// URI names; None for any other URI."""
    scheme, _, rest = uri.partition("://")
    return rest.split("/", 1)[0] if scheme == "pvc" else None
