"""The closed JobSpec of an analysis: authors of templates get no pod that only an operator could create.

Only the fields listed here are allowed; an error names any other one. Defaults fill in what is left open, so that the
pods pass Pod Security "restricted", have no API token, and use a bounded part of a node.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from slipway_operator.model import quantity

Check = Callable[[Any, str], Any]  # takes a value and its path; returns the value to use

DEADLINE_LIMIT_S = 86_400
LEAST_TTL_S = 60
USER_ID = 65_532  # for images with a user name: the kubelet can verify runAsNonRoot only for a number
LARGEST = {"cpu": "16", "memory": "64Gi", "ephemeral-storage": "64Gi"}
MOST_DEVICES = 8
DEFAULT_LIMITS = {"cpu": "1", "memory": "512Mi", "ephemeral-storage": "1Gi"}
DEFAULT_CPU_REQUEST = "100m"
VOLUME_LIMIT, VOLUME_DEFAULT = "16Gi", "1Gi"
MESH_KEYS = ("sidecar.istio.io/inject", "linkerd.io/inject")  # a sidecar that does not end prevents the end of a Job

_TOLERATION_KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?")


def closed(spec: Any) -> dict[str, Any]:
    """Return the JobSpec to run, with defaults and forced fields. A closed spec stays unchanged.

    Raises:
        ValueError: names the field that an analysis Job cannot have, or its value.
    """
    found: dict[str, Any] = _JOB(spec, "job.spec")
    return found


def secrets_of(spec: Any) -> Iterator[str]:
    """Names of the Secrets that the pods of a closed JobSpec read."""
    pod = spec["template"]["spec"]
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        for variable in container.get("env", ()):
            if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
                yield reference["name"]
    for reference in pod.get("imagePullSecrets", ()):
        yield reference["name"]


# -- ways to check


def _object(fields: Mapping[str, Check], *required: str) -> Check:
    def check(value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError(f"{path} must be an object")
        for name in value:
            if name not in fields:
                raise ValueError(f"{path}.{name} is not for analysis Jobs: remove it; there are {', '.join(fields)}")
        for name in required:
            if name not in value:
                raise ValueError(f"{path}.{name} is missing")
        return {name: fields[name](item, f"{path}.{name}") for name, item in value.items()}

    return check


def _list(item: Check, most: int, least: int = 0) -> Check:
    def check(value: Any, path: str) -> list[Any]:
        if not isinstance(value, list | tuple) or not least <= len(value) <= most:
            raise ValueError(f"{path} must be a list of {least} to {most}")
        return [item(one, f"{path}[{place}]") for place, one in enumerate(value)]

    return check


def _text(most: int) -> Check:
    def check(value: Any, path: str) -> str:
        if not isinstance(value, str) or len(value) > most:
            raise ValueError(f"{path} must be a text of at most {most} characters")
        return value

    return check


def _number(least: int, most: int) -> Check:
    def check(value: Any, path: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError(f"{path} must be a number from {least} to {most}")
        return value

    return check


def _one_of(*values: Any) -> Check:
    def check(value: Any, path: str) -> Any:
        # The type must match too: in Python 0 == False.
        if not any(value == one and type(value) is type(one) for one in values):
            raise ValueError(f"{path} must be {' or '.join(str(one).lower() for one in values)}, or left out")
        return value

    return check


def _texts(most: int = 32) -> Check:
    def check(value: Any, path: str) -> dict[str, str]:
        if not isinstance(value, Mapping) or len(value) > most:
            raise ValueError(f"{path} must be an object with at most {most} fields")
        return {str(key): _text(256)(item, f"{path}.{key}") for key, item in value.items()}

    return check


def _size(largest: str, *, is_limit: bool = False) -> Check:
    """Return a check for quantities up to `largest`. `is_limit`: not 0, which Kubernetes reads as no limit."""

    def check(value: Any, path: str) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"{path} must be a quantity, for example {largest}")
        try:
            found = quantity.parse(str(value))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        if not 0 <= found <= quantity.parse(largest):
            raise ValueError(f"{path} must be {largest} at most")
        if is_limit and not found:
            raise ValueError(f"{path} must be more than 0, which would be no limit")
        return str(value)

    return check


def _always(check: Check, **forced: Any) -> Check:
    """Return a check that accepts what `check` accepts, and sets the `forced` fields."""
    return lambda value, path: {**check(value, path), **forced}


def _over(defaults: Mapping[str, Any], check: Check) -> Check:
    """Return a check that fills in `defaults` for fields that the author left out."""
    return lambda value, path: {**defaults, **check(value, path)}


# -- what may be written

_NAME = _text(253)
_BOOLEAN = _one_of(True, False)
_ID = _number(1, 2**31 - 1)
_SECCOMP = _object({"type": _one_of("RuntimeDefault")}, "type")
_KEY_REF = _object({"name": _NAME, "key": _NAME, "optional": _BOOLEAN}, "name", "key")
_POD_FIELDS = ("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "status.podIP", "status.hostIP")


def _amounts(*, are_limits: bool) -> Check:
    def check(value: Any, path: str) -> dict[str, str]:
        if not isinstance(value, Mapping):
            raise ValueError(f"{path} must be an object")
        found = {}
        for name, amount in value.items():
            if name not in LARGEST and "/" not in name:
                raise ValueError(f"{path}.{name} is not for analysis Jobs: there are {', '.join(LARGEST)} and devices")
            is_limit = are_limits and name in LARGEST
            found[name] = _size(LARGEST.get(name, str(MOST_DEVICES)), is_limit=is_limit)(amount, f"{path}.{name}")
        return found

    return check


_RESOURCES = _object({"requests": _amounts(are_limits=False), "limits": _amounts(are_limits=True)})


def _resources(value: Any, path: str) -> dict[str, Any]:
    written = _RESOURCES(value, path)
    requests, limits = written.get("requests", {}), written.get("limits", {})
    if "cpu" not in limits and "cpu" not in requests:
        requests = {"cpu": DEFAULT_CPU_REQUEST, **requests}
        limits = {"cpu": DEFAULT_LIMITS["cpu"], **limits}
    # Kubernetes refuses a limit below the request, and reads a limit of 0 as none.
    requested = {name: amount for name, amount in requests.items() if quantity.parse(amount)}
    bounded = {name: requested.get(name, amount) for name, amount in DEFAULT_LIMITS.items()}
    filled = {"limits": {**bounded, **limits}}
    return {**filled, "requests": requests} if requests else filled


_ENV_SOURCE = _object(
    {
        "secretKeyRef": _KEY_REF,
        "configMapKeyRef": _KEY_REF,
        "fieldRef": _object({"fieldPath": _one_of(*_POD_FIELDS), "apiVersion": _one_of("v1")}, "fieldPath"),
        "resourceFieldRef": _object({"resource": _text(64), "containerName": _text(63), "divisor": _text(16)}),
    }
)
_VARIABLE = _object({"name": _NAME, "value": _text(32_768), "valueFrom": _ENV_SOURCE}, "name")
_ENV_FROM = _object({"prefix": _text(64), "configMapRef": _object({"name": _NAME, "optional": _BOOLEAN}, "name")})
_MOUNT = _object(
    {"name": _text(63), "mountPath": _text(512), "readOnly": _BOOLEAN, "subPath": _text(512)}, "name", "mountPath"
)
_CONTAINER_SECURITY = _always(
    _object(
        {
            "allowPrivilegeEscalation": _one_of(False),
            "privileged": _one_of(False),
            "readOnlyRootFilesystem": _BOOLEAN,
            "runAsNonRoot": _one_of(True),
            "runAsUser": _ID,
            "runAsGroup": _ID,
            "capabilities": _object({"drop": _list(_text(64), 64)}),
            "seccompProfile": _SECCOMP,
        }
    ),
    allowPrivilegeEscalation=False,
    capabilities={"drop": ["ALL"]},
)
_CONTAINER_FIELDS = _object(
    {
        "name": _text(63),
        "image": _text(1024),
        "imagePullPolicy": _one_of("Always", "IfNotPresent", "Never"),
        "command": _list(_text(65_536), 256),
        "args": _list(_text(65_536), 256),
        "workingDir": _text(512),
        "env": _list(_VARIABLE, 256),
        "envFrom": _list(_ENV_FROM, 16),
        "resources": _resources,
        "volumeMounts": _list(_MOUNT, 32),
        "terminationMessagePolicy": _one_of("File", "FallbackToLogsOnError"),
        "securityContext": _CONTAINER_SECURITY,
    },
    "name",
    "image",
)
_VOLUME_SOURCES = ("emptyDir", "configMap")
_VOLUME_FIELDS = _object(
    {
        "name": _text(63),
        "emptyDir": _over(
            {"sizeLimit": VOLUME_DEFAULT},
            _object({"medium": _one_of("", "Memory"), "sizeLimit": _size(VOLUME_LIMIT, is_limit=True)}),
        ),
        "configMap": _object(
            {
                "name": _NAME,
                "optional": _BOOLEAN,
                "defaultMode": _number(0, 0o777),
                "items": _list(_object({"key": _NAME, "path": _text(512), "mode": _number(0, 0o777)}), 64),
            },
            "name",
        ),
    },
    "name",
)


def _volume(value: Any, path: str) -> Any:
    found: dict[str, Any] = _VOLUME_FIELDS(value, path)
    if sum(source in found for source in _VOLUME_SOURCES) != 1:
        # Kubernetes reads a volume without a source as an emptyDir without a limit.
        raise ValueError(f"{path} must have one of {' and '.join(_VOLUME_SOURCES)}")
    return found


_POD_SECURITY = _over(
    {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    _object(
        {
            "runAsNonRoot": _one_of(True),
            "runAsUser": _ID,
            "runAsGroup": _ID,
            "fsGroup": _ID,
            "fsGroupChangePolicy": _one_of("Always", "OnRootMismatch"),
            "seccompProfile": _SECCOMP,
        }
    ),
)


def _container(value: Any, path: str) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError(f"{path} must be an object")
    return _CONTAINER_FIELDS({"resources": {}, "securityContext": {}, **value}, path)


def _toleration_key(value: Any, path: str) -> str:
    key: str = _text(253)(value, path)
    if not _TOLERATION_KEY.fullmatch(key) or key.startswith(("node-role.kubernetes.io/", "node.kubernetes.io/")):
        raise ValueError(f"{path} must name a taint of your own, for example nvidia.com/gpu")
    return key


_TOLERATION = _object(
    {
        "key": _toleration_key,
        "operator": _one_of("Exists", "Equal"),
        "value": _text(63),
        "effect": _one_of("NoSchedule", "PreferNoSchedule", "NoExecute"),
        "tolerationSeconds": _number(0, DEADLINE_LIMIT_S),
    },
    "key",
)
_POD_FIELDS_ALLOWED = _object(
    {
        "containers": _list(_container, 4, least=1),
        "initContainers": _list(_container, 4),
        "restartPolicy": _one_of("Never", "OnFailure"),
        "volumes": _list(_volume, 16),
        "securityContext": _POD_SECURITY,
        "serviceAccountName": _one_of("default"),
        "automountServiceAccountToken": _one_of(False),
        "enableServiceLinks": _one_of(False),
        "terminationGracePeriodSeconds": _number(0, 300),
        "imagePullSecrets": _list(_object({"name": _NAME}, "name"), 8),
        "nodeSelector": _texts(),
        "tolerations": _list(_TOLERATION, 16),
    },
    "containers",
)
_FILLED_POD: dict[str, Any] = {
    "restartPolicy": "Never",
    "securityContext": {},
    "serviceAccountName": "default",
    "automountServiceAccountToken": False,
    "enableServiceLinks": False,
}


def _pod(value: Any, path: str) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError(f"{path} must be an object")
    return _POD_FIELDS_ALLOWED({**_FILLED_POD, **value}, path)


_OF_MESHES = _object({key: _one_of("true", "false", "enabled", "disabled") for key in MESH_KEYS})
# With other labels, Services and NetworkPolicies of other users' pods could select these pods.
_TEMPLATE = _object({"metadata": _object({"labels": _OF_MESHES, "annotations": _OF_MESHES}), "spec": _pod}, "spec")
_JOB = _object(
    {
        "template": _TEMPLATE,
        "activeDeadlineSeconds": _number(1, DEADLINE_LIMIT_S),
        # A Job that is deleted as soon as it ends leaves no result for the operator.
        "ttlSecondsAfterFinished": _number(LEAST_TTL_S, DEADLINE_LIMIT_S),
        "backoffLimit": _number(0, 6),
        "completions": _number(1, 4),
        "parallelism": _number(1, 4),
    },
    "template",
)
