"""The file of `slipway plan`: types of GPUs, and models with their demand and what a pod of them carries; pure."""

from typing import Annotated, TypeVar

import msgspec

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e12)]
LARGEST_BYTES = 1 << 20

T = TypeVar("T")


class GpuType(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A type of GPU: memory in GB, price of an hour, and how many there are; None: as many as needed."""

    name: Name
    memory_gb: Positive
    price_per_hour: Positive
    available: Annotated[int, msgspec.Meta(ge=0, le=100_000)] | None = None


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A model: memory of a pod in GB, demand per second, and what a pod carries of it by type of GPU.

    `capacity` is work per second while the objectives hold, as `status.autoscaling.revisions` has it, in the unit of
    `demand`. A type that is not in it is not for this model. `gpus`: whole ones for a pod; 0: a share of one.
    """

    name: Name
    memory_gb: Positive
    demand: Annotated[float, msgspec.Meta(ge=0, le=1e12)]
    capacity: Annotated[dict[Name, Positive], msgspec.Meta(min_length=1, max_length=32)]
    gpus: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
    min_replicas: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 1


class PlanRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The whole file. `utilizationPercent`: of the capacity, for which pods are planned."""

    gpu_types: Annotated[list[GpuType], msgspec.Meta(min_length=1, max_length=32)]
    models: Annotated[list[Model], msgspec.Meta(min_length=1, max_length=1_000)]
    utilization_percent: Annotated[int, msgspec.Meta(ge=10, le=100)] = 80


class Prices(msgspec.Struct, frozen=True, rename="camel"):
    """The types of GPUs of such a file, whatever else it has."""

    gpu_types: Annotated[list[GpuType], msgspec.Meta(min_length=1, max_length=32)]


def read_gpu_types(text: bytes) -> list[GpuType]:
    """The types of GPUs of a file, which may have models or not.

    Raises:
        ValueError: with the path of the field that is wrong.
    """
    return _decoded(text, Prices).gpu_types


def read(text: bytes) -> PlanRequest:
    """Read the file, which is YAML or JSON.

    Raises:
        ValueError: with the path of the field that is wrong.
    """
    request = _decoded(text, PlanRequest)
    for kind, names in (
        ("gpuTypes", [gpu.name for gpu in request.gpu_types]),
        ("models", [m.name for m in request.models]),
    ):
        if twice := next((name for name in names if names.count(name) > 1), ""):
            raise ValueError(f"{kind} has {twice} twice")
    types = {gpu.name for gpu in request.gpu_types}
    for model in request.models:
        if unknown := sorted(model.capacity.keys() - types):
            raise ValueError(f"models: capacity of {model.name} names {unknown[0]}, which is not in gpuTypes")
    return request


def _decoded(text: bytes, kind: type[T]) -> T:
    if len(text) > LARGEST_BYTES:
        raise ValueError(f"the file has more than {LARGEST_BYTES} bytes")
    try:
        return msgspec.yaml.decode(text, type=kind)
    except RecursionError as error:
        raise ValueError("the file is nested too deeply") from error
