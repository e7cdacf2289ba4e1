"""The model cache of a pod: a claim that outlives it, a fetcher that downloads into it, a lease while the pod lives.

The server only reads it. Containers that write run as the user that owns the folder, whatever user the engine has.
"""

from typing import Any

from slipway_operator.manifests.engines.profile import MODEL_DIR, USER_ID
from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.pods import environment
from slipway_operator.model.cluster.observed import Snapshot

CACHE_DIR = "/mnt/cache"
_VOLUME = "cache"
_POD_UID = {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
_LEASE_AMOUNTS = {"cpu": "100m", "memory": "64Mi", "ephemeral-storage": "64Mi"}


def cached(pod: dict[str, Any], owner: Owner, snapshot: Snapshot) -> dict[str, Any]:
    """Return the pod with its model in the cache, or unchanged without a cache; `owner` is the ModelDeployment."""
    claim = snapshot.inputs.model.cache_claim_name
    if claim is None or "initContainers" not in pod:
        return pod
    server, fetcher = pod["containers"][0], pod["initContainers"][0]
    return {
        **pod,
        "initContainers": [_lease(fetcher), _fetcher(fetcher, owner, snapshot)],
        "containers": [_mounted(server, read_only=True)],
        "volumes": [*pod["volumes"], {"name": _VOLUME, "persistentVolumeClaim": {"claimName": claim}}],
    }


def _fetcher(fetcher: dict[str, Any], owner: Owner, snapshot: Snapshot) -> dict[str, Any]:
    # Baseline pods have the revision's scope, because they must load the same files as its other pods.
    scope = f"{owner.namespace}/{owner.name}/{snapshot.revision}"
    flags = ["--cache-dir", CACHE_DIR, "--cache-scope", scope, "--cache-pod", "$(POD_UID)"]
    container = _mounted(_as_owner(fetcher))
    return {
        **container,
        "args": [*container["args"], *flags],
        "env": environment.merged(container["env"], [_POD_UID]),  # last, so that no variable of the user replaces it
    }


def _lease(fetcher: dict[str, Any]) -> dict[str, Any]:
    """Return the sidecar that keeps the model from eviction: it starts before the fetcher and ends after the server."""
    container = _mounted(_as_owner(fetcher))
    mounts = [mount for mount in container["volumeMounts"] if mount["name"] in ("models", "tmp", _VOLUME)]
    return {
        **container,
        "name": "lease",
        "restartPolicy": "Always",
        "command": ["slipway-model-cache"],
        "args": ["lease", "--cache-dir", CACHE_DIR, "--pod", "$(POD_UID)", "--dest", MODEL_DIR],
        "env": [{"name": "HOME", "value": "/tmp"}, _POD_UID],
        "volumeMounts": mounts,
        "resources": {"requests": _LEASE_AMOUNTS, "limits": _LEASE_AMOUNTS},
    }


def _as_owner(container: dict[str, Any]) -> dict[str, Any]:
    """Let a container run as the user that owns the cache, so that pods of engines with other users share the files."""
    user = {"runAsUser": USER_ID, "runAsGroup": USER_ID}
    return {**container, "securityContext": {**container["securityContext"], **user}}


def _mounted(container: dict[str, Any], *, read_only: bool = False) -> dict[str, Any]:
    mount = {"name": _VOLUME, "mountPath": CACHE_DIR, **({"readOnly": True} if read_only else {})}
    return {**container, "volumeMounts": [*container["volumeMounts"], mount]}
