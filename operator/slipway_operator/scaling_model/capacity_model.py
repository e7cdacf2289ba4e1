"""What one pod of a revision carries while its objectives hold: fitted online, bounded, and kept in the status; pure.

Reports of pods are evidence of strangers. An observation is the median over the pods of a revision, so one pod of
three that reports nonsense changes nothing; and demand is bounded by `robust_total`.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from slipway_operator.scaling_model.load_curve import LoadCurve
from slipway_operator.scaling_model.step_fit import PROMPT_COST, StepFit

MOST_STARTS = 9
LONGEST_START_S = 86_400.0
DEFAULT_START_S = 60.0  # until a pod of the revision has started
_MARGIN = 0.9  # of the saturation that step times predict: an objective is missed before it
_OUTLIER = 4.0  # times the median, beyond which a pod's number is taken for that


class Basis(StrEnum):
    """What a capacity follows from."""

    MEASURED = "Measured"  # the objective was missed at higher loads and met at lower ones
    EXTRAPOLATED = "Extrapolated"  # from step times; no load was high enough to miss it
    AT_LEAST = "AtLeast"  # the highest load so far, at which it was met


@dataclass(frozen=True, slots=True)
class Capacity:
    """Work per second that a pod carries while the objectives hold, with bounds of some 95 % each."""

    load: float
    low: float
    high: float
    basis: Basis


@dataclass(frozen=True, slots=True)
class PodLoad:
    """What one pod did over some seconds. Rates are per second; None: its engine does not export it."""

    running: float = 0.0  # mean number of requests in progress
    waiting: float = 0.0
    generated: float | None = None  # tokens
    prompts: float | None = None  # tokens
    requests: float = 0.0
    missed: float | None = None  # share of the requests that missed the objective; None: not measured at the pod


@dataclass(frozen=True, slots=True)
class CapacityModel:
    """The model of one revision. `slots`: the most requests in progress at a pod where others waited; 0: none did."""

    steps: StepFit = field(default_factory=StepFit)
    curve: LoadCurve = field(default_factory=LoadCurve)
    slots: float = 0.0
    prompts_for_each: float = 0.0  # prompt tokens for each generated one, lately
    starts_s: tuple[float, ...] = ()  # from the creation of a pod to ready, the last ones

    def observe(self, pods: Sequence[PodLoad], seconds: float, missed: float | None = None) -> "CapacityModel":
        """Learn from the pods of the revision over so many seconds.

        `missed`: share of the requests that missed an objective, as gateways counted; None: pods' own shares count.
        """
        if not pods:
            return self
        middle = median_of(pods)
        share = middle.missed if missed is None else missed
        learned = replace(self, slots=self._slots_with(middle))
        if middle.generated is not None:
            prompts = middle.prompts or 0.0
            mix = prompts / middle.generated if middle.generated > 0 else self.prompts_for_each
            learned = replace(
                learned,
                steps=self.steps.add(middle.running, middle.generated, prompts),
                prompts_for_each=mix if not self.steps.observations else 0.9 * self.prompts_for_each + 0.1 * mix,
            )
            if learned.steps.solved() is None:  # what prompts cost is unknown, and a load in other units would stay
                return learned
        load, requests = learned.work(middle), middle.requests * len(pods) * seconds
        if share is None or requests <= 0:
            return learned
        return replace(learned, curve=self.curve.add(load, requests, min(1.0, max(0.0, share)) * requests))

    def started(self, seconds: float) -> "CapacityModel":
        """A pod became ready so many seconds after its creation."""
        if not 0 < seconds <= LONGEST_START_S:
            return self
        return replace(self, starts_s=(*self.starts_s, seconds)[-MOST_STARTS:])

    @property
    def start_s(self) -> float:
        """How long a pod takes to start: the median of the last ones."""
        return statistics.median(self.starts_s) if self.starts_s else DEFAULT_START_S

    @property
    def prompt_cost(self) -> float:
        """Of a prompt token, in generated tokens."""
        solved = self.steps.solved()
        return solved.prompt_cost if solved else PROMPT_COST

    def work(self, pod: PodLoad) -> float:
        """Work per second: tokens, or requests where the engine has no tokens."""
        if pod.generated is None:
            return pod.requests
        return pod.generated + self.prompt_cost * (pod.prompts or 0.0)

    def capacity(self, budget: float) -> Capacity | None:
        """What a pod carries while at most the share `budget` of the requests misses; None before any evidence."""
        crossing = self.curve.crossing(budget)
        if crossing and not crossing.open:
            return Capacity(crossing.load, crossing.low, crossing.high, Basis.MEASURED)
        met = crossing.load if crossing else 0.0
        saturated = self.full_batch
        if saturated and _MARGIN * saturated > met:
            return Capacity(_MARGIN * saturated, met or _MARGIN * saturated / 2, saturated, Basis.EXTRAPOLATED)
        return Capacity(met, met, math.inf, Basis.AT_LEAST) if met else None

    @property
    def full_batch(self) -> float | None:
        """Work per second of a full batch; None while step times or the size of a full batch are unknown."""
        solved = self.steps.solved()
        if solved is None or self.slots < 1:
            return None
        generated = solved.generated_per_second(self.slots, self.prompts_for_each)
        return generated * (1 + solved.prompt_cost * self.prompts_for_each)

    def _slots_with(self, middle: PodLoad) -> float:
        """A full batch is seen where requests wait; it follows slowly to fewer."""
        if middle.waiting < 1 or middle.running < 1:
            return self.slots
        return max(middle.running, 0.99 * self.slots)


def median_of(pods: Sequence[PodLoad]) -> PodLoad:
    """The pod in the middle, number by number; of two the lower, as the larger one could be a lie."""
    return PodLoad(
        _low_median(pod.running for pod in pods),
        _low_median(pod.waiting for pod in pods),
        _known_median(pod.generated for pod in pods),
        _known_median(pod.prompts for pod in pods),
        _low_median(pod.requests for pod in pods),
        _known_median(pod.missed for pod in pods),
    )


def robust_total(numbers: Sequence[float]) -> float:
    """The sum over pods, in which no pod counts more than four times the one in the middle; of less than three, all."""
    if len(numbers) < 3:
        return sum(numbers)
    limit = _OUTLIER * statistics.median(numbers)
    return sum(min(number, limit) for number in numbers) if limit > 0 else sum(sorted(numbers)[:-1])


def _low_median(numbers: Iterable[float]) -> float:
    return statistics.median_low(list(numbers))


def _known_median(numbers: Iterable[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return statistics.median_low(known) if known else None
