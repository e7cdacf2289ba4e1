"""From demand to pods, and from pods to GPUs at the lowest price that is found; deterministic, pure."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from slipway_cli.packing.bins import Bin, Item, bound, pack
from slipway_cli.packing.request import GpuType, Model, PlanRequest

HOURS_PER_MONTH = 730
_IMPROVEMENTS = 3  # rounds in which each model tries each type


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """Pods of a model on a type of GPU; `used`: the share of what they carry that demand takes."""

    model: str
    gpu_type: str
    pods: int
    used: float


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """GPUs of a type, and what is on those that models share: names of models with their numbers of pods."""

    gpu_type: str
    gpus: int
    price_per_hour: float
    shared: tuple[Mapping[str, int], ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """`bound`: a price per hour that no plan is below. `left_out`: models that do not fit, with the reason."""

    models: tuple[ModelPlan, ...]
    gpus: tuple[GpuPlan, ...]
    price_per_hour: float
    bound: float
    left_out: Mapping[str, str]


def plan(request: PlanRequest) -> Plan:
    """Each model is on one type of GPU. First the cheapest by its largest share, then what makes the sum cheaper."""
    types = {gpu.name: gpu for gpu in request.gpu_types}
    left_out = {model.name: why for model in request.models if (why := _unfit(model, types))}
    models = [model for model in request.models if model.name not in left_out]
    share = request.utilization_percent / 100
    chosen = {
        model.name: min(_fitting(model, types), key=lambda name: _price(model, types[name], share)) for model in models
    }
    chosen = _improved(models, chosen, types, share)
    while over := _over(models, chosen, types, share):
        left_out[over.name] = f"there are not enough GPUs of type {chosen[over.name]}"
        models = [model for model in models if model.name != over.name]
    gpus = tuple(_gpu_plans(models, chosen, types, share))
    return Plan(
        tuple(_model_plan(model, chosen[model.name], share) for model in models),
        gpus,
        sum(gpu.gpus * gpu.price_per_hour for gpu in gpus),
        _bound(models, types, share),
        left_out,
    )


def pods_of(model: Model, gpu_type: str, share: float) -> int:
    """Pods that carry the demand of a model at this utilization."""
    return max(model.min_replicas, math.ceil(model.demand / (model.capacity[gpu_type] * share) - 1e-9))


def items_of(model: Model, gpu: GpuType, share: float) -> list[Item]:
    """Its pods as shares of a GPU of this type."""
    pods = pods_of(model, gpu.name, share)
    compute = model.demand / max(1, pods) / (model.capacity[gpu.name] * share)
    return [Item(model.name, model.memory_gb / gpu.memory_gb, compute)] * pods


def _unfit(model: Model, types: Mapping[str, GpuType]) -> str:
    if _fitting(model, types):
        return ""
    largest = max(types[name].memory_gb for name in model.capacity)
    return f"a pod needs {model.memory_gb:g} GB on {max(1, model.gpus)} GPUs, and its types have {largest:g} GB at most"


def _fitting(model: Model, types: Mapping[str, GpuType]) -> list[str]:
    """Types on which a pod fits, in the order of their names."""
    return sorted(name for name in model.capacity if model.memory_gb <= types[name].memory_gb * max(1, model.gpus))


def _price(model: Model, gpu: GpuType, share: float) -> float:
    """Price of an hour by the larger share of each pod, as if GPUs could be cut."""
    if model.gpus:
        return pods_of(model, gpu.name, share) * model.gpus * gpu.price_per_hour
    return sum(item.size for item in items_of(model, gpu, share)) * gpu.price_per_hour


def _improved(
    models: Sequence[Model], chosen: dict[str, str], types: Mapping[str, GpuType], share: float
) -> dict[str, str]:
    """Let one model after the other take another type while that makes the sum cheaper or fit."""
    best = _cost(models, chosen, types, share)
    for _ in range(_IMPROVEMENTS):
        before = best
        for model in models:
            for name in _fitting(model, types):
                trial = {**chosen, model.name: name}
                if name != chosen[model.name] and (cost := _cost(models, trial, types, share)) < best:
                    chosen, best = trial, cost
        if best == before:
            break
    return chosen


def _cost(
    models: Sequence[Model], chosen: Mapping[str, str], types: Mapping[str, GpuType], share: float
) -> tuple[int, float]:
    """GPUs beyond those that there are, and the price of an hour."""
    gpus = list(_gpu_plans(models, chosen, types, share))
    missing = sum(max(0, gpu.gpus - _available(types[gpu.gpu_type])) for gpu in gpus)
    return missing, sum(gpu.gpus * gpu.price_per_hour for gpu in gpus)


def _over(
    models: Sequence[Model], chosen: Mapping[str, str], types: Mapping[str, GpuType], share: float
) -> Model | None:
    """The model to leave out: the one with most GPUs of a type of which there are too few."""
    for gpu in _gpu_plans(models, chosen, types, share):
        if gpu.gpus > _available(types[gpu.gpu_type]):
            there = [model for model in models if chosen[model.name] == gpu.gpu_type]
            return max(there, key=lambda model: (_price(model, types[gpu.gpu_type], share), model.name))
    return None


def _available(gpu: GpuType) -> int:
    return 1 << 60 if gpu.available is None else gpu.available


def _gpu_plans(
    models: Sequence[Model], chosen: Mapping[str, str], types: Mapping[str, GpuType], share: float
) -> Iterator[GpuPlan]:
    for name, gpu in sorted(types.items()):
        there = [model for model in models if chosen[model.name] == name]
        whole = sum(pods_of(model, name, share) * model.gpus for model in there)
        bins = pack([item for model in there if not model.gpus for item in items_of(model, gpu, share)])
        if whole or bins:
            yield GpuPlan(name, whole + len(bins), gpu.price_per_hour, tuple(map(_names, bins)))


def _names(shared: Bin) -> Mapping[str, int]:
    return dict(sorted(Counter(item.name for item in shared.items).items()))


def _model_plan(model: Model, gpu_type: str, share: float) -> ModelPlan:
    pods = pods_of(model, gpu_type, share)
    used = model.demand / (pods * model.capacity[gpu_type]) if pods else 0.0
    return ModelPlan(model.name, gpu_type, pods, used)


def _bound(models: Sequence[Model], types: Mapping[str, GpuType], share: float) -> float:
    """Every pod pays its larger share at least on the type that is cheapest for it; of one type, whole GPUs."""
    if len(types) == 1:
        ((name, gpu),) = types.items()
        items = [item for model in models if not model.gpus for item in items_of(model, gpu, share)]
        whole = sum(pods_of(model, name, share) * model.gpus for model in models)
        return (math.ceil(bound(items) - 1e-9) + whole) * gpu.price_per_hour
    memory, compute = 0.0, 0.0
    for model in models:
        fitting = [types[name] for name in _fitting(model, types)]
        exclusive = min(_price(model, gpu, share) for gpu in fitting) if model.gpus else 0.0
        shares = [(items_of(model, gpu, share), gpu.price_per_hour) for gpu in fitting]
        memory += exclusive or min(sum(item.memory for item in items) * price for items, price in shares)
        compute += exclusive or min(sum(item.compute for item in items) * price for items, price in shares)
    return max(memory, compute)
