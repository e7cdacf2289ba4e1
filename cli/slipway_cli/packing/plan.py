"""From demand to pods, and from pods to GPUs at the lowest price that is found; deterministic, pure."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from slipway_cli.packing.bins import MOST_OF_PACKING, MOST_OF_PLAN, MOST_PODS, Bin, Effort, Item, bound, pack
from slipway_cli.packing.request import GpuType, Model, PlanRequest

MOST_WHOLE_PODS = 1_000_000  # of a model with GPUs of its own
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


@dataclass(slots=True)
class _Packer:
    """Packs the models of a type of GPU, the same ones once, while effort is left in the best way that is known."""

    types: Mapping[str, GpuType]
    share: float
    effort: Effort
    packed: dict[tuple[str, ...], GpuPlan] = field(default_factory=dict)

    def gpus(self, name: str, there: Sequence[Model]) -> GpuPlan:
        """GPUs of a type with these models. Raises ValueError for too many pods."""
        key = (name, *(model.name for model in there))
        if key not in self.packed:
            whole, items = self._parts(name, there)
            effort = Effort(max(0, min(MOST_OF_PACKING, self.effort.left)))
            before = effort.left
            bins = pack(items, effort)
            self.effort.left -= before - effort.left + len(items) + len(there)
            price = self.types[name].price_per_hour
            self.packed[key] = GpuPlan(name, whole + len(bins), price, tuple(map(_names, bins)))
        return self.packed[key]

    def are_too_many(self, name: str, there: Sequence[Model]) -> bool:
        """Whether these models take more GPUs of a type than there are."""
        whole, items = self._parts(name, there)
        most = _available(self.types[name])
        # No packing is needed where none can do.
        return whole + math.ceil(bound(items) - 1e-9) > most or self.gpus(name, there).gpus > most

    def _parts(self, name: str, there: Sequence[Model]) -> tuple[int, list[Item]]:
        """GPUs that models do not share, and the pods that share GPUs."""
        whole = sum(pods_of(model, name, self.share) * model.gpus for model in there)
        return whole, [
            item for model in there if not model.gpus for item in items_of(model, self.types[name], self.share)
        ]


def plan(request: PlanRequest) -> Plan:
    """Each model is on one type of GPU. First the cheapest by its largest share, then what makes the sum cheaper.

    Raises:
        ValueError: models that share GPUs of a type have more than MOST_PODS pods.
    """
    types = {gpu.name: gpu for gpu in request.gpu_types}
    share = request.utilization_percent / 100
    left_out = {model.name: why for model in request.models if (why := _unfit(model, types, share))}
    models = [model for model in request.models if model.name not in left_out]
    chosen = {
        model.name: min(_fitting(model, types, share), key=lambda name: _price(model, types[name], share))
        for model in models
    }
    packer = _Packer(types, share, Effort(MOST_OF_PLAN))
    chosen = _improved(models, chosen, packer)
    while over := _over(models, chosen, packer):
        left_out[over.name] = f"there are not enough GPUs of type {chosen[over.name]}"
        models = [model for model in models if model.name != over.name]
    gpus = tuple(_gpu_plans(models, chosen, packer))
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


def _unfit(model: Model, types: Mapping[str, GpuType], share: float) -> str:
    if _fitting(model, types, share):
        return ""
    if any(_holds(model, types[name]) for name in model.capacity):
        return f"it takes more than {_most_pods(model)} pods of each of its types"
    largest = max(types[name].memory_gb for name in model.capacity)
    return f"a pod needs {model.memory_gb:g} GB on {max(1, model.gpus)} GPUs, and its types have {largest:g} GB at most"


def _fitting(model: Model, types: Mapping[str, GpuType], share: float) -> list[str]:
    """Types on which a pod fits and that need no endless number of pods, in the order of their names."""
    return sorted(
        name
        for name, capacity in model.capacity.items()
        if _holds(model, types[name]) and _is_countable(model, capacity * share)
    )


def _holds(model: Model, gpu: GpuType) -> bool:
    return model.memory_gb <= gpu.memory_gb * max(1, model.gpus)


def _is_countable(model: Model, each: float) -> bool:
    """Whether there are few enough pods to plan with. `each`: what a pod carries."""
    return model.min_replicas <= _most_pods(model) and each > 0 and model.demand <= _most_pods(model) * each


def _most_pods(model: Model) -> int:
    return MOST_WHOLE_PODS if model.gpus else MOST_PODS


def _price(model: Model, gpu: GpuType, share: float) -> float:
    """Price of an hour by the larger share of each pod, as if GPUs could be cut."""
    if model.gpus:
        return pods_of(model, gpu.name, share) * model.gpus * gpu.price_per_hour
    items = items_of(model, gpu, share)  # all the same
    return len(items) * items[0].size * gpu.price_per_hour if items else 0.0


def _improved(models: Sequence[Model], chosen: dict[str, str], packer: _Packer) -> dict[str, str]:
    """Let one model after the other take another type while that makes the sum cheaper or fit, and effort is left."""
    best = _cost(models, chosen, packer)
    for _ in range(_IMPROVEMENTS):
        before = best
        for model in models:
            for name in _fitting(model, packer.types, packer.share):
                if packer.effort.left <= 0:
                    return chosen
                trial = {**chosen, model.name: name}
                if name != chosen[model.name] and (cost := _cost(models, trial, packer)) < best:
                    chosen, best = trial, cost
        if best == before:
            break
    return chosen


def _cost(models: Sequence[Model], chosen: Mapping[str, str], packer: _Packer) -> tuple[int, float]:
    """GPUs beyond those that there are, and the price of an hour."""
    gpus = list(_gpu_plans(models, chosen, packer))
    missing = sum(max(0, gpu.gpus - _available(packer.types[gpu.gpu_type])) for gpu in gpus)
    return missing, sum(gpu.gpus * gpu.price_per_hour for gpu in gpus)


def _over(models: Sequence[Model], chosen: Mapping[str, str], packer: _Packer) -> Model | None:
    """The model to leave out: the one with most GPUs of a type of which there are too few."""
    for name, there in _by_type(models, chosen):
        if packer.are_too_many(name, there):
            return max(there, key=lambda model: (_price(model, packer.types[name], packer.share), model.name))
    return None


def _available(gpu: GpuType) -> int:
    return 1 << 60 if gpu.available is None else gpu.available


def _gpu_plans(models: Sequence[Model], chosen: Mapping[str, str], packer: _Packer) -> Iterator[GpuPlan]:
    for name, there in _by_type(models, chosen):
        gpus = packer.gpus(name, there)
        if gpus.gpus:
            yield gpus


def _by_type(models: Sequence[Model], chosen: Mapping[str, str]) -> list[tuple[str, list[Model]]]:
    """Types of GPU that models have, by their names, with these models."""
    there: dict[str, list[Model]] = {}
    for model in models:
        there.setdefault(chosen[model.name], []).append(model)
    return sorted(there.items(), key=lambda entry: entry[0])


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
        fitting = [types[name] for name in _fitting(model, types, share)]
        exclusive = min(_price(model, gpu, share) for gpu in fitting) if model.gpus else 0.0
        shares = [(items_of(model, gpu, share), gpu.price_per_hour) for gpu in fitting]
        memory += exclusive or min(sum(item.memory for item in items) * price for items, price in shares)
        compute += exclusive or min(sum(item.compute for item in items) * price for items, price in shares)
    return max(memory, compute)
