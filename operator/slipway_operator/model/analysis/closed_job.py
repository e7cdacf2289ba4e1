"""The closed JobSpec of an analysis: authors of templates get no pod that only an operator could create.

`api/inputs/job.py` has the fields that are allowed. Here amounts are bounded, and defaults fill in what is left open,
so that the pods pass Pod Security "restricted", have no API token, and use a bounded part of a node.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from slipway_contracts.api.reading import UnreadableObject, encoded, read
from slipway_operator.api.inputs.job import JobSpec
from slipway_operator.api.objects import Json
from slipway_operator.model import quantity

USER_ID = 65_532  # for images with a user name: the kubelet can verify runAsNonRoot only for a number
LARGEST = {"cpu": "16", "memory": "64Gi", "ephemeral-storage": "64Gi"}
MOST_DEVICES = 8
DEFAULT_LIMITS = {"cpu": "1", "memory": "512Mi", "ephemeral-storage": "1Gi"}
DEFAULT_CPU_REQUEST = "100m"
VOLUME_LIMIT, VOLUME_DEFAULT = "16Gi", "1Gi"
_PATH = "job.spec"

_POD: Json = {
    "restartPolicy": "Never",
    "serviceAccountName": "default",
    "automountServiceAccountToken": False,
    "enableServiceLinks": False,
}
_POD_SECURITY: Json = {
    "runAsNonRoot": True,
    "runAsUser": USER_ID,
    "runAsGroup": USER_ID,
    "fsGroup": USER_ID,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_FORCED_SECURITY: Json = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def closed(spec: Any) -> dict[str, Any]:
    """Return the JobSpec to run, with defaults and forced fields. A closed spec stays unchanged.

    Raises:
        ValueError: names the field that an analysis Job cannot have, or its value.
    """
    job = _written(spec)
    pod, path = job["template"]["spec"], f"{_PATH}.template.spec"
    filled = {**_POD, **pod, "securityContext": {**_POD_SECURITY, **pod.get("securityContext", {})}}
    for field in ("initContainers", "containers"):
        if field in pod:
            filled[field] = [_container(item, f"{path}.{field}[{index}]") for index, item in enumerate(pod[field])]
    if "volumes" in pod:
        filled["volumes"] = [_volume(item, f"{path}.volumes[{index}]") for index, item in enumerate(pod["volumes"])]
    return {**job, "template": {**job["template"], "spec": filled}}


def _written(spec: Any) -> Json:
    try:
        written = encoded(spec)
    except UnreadableObject as error:
        raise ValueError(f"{_PATH}: {error}") from error
    job: Json = read(JobSpec, written, _PATH).model_dump(
        mode="json", by_alias=True, exclude_unset=True, exclude_none=True
    )
    return job


def secrets_of(spec: Any) -> Iterator[str]:
    """Names of the Secrets that the pods of a closed JobSpec read."""
    pod = spec["template"]["spec"]
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        for variable in container.get("env", ()):
            if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
                yield reference["name"]
    for reference in pod.get("imagePullSecrets", ()):
        yield reference["name"]


def _container(container: Json, path: str) -> Json:
    return {
        **container,
        "resources": _resources(container.get("resources", {}), f"{path}.resources"),
        "securityContext": {**container.get("securityContext", {}), **_FORCED_SECURITY},
    }


def _resources(written: Json, path: str) -> Json:
    requests, limits = written.get("requests", {}), written.get("limits", {})
    _check_amounts(requests, f"{path}.requests", are_limits=False)
    _check_amounts(limits, f"{path}.limits", are_limits=True)
    if "cpu" not in limits and "cpu" not in requests:
        requests = {"cpu": DEFAULT_CPU_REQUEST, **requests}
        limits = {"cpu": DEFAULT_LIMITS["cpu"], **limits}
    # Kubernetes refuses a limit below the request, and reads a limit of 0 as none.
    requested = {name: amount for name, amount in requests.items() if quantity.parse(amount)}
    bounded = {name: requested.get(name, amount) for name, amount in DEFAULT_LIMITS.items()}
    filled = {"limits": {**bounded, **limits}}
    return {**filled, "requests": requests} if requests else filled


def _check_amounts(amounts: Mapping[str, str], path: str, *, are_limits: bool) -> None:
    for name, amount in amounts.items():
        if name not in LARGEST and "/" not in name:
            raise ValueError(f"{path}.{name}: is not allowed here: there are {', '.join(LARGEST)} and devices")
        is_limit = are_limits and name in LARGEST
        _check_size(amount, LARGEST.get(name, str(MOST_DEVICES)), f"{path}.{name}", is_limit=is_limit)


def _check_size(amount: str, largest: str, path: str, *, is_limit: bool) -> None:
    """`is_limit`: not 0, which Kubernetes reads as no limit."""
    try:
        size = quantity.parse(amount)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if not 0 <= size <= quantity.parse(largest):
        raise ValueError(f"{path}: must be {largest} at most")
    if is_limit and not size:
        raise ValueError(f"{path}: must be more than 0, which would be no limit")


def _volume(volume: Json, path: str) -> Json:
    if "emptyDir" not in volume:
        return volume
    folder = {"sizeLimit": VOLUME_DEFAULT, **volume["emptyDir"]}
    _check_size(folder["sizeLimit"], VOLUME_LIMIT, f"{path}.emptyDir.sizeLimit", is_limit=True)
    return {**volume, "emptyDir": folder}
