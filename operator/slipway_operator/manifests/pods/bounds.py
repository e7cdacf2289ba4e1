"""What template versions 2 and 3 add to a pod.

Version 2: the pin of its weights, tenant keys, and limits of all that it writes. Version 3: the port on which the
fetcher serves its progress. Each extends the one before, so existing revisions are rendered as before.
"""

from math import ceil, floor
from typing import Any

from slipway_operator.api.inputs.pod_inputs import PIN_VARIABLE, PROGRESS_VARIABLE
from slipway_operator.manifests.engines.profile import HTTP_PORT
from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.pods import environment, tenant_key
from slipway_operator.model import labels, quantity
from slipway_operator.model.cluster import downloads
from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.cluster.weights import FILE
from slipway_operator.model.inputs.pod_inputs import SLIPWAY

FETCHER, DRAFT_FETCHER = "fetch", "fetch-draft"  # names of the fetchers' containers
PIN_DIR = "/etc/slipway/weights"
STORAGE = "64Gi"  # default of spec.resources.storage for a model that is downloaded
MEMORY = "128Mi"  # default request: under pressure a node first evicts pods without any request
MARKER_MIB, TMP_MIB, LOGS_MIB = 64, 4096, 1024
LEAST_MIB = 256  # request of disk when spec.resources.storage does not give the model's size
_MIB = 2**20


def bounded(pod: dict[str, Any], owner: Owner, snapshot: Snapshot) -> dict[str, Any]:
    """Return the pod with pin, keys, and limits on what it writes; `owner` is the ModelDeployment.

    The kubelet evicts a pod that writes more. The fetcher ends before that, with a message about it.
    """
    server = _with_resources(pod["containers"][0], snapshot)
    volumes = [_with_limit(volume, snapshot) for volume in pod["volumes"]]
    # Only slipway-server checks tenants: no other image gets the keys.
    if snapshot.inputs.engine.type == SLIPWAY:
        server = tenant_key.with_keys(server, f"{owner.namespace}/{owner.name}")
        keys = [tenant_key.volume()]
    else:
        keys = []
    if "initContainers" not in pod:
        return {**pod, "containers": [server], "volumes": [*volumes, *keys]}
    return {
        **pod,
        "initContainers": [_init_container(item, snapshot) for item in pod["initContainers"]],
        "containers": [server],
        "volumes": [*volumes, _pin_volume(owner.name, snapshot), *keys],
    }


def _init_container(container: dict[str, Any], snapshot: Snapshot) -> dict[str, Any]:
    if container["name"] == DRAFT_FETCHER:
        limit = str(_storage_bytes(snapshot))
        return _with_resources({**container, "args": [*container["args"], "--max-bytes", limit]}, snapshot)
    is_fetcher = container["name"] == FETCHER
    return _with_pin(_with_resources(container, snapshot), snapshot) if is_fetcher else container


def storage_bytes(snapshot: Snapshot) -> int:
    """Return the bytes that a pod may use for the model's files; 0 when the model is not downloaded."""
    return _storage_bytes(snapshot) if snapshot.inputs.model.is_downloaded else 0


def _storage_bytes(snapshot: Snapshot) -> int:
    return floor(quantity.parse(snapshot.inputs.resources.storage or STORAGE))


def _with_pin(fetcher: dict[str, Any], snapshot: Snapshot) -> dict[str, Any]:
    limit = storage_bytes(snapshot)
    return {
        **fetcher,
        "args": [*fetcher["args"], *(("--max-bytes", str(limit)) if limit else ())],
        # As a variable, because the fetcher of an older image ignores that and would refuse an unknown argument.
        "env": environment.merged(
            _progress(snapshot), fetcher["env"], [{"name": PIN_VARIABLE, "value": f"{PIN_DIR}/{FILE}"}]
        ),
        "volumeMounts": [*fetcher["volumeMounts"], {"name": "weights", "mountPath": PIN_DIR, "readOnly": True}],
    }


def _progress(snapshot: Snapshot) -> list[environment.Variable]:
    """Return the port on which the fetcher serves its progress: the server's, which is free until the fetcher ends.

    The user may set another port, or 0 for none.
    """
    served = downloads.is_served(snapshot)
    return [{"name": PROGRESS_VARIABLE, "value": str(HTTP_PORT)}] if served else []


def _with_resources(container: dict[str, Any], snapshot: Snapshot) -> dict[str, Any]:
    written = container["resources"]
    models = _models_mib(snapshot)
    known = bool(snapshot.inputs.resources.storage) and models > MARKER_MIB
    disk = {"ephemeral-storage": f"{models + TMP_MIB + LOGS_MIB}Mi"}
    requested = {"ephemeral-storage": f"{models + LEAST_MIB if known else LEAST_MIB}Mi"}
    return {
        **container,
        "resources": {
            **written,
            "requests": {"memory": MEMORY, **written.get("requests", {}), **requested},
            "limits": {**written.get("limits", {}), **disk},
        },
    }


def _with_limit(volume: dict[str, Any], snapshot: Snapshot) -> dict[str, Any]:
    limits = {"models": _models_mib(snapshot), "tmp": TMP_MIB}
    if volume["name"] not in limits or "emptyDir" not in volume:
        return volume
    return {**volume, "emptyDir": {**volume["emptyDir"], "sizeLimit": f"{limits[volume['name']]}Mi"}}


def _pin_volume(name: str, snapshot: Snapshot) -> dict[str, Any]:
    """Return the volume with the pin; optional, because the first pod of a revision starts before the pin exists."""
    named = {"name": labels.child_name(name, snapshot.revision), "optional": True}
    return {"name": "weights", "configMap": {**named, "items": [{"key": FILE, "path": FILE}]}}


def _models_mib(snapshot: Snapshot) -> int:
    """Return the size of the volume `models` in MiB: with a cache only the fetcher's marker is in it.

    The draft model is always in it, and shares the size with the model.
    """
    model = snapshot.inputs.model
    in_pod = 0 if model.cache_claim_name else storage_bytes(snapshot)
    in_pod = max(in_pod, _storage_bytes(snapshot) if model.draft else 0)
    return ceil(in_pod / _MIB) + MARKER_MIB
