"""How many pods a rate of requests needs, and what they cost; pure."""

import math
from dataclasses import dataclass

from slipway_cli.objects.times import HOURS_PER_MONTH

MEASURED, EXTRAPOLATED, AT_LEAST = "Measured", "Extrapolated", "AtLeast"  # what a capacity rests on
MOST_PODS = 1_000_000
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class PodCapacity:
    """Requests per second of one pod, of the lengths that were given, with bounds of some 95 %.

    `high` None: no load was too high. `low` 0: no load was sure to hold. `limit` and `why`: what ends it.
    """

    source: str
    basis: str
    rate: float
    low: float
    high: float | None
    prompt_tokens: float
    output_tokens: float
    limit: str
    why: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests per second, the share of the capacity that may be used from 0 to 1, and pods beside those needed."""

    rate: float
    utilization: float = 0.8
    spare: int = 0


@dataclass(frozen=True, slots=True)
class Cost:
    """In the currency of the price: of all pods an hour and a month, and of what they serve at this rate.

    None: the requests have no tokens.
    """

    hour: float
    month: float
    thousand_requests: float
    million_tokens: float | None
    million_output_tokens: float | None


@dataclass(frozen=True, slots=True)
class Answer:
    """`pods` include spare ones. `fewest`, `most`: by the bounds of the capacity; `most` None: without a lower one."""

    pods: int
    fewest: int
    most: int | None
    used: float  # share of what the pods without spare ones carry
    gpus: int
    cost: Cost | None


def answer(capacity: PodCapacity, demand: Demand, gpus_per_pod: int, price_of_pod: float | None) -> Answer:
    """The answer, which takes pods as alike: n of them carry n times what one does.

    Raises:
        ValueError: it needs more than MOST_PODS pods.
    """
    needed = _pods(demand, capacity.rate)
    fewest = needed if capacity.high is None else min(needed, _pods(demand, capacity.high))
    most = max(needed, _pods(demand, capacity.low)) if _is_countable(demand, capacity.low) else None
    pods = needed + demand.spare
    cost = None if price_of_pod is None else _cost(capacity, demand, pods * price_of_pod)
    return Answer(
        pods,
        fewest + demand.spare,
        None if most is None else most + demand.spare,
        demand.rate / (needed * capacity.rate),
        pods * gpus_per_pod,
        cost,
    )


def _is_countable(demand: Demand, rate: float) -> bool:
    return rate > 0 and demand.rate <= rate * demand.utilization * MOST_PODS


def _pods(demand: Demand, rate: float) -> int:
    if not _is_countable(demand, rate):
        raise ValueError(f"{demand.rate:g} requests per second need more than {MOST_PODS} pods of {rate:.3g} each")
    return max(1, math.ceil(demand.rate / (rate * demand.utilization) - 1e-9))


def _cost(capacity: PodCapacity, demand: Demand, hour: float) -> Cost:
    each = hour / (demand.rate * _HOUR_S)  # of a request
    tokens = capacity.prompt_tokens + capacity.output_tokens
    return Cost(
        hour,
        hour * HOURS_PER_MONTH,
        each * 1e3,
        each / tokens * 1e6 if tokens else None,
        each / capacity.output_tokens * 1e6 if capacity.output_tokens else None,
    )
