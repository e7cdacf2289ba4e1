"""The container beside an engine that loads the adapters which the file lists, and what it shares with the engine."""

from typing import Any

from slipway_contracts.adapters import ADAPTERS_PORT, CONFIG_MAP
from slipway_operator.api.inputs.model import HUB_TOKEN
from slipway_operator.manifests.engines.profile import HTTP_PORT, USER_ID, Probe
from slipway_operator.manifests.engines.slipway import ADAPTERS_DIR, PROBE_PORT
from slipway_operator.manifests.owner import Owner
from slipway_operator.manifests.pods import environment
from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.inputs.pod_inputs import SLIPWAY

NAME = "adapters"  # of the container, and of both volumes with a suffix
CONFIG_DIR, FILE = "/etc/slipway/adapters", "adapters.json"
STORAGE_MIB, TMP_MIB, LOGS_MIB, LEAST_MIB = 16 * 1024, 4096, 1024, 256
MEMORY = "512Mi"
REGISTRY_CONFIG, REGISTRY_KEY = "DOCKER_AUTH_CONFIG", ".dockerconfigjson"
STORE_KEYS = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GOOGLE_SERVICE_ACCOUNT_KEY"),
    *("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"),
)


def with_loader(pod: dict[str, Any], owner: Owner, snapshot: Snapshot) -> dict[str, Any]:
    """Return the pod with the container, or unchanged without spec.adapters; `owner` is the ModelDeployment.

    The server only reads the folder with adapters, which has the same path in both containers.
    """
    if snapshot.inputs.adapters is None:
        return pod
    server, *others = pod["containers"]
    mount = {"name": NAME, "mountPath": ADAPTERS_DIR, "readOnly": True}
    server = {**server, "volumeMounts": [*server["volumeMounts"], mount]}
    # Optional, because pods may start before the file is written: it lists nothing then.
    items = [{"key": f"{owner.name}.json", "path": FILE}]
    volumes = [
        {"name": NAME, "emptyDir": {"sizeLimit": f"{STORAGE_MIB}Mi"}},
        {"name": f"{NAME}-tmp", "emptyDir": {"sizeLimit": f"{TMP_MIB}Mi"}},
        {"name": f"{NAME}-file", "configMap": {"name": CONFIG_MAP, "optional": True, "items": items}},
    ]
    return {**pod, "containers": [server, *others, _loader(snapshot)], "volumes": [*pod["volumes"], *volumes]}


def _loader(snapshot: Snapshot) -> dict[str, Any]:
    engine = snapshot.inputs.engine
    port = PROBE_PORT if engine.type == SLIPWAY else HTTP_PORT
    variables = environment.merged(
        [{"name": "HOME", "value": "/tmp"}],
        [{"name": name, "value": value} for name, value in engine.env],
        _credentials(snapshot),
    )
    return {
        "name": NAME,
        "image": snapshot.fetcher_image or snapshot.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["slipway-adapter-loader"],
        "args": [
            *("--adapters-config", f"{CONFIG_DIR}/{FILE}", "--dest", ADAPTERS_DIR),
            *("--engine-url", f"http://127.0.0.1:{port}", "--engine", engine.type),
            *("--port", str(ADAPTERS_PORT)),
        ],
        "env": variables,
        "ports": [{"name": NAME, "containerPort": ADAPTERS_PORT, "protocol": "TCP"}],
        "readinessProbe": Probe("/ready", 2, 2, port=NAME).render(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
        },
        "volumeMounts": [
            {"name": NAME, "mountPath": ADAPTERS_DIR},
            {"name": f"{NAME}-file", "mountPath": CONFIG_DIR, "readOnly": True},
            {"name": f"{NAME}-tmp", "mountPath": "/tmp"},
        ],
        # Its CPU is not limited. When the node's memory runs out, the kernel ends it before the server.
        "resources": {
            "requests": {"memory": "128Mi", "ephemeral-storage": f"{LEAST_MIB}Mi"},
            "limits": {"memory": MEMORY, "ephemeral-storage": f"{STORAGE_MIB + TMP_MIB + LOGS_MIB}Mi"},
        },
    }


def _credentials(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return the variables with the credentials of sources; only this container gets them."""
    room = snapshot.inputs.adapters
    if room is None or room.secret is None:
        return []
    keys = {HUB_TOKEN: HUB_TOKEN, REGISTRY_CONFIG: REGISTRY_KEY, **{name: name for name in STORE_KEYS}}
    return [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": room.secret, "key": key, "optional": True}}}
        for name, key in keys.items()
    ]
