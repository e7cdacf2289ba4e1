"""The pods of a revision, and its ReplicaSet. A template is rendered once and never changed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from slipway_operator.api.inputs.model import HUB_TOKEN
from slipway_operator.api.objects import Json
from slipway_operator.manifests.engines import custom, sglang, slipway, vllm
from slipway_operator.manifests.engines.profile import DRAFT_DIR, MODEL_DIR, EngineProfile
from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.pods import adapter_loader, bounds, certificate, environment, model_cache, model_image
from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.engine_types import EngineMetrics, metrics_of
from slipway_operator.model.inputs.accelerator_types import device_terms, type_terms
from slipway_operator.model.inputs.pod_inputs import CLASSIC, MPS, SLIPWAY, KeyRef, Model
from slipway_operator.model.inputs.registry import ARTIFACTS

CLAIM_DIR = "/mnt/pvc"
_DEVICES = "accelerator"  # name by which containers refer to the pod's ResourceClaim
# Variables of the fetcher, and their keys in the Secret of spec.model.secretRef.
STORE_SECRETS = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    "gs": ("GOOGLE_SERVICE_ACCOUNT_KEY",),
    "az": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"),
}
TRACKING_SECRETS = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
REGISTRY_CONFIG, REGISTRY_KEY = "DOCKER_AUTH_CONFIG", ".dockerconfigjson"
# The user may replace HOME and POD_NAME: no pod depends on them.
_POD_NAME = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}


def replica_set(owner: Owner, snapshot: Snapshot, replicas: int, revision: str = "") -> dict[str, Any]:
    """Return the ReplicaSet of a revision; after its creation only `spec.replicas` is written.

    `revision`: the revision label of its pods, if it differs from the snapshot's, as for baseline pods.
    """
    revision = revision or snapshot.revision
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": owner.child_metadata(revision),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": _selector(owner, revision)},
            "template": pod_template(owner, snapshot, revision),
        },
    }


def pod_template(owner: Owner, snapshot: Snapshot, revision: str) -> dict[str, Any]:
    """Return the template of the pods that take requests: all pods, or the leaders of groups."""
    pod_fields = snapshot.inputs.pod
    return {
        "metadata": {
            "labels": {**pod_fields.get("labels", {}), **labels.child_labels(owner.name, revision)},
            "annotations": {
                **pod_fields.get("annotations", {}),
                "kubectl.kubernetes.io/default-container": "server",
                **_metrics_path(snapshot),
            },
        },
        "spec": _rendered(owner, snapshot, _selector(owner, revision)),
    }


def profile_of(snapshot: Snapshot) -> EngineProfile:
    """Return how the engine of a revision runs in its pods."""
    return PROFILES[snapshot.inputs.engine.type](snapshot)


def _selector(owner: Owner, revision: str) -> dict[str, str]:
    pod_labels = labels.child_labels(owner.name, revision)
    return {key: pod_labels[key] for key in (labels.MODEL_DEPLOYMENT, labels.REVISION)}


def _metrics_path(snapshot: Snapshot) -> dict[str, str]:
    """Return the annotation with the path of the metrics, if it is not /metrics, for PodMonitors."""
    path = metrics_of(snapshot.inputs.engine).path
    return {labels.METRICS_PATH: path} if path != EngineMetrics().path else {}


PROFILES = {
    SLIPWAY: slipway.profile,
    "vllm": vllm.profile,
    "sglang": sglang.profile,
    "custom": custom.profile,
}


def _rendered(owner: Owner, snapshot: Snapshot, selector: dict[str, str]) -> dict[str, Any]:
    """The pod spec, rendered by the template version that the revision was created with."""
    pod = model_image.mounted(_pod_spec(snapshot, selector, profile_of(snapshot)), snapshot)
    pod = _with_draft(model_cache.cached(pod, owner, snapshot), snapshot)
    pod = bounds.bounded(pod, owner, snapshot) if snapshot.template_version > 1 else pod
    pod = adapter_loader.with_loader(pod, owner, snapshot)
    return certificate.secured(pod) if snapshot.tls else pod


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
        **_placement(snapshot, selector),
        **_pull_secrets(snapshot),
        **_pod_fields(snapshot),
        **_resource_claims(snapshot),
    }


def _fetches(snapshot: Snapshot) -> bool:
    """Whether pods have a fetcher: not for a model in the image of another engine."""
    return snapshot.inputs.engine.type == SLIPWAY or not snapshot.inputs.model.uri.startswith("file://")


def _with_draft(pod: dict[str, Any], snapshot: Snapshot) -> dict[str, Any]:
    """Return the pod with a second fetcher, for the draft model; credentials are only for a source of the same kind."""
    model = snapshot.inputs.model
    if model.draft is None:
        return pod
    source = Model(model.draft.uri, model.name, model.draft.revision)
    if source.scheme == model.scheme:
        source = replace(source, secret=model.secret, object_store=model.object_store)
    fetcher = _fetcher(replace(snapshot, inputs=replace(snapshot.inputs, model=source)), DRAFT_DIR)
    return {**pod, "initContainers": [*pod.get("initContainers", ()), {**fetcher, "name": bounds.DRAFT_FETCHER}]}


def _placement(snapshot: Snapshot, selector: dict[str, str]) -> dict[str, Any]:
    """Return the scheduling fields: the user's, restricted to nodes with the accelerator's type.

    Topology spread constraints count only pods of the same revision.
    """
    placement, kind = snapshot.inputs.placement, snapshot.accelerator
    resources = snapshot.inputs.resources
    affinity = placement.get("affinity", {})
    for terms in (type_terms(kind.get("nodeSelectorTerms", ()), resources), *device_terms(resources)):
        affinity = _affinity(affinity, terms)
    spread = [
        {**constraint, "labelSelector": {"matchLabels": selector}}
        for constraint in placement.get("topologySpreadConstraints", ())
    ]
    parts = {
        "nodeSelector": {**kind.get("nodeSelector", {}), **placement.get("nodeSelector", {})},
        "tolerations": [*placement.get("tolerations", ()), *kind.get("tolerations", ())],
        "affinity": affinity,
        "topologySpreadConstraints": spread,
    }
    return {name: part for name, part in parts.items() if part}


def _affinity(affinity: Json, terms: Sequence[Json]) -> Json:
    """Return the user's affinity, which must hold together with one of `terms`.

    The terms of a node selector are alternatives, so each term of the user is combined with each of `terms`.
    """
    if not terms:
        return affinity
    nodes = affinity.get("nodeAffinity", {})
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    written: Sequence[Json] = nodes.get(required, {}).get("nodeSelectorTerms", ()) or ({"matchExpressions": []},)
    both = [
        {"matchExpressions": [*one["matchExpressions"], *other["matchExpressions"]]}
        for one in written
        for other in terms
    ]
    return {**affinity, "nodeAffinity": {**nodes, required: {"nodeSelectorTerms": both}}}


def _pod_fields(snapshot: Snapshot) -> dict[str, Any]:
    """Return the PodSpec fields of spec.pod; the user's runtime class replaces that of the accelerator's type."""
    names = ("serviceAccountName", "priorityClassName", "runtimeClassName", "schedulerName")
    written = {"runtimeClassName": snapshot.accelerator.get("runtimeClassName"), **snapshot.inputs.pod}
    return {name: written[name] for name in names if written.get(name)}


def _pull_secrets(snapshot: Snapshot) -> dict[str, Any]:
    names = dict.fromkeys((*snapshot.inputs.engine.image_pull_secrets, *snapshot.pull_secrets))
    return {"imagePullSecrets": [{"name": name} for name in names]} if names else {}


def _fetcher(snapshot: Snapshot, folder: str = MODEL_DIR) -> dict[str, Any]:
    model = snapshot.inputs.model
    revision = ["--revision", model.revision] if model.revision else []
    foreign = ["--any-engine"] if snapshot.inputs.engine.type != SLIPWAY else []
    kinds = ["--format", model.format] if model.task in CLASSIC else foreign
    engine = snapshot.inputs.engine
    variables = environment.merged(
        [{"name": "HOME", "value": "/tmp"}, _POD_NAME],
        [{"name": name, "value": value} for name, value in engine.env],
        _credentials(model),
    )
    return {
        "name": "fetch",
        **_container(snapshot, snapshot.fetcher_image or snapshot.image, variables, read_only_root=True),
        "command": ["slipway-fetcher"],
        "args": ["--uri", model.uri, *revision, *_store_flags(snapshot), "--dest", folder, *kinds],
        "resources": _resources(snapshot, with_accelerator=False),
    }


def _server(snapshot: Snapshot, profile: EngineProfile) -> dict[str, Any]:
    engine = snapshot.inputs.engine
    variables = environment.merged(
        [*({"name": name, "value": value} for name, value in profile.env), _POD_NAME],
        [{"name": name, "value": value} for name, value in snapshot.accelerator.get("env", {}).items()],
        [{"name": name, "value": value} for name, value in engine.env],
        [_variable(name, reference) for name, reference in engine.env_from],
        [{"name": name, "value": value} for name, value in profile.owned_env],
    )
    container = _container(snapshot, snapshot.image, variables, read_only_root=profile.read_only_root)
    if _shared_memory(snapshot, profile):
        container["volumeMounts"].append({"name": "shm", "mountPath": "/dev/shm"})
    container["volumeMounts"] += [{**mount, "name": _of_user(mount["name"])} for mount in engine.volume_mounts]
    return {
        "name": "server",
        **container,
        **({"command": list(profile.command)} if profile.command else {}),
        "args": [*profile.args, *engine.args],
        **({"envFrom": list(engine.env_sources)} if engine.env_sources else {}),
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in profile.ports],
        "resources": _resources(snapshot, with_accelerator=True),
        "startupProbe": profile.startup.render(),
        "readinessProbe": profile.readiness.render(),
        "livenessProbe": profile.liveness.render(),
        "lifecycle": {"preStop": {"sleep": {"seconds": profile.pre_stop_s}}},
    }


def _store_flags(snapshot: Snapshot) -> list[str]:
    if snapshot.inputs.model.scheme == ARTIFACTS:
        return ["--endpoint", snapshot.tracking_url]
    store = snapshot.inputs.model.object_store
    flags = (("--endpoint", store.endpoint), ("--region", store.region), ("--account", store.account))
    return [part for flag, value in flags if value for part in (flag, value)]


def _credentials(model: Model) -> list[dict[str, Any]]:
    """Return the variables with the credentials of the model's source; only the fetcher gets them.

    Only known keys of the Secret are read. Those of an object store and of a tracking server are optional.
    """
    secret = model.secret
    if secret is None or not model.is_downloaded:
        return []
    if model.scheme == "oci":
        return [_variable(REGISTRY_CONFIG, KeyRef(secret.name, REGISTRY_KEY))]
    if names := STORE_SECRETS.get(model.scheme) or (TRACKING_SECRETS if model.scheme == ARTIFACTS else ()):
        return [_optional(name, KeyRef(secret.name, name)) for name in names]
    return [_variable(HUB_TOKEN, secret)]


def _optional(name: str, reference: KeyRef) -> dict[str, Any]:
    source = {"name": reference.name, "key": reference.key, "optional": True}
    return {"name": name, "valueFrom": {reference.kind: source}}


def _variable(name: str, reference: KeyRef) -> dict[str, Any]:
    return {"name": name, "valueFrom": {reference.kind: {"name": reference.name, "key": reference.key}}}


def _container(
    snapshot: Snapshot, image: str, variables: list[dict[str, Any]], *, read_only_root: bool
) -> dict[str, Any]:
    """Return the fields that the containers of fetcher and server have in common."""
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


def _resources(snapshot: Snapshot, *, with_accelerator: bool) -> dict[str, Any]:
    """Requests equal limits, so another pod's burst never starves or evicts a model pod."""
    resources = snapshot.inputs.resources
    wanted = {"cpu": resources.cpu, "memory": resources.memory}
    amounts = {key: value for key, value in wanted.items() if value}
    if with_accelerator and resources.accelerator and not resources.has_claim:
        resource, count = resources.accelerator
        amounts[snapshot.accelerator.get("resource", resource)] = str(count)
    claims = {"claims": [{"name": _DEVICES}]} if with_accelerator and resources.has_claim else {}
    return ({"requests": amounts, "limits": amounts} if amounts else {}) | claims


def _resource_claims(snapshot: Snapshot) -> dict[str, Any]:
    """Return the ResourceClaims of the pod, which its containers refer to by name."""
    resources = snapshot.inputs.resources
    if not resources.has_claim:
        return {}
    source = {"resourceClaimTemplateName": resources.claim_template, "resourceClaimName": resources.claim}
    return {"resourceClaims": [{"name": _DEVICES, **{field: name for field, name in source.items() if name}}]}


def _volumes(snapshot: Snapshot, profile: EngineProfile) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [{"name": "models", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]
    claim = claim_of(snapshot.inputs.model.uri)
    if claim:
        volumes.append({"name": "claim", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
    if size := _shared_memory(snapshot, profile):
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}})
    of_user = snapshot.inputs.pod.get("volumes", ())
    return [*volumes, *({**volume, "name": _of_user(volume["name"])} for volume in of_user)]


def _of_user(name: str) -> str:
    """Return the name of a user's volume in the pod, with a prefix so that it is never one of the operator's."""
    return f"user-{name}"


def _shared_memory(snapshot: Snapshot, profile: EngineProfile) -> str | None:
    if snapshot.inputs.resources.sharing == MPS:
        return None  # the device plugin mounts that of the MPS daemon
    return snapshot.inputs.resources.shared_memory or snapshot.accelerator.get("sharedMemory") or profile.shared_memory


def claim_of(uri: str) -> str | None:
    """Return the PersistentVolumeClaim that a pvc:// URI names; None for any other URI."""
    scheme, _, rest = uri.partition("://")
    return rest.split("/", 1)[0] if scheme == "pvc" else None
