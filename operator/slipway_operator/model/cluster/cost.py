"""What the pods of a revision cost for each hour that they have a node, by prices that the administrator sets."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from slipway_operator.model import labels, quantity
from slipway_operator.model.cluster.observed import Observed
from slipway_operator.model.inputs.pod_inputs import Resources

CPU, MEMORY = "cpu", "memory"  # priced by core and by GiB; every other resource is a device
MOST_PRICES = 32
LARGEST_PRICE = 1e9  # per hour, in any currency
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class RevisionPods:
    """The pods of a revision that have a node, and what each of them gets."""

    revision: str
    pods: tuple[str, ...]
    resources: Resources
    restarts: int = 0  # of containers in its pods that are not terminating


def revision_pods(observed: Observed, live: Collection[str | None]) -> tuple[RevisionPods, ...]:
    """Return the revisions that have pods on nodes, and live ones without such pods: their cost is known to be 0.

    Standby pods that wait are on a node too.
    """
    waiting = {name: item.scheduled for name, item in observed.standby.items()}
    found = ((name, (*item.scheduled, *waiting.get(name, ()))) for name, item in sorted(observed.workloads.items()))
    return tuple(
        RevisionPods(name, tuple(dict.fromkeys(pods)), snapshot.inputs.resources, observed.restarts(name))
        for name, pods in found
        if (pods or name in live) and (snapshot := observed.snapshots.get(labels.what_runs(name)))
    )


def parse_prices(items: Iterable[tuple[str, str]]) -> tuple[tuple[str, float], ...]:
    """Parse pairs of a resource and its price per hour.

    Raises:
        ValueError: when a price is no number, a resource has two, or there are too many.
    """
    found: dict[str, float] = {}
    for resource, text in items:
        if not resource or resource in found:
            raise ValueError(f"{resource or text[:32]}: write each resource once, for example nvidia.com/gpu=2.5")
        found[resource] = _price(resource, text)
    if len(found) > MOST_PRICES:
        raise ValueError(f"{len(found)} prices: at most {MOST_PRICES} are possible")
    return tuple(found.items())


def _price(resource: str, text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = -1.0
    if not 0 < price <= LARGEST_PRICE:
        raise ValueError(f"{resource}={text[:32]}: a price is a number above 0, at most {LARGEST_PRICE:.0f}")
    return price


def cost_per_hour(resources: Resources, pods: int, prices: Mapping[str, float]) -> float | None:
    """Return the cost of `pods` pods per hour, in the currency of the prices; None when it is unknown.

    It is unknown when a device has no price, or no resource has one: the pods would look cheap. Otherwise CPU and
    memory without a price, or without a request, cost nothing.
    """
    if resources.accelerator and resources.accelerator[0] not in prices:
        return None
    try:
        amounts = _amounts(resources)
    except (ValueError, OverflowError):  # a revision's record that was edited by hand
        return None
    priced = {resource: amount for resource, amount in amounts.items() if resource in prices}
    cost = pods * sum(amount * prices[resource] for resource, amount in priced.items())
    return cost if priced and math.isfinite(cost) else None


def _amounts(resources: Resources) -> dict[str, float]:
    found: dict[str, float] = {}
    if resources.cpu:
        found[CPU] = float(quantity.parse(resources.cpu))
    if resources.memory:
        found[MEMORY] = float(quantity.parse(resources.memory)) / _GIB
    if resources.accelerator:
        name, count = resources.accelerator
        found[name] = float(count)
    return found
