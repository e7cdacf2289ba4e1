"""The pods of a ModelPool, as a StatefulSet: it controls them directly, so gateways know them by its uid."""

from math import ceil, floor
from typing import Any

from slipway_operator.api.inputs.model import HUB_TOKEN
from slipway_operator.api.inputs.pod_inputs import BatchingSpec
from slipway_operator.api.inputs.pod_spec import Placement, ResourcesSpec
from slipway_operator.api.pools.model_pool import ModelPoolSpec, PoolLimitsSpec
from slipway_operator.manifests.engines.profile import (
    GRACE_MARGIN_S,
    HTTP_PORT,
    MODEL_DIR,
    PRE_STOP_S,
    USER_ID,
    Probe,
    startup,
)
from slipway_operator.manifests.engines.slipway import PROBE_PORT
from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.pods import certificate
from slipway_operator.manifests.pods.workload import REGISTRY_CONFIG, REGISTRY_KEY, STORE_SECRETS
from slipway_operator.manifests.pools.entries import CONFIG_MAP
from slipway_operator.model import labels, quantity

CONFIG_DIR, FILE = "/etc/slipway/pool", "pool.json"
STORAGE = "8Gi"  # default size of the volume with the models: classic models are small
MARGIN_MIB, TMP_MIB, LOGS_MIB, LEAST_MIB = 64, 4096, 1024, 256
FETCHER_MEMORY = "512Mi"
_MIB = 2**20


def reference(owner: Owner) -> dict[str, Any]:
    """The ownerReference of the pool's objects."""
    return {**owner.reference(), "kind": labels.POOL_KIND}


def metadata(owner: Owner, suffix: str = "") -> dict[str, Any]:
    """Return the metadata of an object of the pool."""
    return {
        "name": f"{owner.name}-{suffix}" if suffix else owner.name,
        "namespace": owner.namespace,
        "labels": _labels(owner),
        "ownerReferences": [reference(owner)],
    }


def _labels(owner: Owner) -> dict[str, str]:
    return {labels.MODEL_POOL: owner.name, labels.MANAGED_BY: "slipway", labels.COMPONENT: "pool"}


def name_of(pool: str) -> str:
    """The name of the StatefulSet of a pool."""
    return f"{pool}-pool"


def stateful_set(owner: Owner, spec: ModelPoolSpec, server_image: str, *, tls: bool = False) -> dict[str, Any]:
    """Return the StatefulSet. Its pods are alike and start in parallel; a new template replaces them one by one."""
    pod = _pod_spec(owner, spec, spec.image or server_image)
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(owner, "pool"),
        "spec": {
            "replicas": spec.replicas,
            "serviceName": name_of(owner.name),
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {labels.MODEL_POOL: owner.name}},
            "template": {
                # Gateways watch pods with a revision label; pods of a pool have a fixed one, as they serve many.
                "metadata": {"labels": {**_labels(owner), labels.REVISION: labels.POOL_REVISION}},
                "spec": certificate.secured(pod) if tls else pod,
            },
        },
    }


def disruption_budget(owner: Owner) -> dict[str, Any]:
    """Return the budget: drains evict the pool's pods one at a time; pods that are not ready may always go."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(owner, "pool"),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": {labels.MODEL_POOL: owner.name}},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def _pod_spec(owner: Owner, spec: ModelPoolSpec, image: str) -> dict[str, Any]:
    storage_mib = ceil(_bytes((spec.resources or ResourcesSpec()).storage or STORAGE) / _MIB)
    pulls = [{"name": one.name} for one in spec.image_pull_secrets]
    return {
        "terminationGracePeriodSeconds": PRE_STOP_S + spec.drain_timeout_seconds + GRACE_MARGIN_S,
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
        "containers": [_server(spec, image), _fetcher(spec, image, storage_mib)],
        "volumes": [
            {"name": "models", "emptyDir": {"sizeLimit": f"{storage_mib + MARGIN_MIB}Mi"}},
            {"name": "tmp", "emptyDir": {"sizeLimit": f"{TMP_MIB}Mi"}},
            {"name": "fetch-tmp", "emptyDir": {"sizeLimit": f"{TMP_MIB}Mi"}},
            {
                "name": "pool",
                "configMap": {"name": CONFIG_MAP, "items": [{"key": f"{owner.name}.json", "path": FILE}]},
            },
        ],
        **_placed(spec.placement or Placement(), owner),
        **({"imagePullSecrets": pulls} if pulls else {}),
    }


def _placed(placement: Placement, owner: Owner) -> dict[str, Any]:
    written = placement.model_dump(mode="json", by_alias=True, exclude_none=True)
    selector = {"labelSelector": {"matchLabels": {labels.MODEL_POOL: owner.name}}}
    written["topologySpreadConstraints"] = [{**one, **selector} for one in written.get("topologySpreadConstraints", ())]
    return {name: part for name, part in written.items() if part}


def _container(name: str, image: str, command: str, args: list[str], tmp: str, *, read_only: bool) -> dict[str, Any]:
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": [command],
        "args": args,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "models", "mountPath": MODEL_DIR, **({"readOnly": True} if read_only else {})},
            {"name": "pool", "mountPath": CONFIG_DIR, "readOnly": True},
            {"name": tmp, "mountPath": "/tmp"},
        ],
    }


def _server(spec: ModelPoolSpec, image: str) -> dict[str, Any]:
    args = [
        *("--task", "predict", "--model", MODEL_DIR, "--pool-config", f"{CONFIG_DIR}/{FILE}"),
        *("--port", str(HTTP_PORT), "--probe-port", str(PROBE_PORT)),
        *("--drain-timeout", str(spec.drain_timeout_seconds)),
        *_flags(spec.limits, spec.batching or BatchingSpec()),
    ]
    ports = (("http", HTTP_PORT), ("probe", PROBE_PORT))
    return {
        **_container("server", image, "slipway-server", args, "tmp", read_only=True),
        "env": [{"name": "HOME", "value": "/tmp"}],
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports],
        "resources": _resources(spec.resources or ResourcesSpec()),
        "startupProbe": startup("/readyz", 1, port="probe").render(),
        "readinessProbe": Probe("/readyz", 2, 2, port="probe").render(),
        "livenessProbe": Probe("/healthz", 10, 3, port="probe").render(),
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_S}}},
    }


def _flags(limits: PoolLimitsSpec, batching: BatchingSpec) -> list[str]:
    given = (
        ("--pool-memory-bytes", None if limits.memory is None else _bytes(limits.memory)),
        ("--pool-max-loaded", limits.max_loaded),
        ("--pool-min-residency", limits.min_residency_seconds),
        ("--pool-load-timeout", limits.load_timeout_seconds),
        ("--pool-max-load", limits.max_load_seconds),
        ("--pool-parallel-loads", limits.parallel_loads),
        ("--pool-max-waiting-loads", limits.max_waiting_loads),
        ("--max-batch-size", batching.max_batch_size),
        ("--max-queue-delay-microseconds", batching.max_queue_delay_microseconds),
        ("--max-queue-size", batching.max_queue_size),
        ("--request-timeout-ms", batching.timeout_milliseconds),
    )
    return [part for flag, value in given if value is not None for part in (flag, str(value))]


def _fetcher(spec: ModelPoolSpec, image: str, storage_mib: int) -> dict[str, Any]:
    """Return the container that downloads the files of models; only this one has credentials.

    Its CPU is not limited. When the node's memory runs out, the kernel kills this container before the server.
    """
    args = ["--pool-config", f"{CONFIG_DIR}/{FILE}", "--dest", MODEL_DIR, "--max-bytes", str(storage_mib * _MIB)]
    fetcher = _container("fetch", image, "slipway-pool-fetcher", args, "fetch-tmp", read_only=False)
    return {
        **fetcher,
        "env": [{"name": "HOME", "value": "/tmp"}, *_credentials(spec)],
        "resources": {
            "requests": {"memory": "128Mi", "ephemeral-storage": f"{LEAST_MIB}Mi"},
            "limits": {
                "memory": FETCHER_MEMORY,
                "ephemeral-storage": f"{storage_mib + MARGIN_MIB + TMP_MIB + LOGS_MIB}Mi",
            },
        },
    }


def _credentials(spec: ModelPoolSpec) -> list[dict[str, Any]]:
    if spec.secret_ref is None:
        return []
    keys = {HUB_TOKEN: HUB_TOKEN, REGISTRY_CONFIG: REGISTRY_KEY}
    keys |= {name: name for names in STORE_SECRETS.values() for name in names}
    return [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": spec.secret_ref.name, "key": key, "optional": True}}}
        for name, key in keys.items()
    ]


def _resources(resources: ResourcesSpec) -> dict[str, Any]:
    """Return the server's resources: requests of CPU and memory equal limits, as in all model pods."""
    wanted = {"cpu": resources.cpu, "memory": resources.memory}
    amounts = {name: str(value) for name, value in wanted.items() if value is not None}
    disk = {"ephemeral-storage": f"{TMP_MIB + LOGS_MIB}Mi"}
    return {"requests": {"memory": "128Mi", **amounts}, "limits": {**amounts, **disk}}


def _bytes(amount: int | str) -> int:
    return floor(quantity.parse(str(amount)))
