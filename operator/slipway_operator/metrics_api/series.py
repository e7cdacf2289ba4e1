"""The last minute of one ModelDeployment's demand, and the numbers that autoscalers read from it; pure.

A number is computed from fresh readings only. Without any it is `Unknown`, never zero: an autoscaler that read missing
data as no load would remove pods while requests wait. Times are seconds of one monotonic clock.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from slipway_operator.metrics_api.exposition import Buckets, ExposedSample
from slipway_operator.model.engine_types import VLLM, EngineMetrics

PERIOD_S = 10.0  # between two readings of a pod
WINDOW_S = 60.0  # over which rates and percentiles are taken
STALE_S = 30.0  # older readings do not count: three were missed
T = TypeVar("T")
_KEPT = int(WINDOW_S / PERIOD_S) + 2


class Unknown(Exception):
    """There is no fresh number; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class PodTarget:
    """A ready pod of a live revision."""

    name: str
    address: str
    revision: str
    metrics: EngineMetrics = VLLM


@dataclass(frozen=True, slots=True)
class Followed:
    """What is known of a ModelDeployment from its last reconcile."""

    uid: str
    pods: tuple[PodTarget, ...]
    replicas: int  # status.replicas, which autoscalers divide by
    scaled: bool  # an autoscaler reads it
    asleep: bool = False  # asleep, or waking: it has no pods, or none yet


@dataclass(frozen=True, slots=True)
class Number:
    """One value of a series."""

    value: float
    at: float  # when the oldest reading in it was taken
    window_s: int | None = None  # None: at one moment


@dataclass(slots=True)
class _Memory:
    """Reports of one pod, oldest first."""

    since: float  # when the pod was first seen
    readings: deque[tuple[float, ExposedSample]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    problem: str = "it was not polled yet"


class Series:
    """The readings and values of one ModelDeployment."""

    def __init__(self, followed: Followed, now: float) -> None:
        self.followed = followed
        self._pods: dict[str, _Memory] = {}
        self._inflight: tuple[float, int] | None = None
        self._held: tuple[float, int] = (float("-inf"), 0)
        self._inflight_problem = "the gateways were not polled yet"
        self.follow(followed, now)

    def follow(self, followed: Followed, now: float) -> bool:
        """Store what a reconcile observed; True when there is a pod without a report."""
        self.followed = followed
        present = {pod.name for pod in followed.pods}
        new = present - self._pods.keys()
        self._pods = {name: memory for name, memory in self._pods.items() if name in present}
        self._pods |= {name: _Memory(now) for name in new}
        return bool(new)

    def add_reading(self, pod: str, reading: ExposedSample | str, now: float) -> None:
        """Store a pod's reading, or as text why there is none; ignored for a pod that is no longer followed."""
        if memory := self._pods.get(pod):
            if isinstance(reading, str):
                memory.problem = reading
            else:
                memory.readings.append((now, reading))
                memory.problem = f"a rate needs two readings, {PERIOD_S:g} s apart"

    def add_gateways(self, inflight: int | str, now: float, held: int = 0) -> None:
        """Store requests in progress over all gateways, or as text why they are unknown; `held`: waiting there."""
        if isinstance(inflight, str):
            self._inflight_problem = inflight
        else:
            self._inflight = (now, inflight)
            self._held = (now, held)

    # --- of the whole -------------------------------------------------------------------------------------------------

    def number(self, metric: str, now: float) -> Number:
        """Return the value of a metric of the ModelDeployment.

        Raises:
            KeyError: when there is no such metric.
            Unknown: when there is no fresh value.
        """
        return OF_DEPLOYMENT[metric](self, now)

    def of_pod(self, metric: str, pod: str, now: float) -> Number:
        """Return the value of a metric of one pod.

        Raises:
            KeyError: when there is no such metric, or no such pod.
            Unknown: when there is no fresh value.
        """
        return OF_POD[metric](self._pods[pod], now)

    def inflight(self, now: float) -> Number:
        """Return the requests that gateways have in progress at the pods."""
        if self._inflight is None or now - self._inflight[0] > STALE_S:
            raise Unknown(self._inflight_problem)
        return Number(self._inflight[1], self._inflight[0])

    def total(self, of_pod: "OfPod", now: float) -> Number:
        """Return the sum over the pods. A pod without a fresh reading counts as their mean, while half have one.

        A pod that is newer than STALE_S and has no reading yet counts as zero.
        """
        if self._sleeps:
            return Number(0.0, self.inflight(now).at)
        known, silent = self._known(of_pod, now)
        mean = sum(number.value for number in known.values()) / len(known)
        window = next(iter(known.values())).window_s
        return Number(mean * (len(known) + silent), min(number.at for number in known.values()), window)

    def queue_depth(self, now: float) -> Number:
        """Return the waiting requests: in the pods, and at gateways for a pod. Of the latter only fresh ones count."""
        number = self.total(OF_POD[QUEUE_DEPTH], now)
        held = self._held[1] if now - self._held[0] <= STALE_S else 0
        return Number(number.value + held, number.at)

    @property
    def _sleeps(self) -> bool:
        """Whether it is asleep and has no pods: gateways then report all waiting requests."""
        return self.followed.asleep and not self._pods

    def ttft_p95(self, now: float) -> Number:
        """Return the 95th percentile of the seconds to the first token; 0 only without any request."""
        if self._sleeps and self.queue_depth(now).value == 0:
            return Number(0.0, self.inflight(now).at, int(WINDOW_S))
        known, _ = self._known(_latest, now)
        grown = _added(_growth(self._pods[name], now) for name in known)
        at = min(number.at for number in known.values())
        if grown and grown[-1][1] > 0:
            return Number(quantile(0.95, grown), at, int(WINDOW_S))
        busy = sum(number.value for number in known.values())
        if busy > 0:
            raise Unknown(f"{busy:g} requests are in the pods and none had its first token in the last {WINDOW_S:g} s")
        return Number(0.0, at, int(WINDOW_S))

    def _known(self, of_pod: "OfPod", now: float) -> tuple[dict[str, Number], int]:
        """Return the fresh numbers by pod, and how many pods older than STALE_S have none.

        Raises:
            Unknown: when there are more of those, or no number.
        """
        found: dict[str, Number] = {}
        problems: dict[str, str] = {}
        for name, memory in self._pods.items():
            try:
                found[name] = of_pod(memory, now)
            except Unknown as error:
                problems[name] = str(error)
        if not self._pods:
            raise Unknown("no pod is ready")
        silent = sum(now - self._pods[name].since > STALE_S for name in problems)
        if len(found) < max(1, silent):
            name, problem = next(iter(problems.items()))
            raise Unknown(f"{len(found)} of {len(self._pods)} pods have fresh numbers; pod {name}: {problem}")
        return found, silent


OfPod = Callable[[_Memory, float], Number]


def _fresh(memory: _Memory, now: float) -> tuple[float, ExposedSample]:
    if not memory.readings or now - memory.readings[-1][0] > STALE_S:
        raise Unknown(memory.problem)
    return memory.readings[-1]


def _first(memory: _Memory, now: float) -> tuple[float, ExposedSample]:
    """Return the oldest reading within the window."""
    return next(item for item in memory.readings if now - item[0] <= WINDOW_S)


def _exported(value: T | None) -> T:
    if value is None:
        raise Unknown("its engine does not export this metric")
    return value


def _gauge(read: Callable[[ExposedSample], float | None]) -> OfPod:
    def number(memory: _Memory, now: float) -> Number:
        at, reading = _fresh(memory, now)
        return Number(_exported(read(reading)), at)

    return number


_latest = _gauge(lambda reading: _exported(reading.waiting) + _exported(reading.running))


def _tokens_per_second(memory: _Memory, now: float) -> Number:
    """Return generated tokens per second between the oldest and the newest reading of the window."""
    at, latest = _fresh(memory, now)
    _exported(latest.tokens)
    seconds = at - _first(memory, now)[0]
    if seconds <= 0:
        raise Unknown(memory.problem)
    within = [_exported(reading.tokens) for moment, reading in memory.readings if now - moment <= WINDOW_S]
    # A count that fell belongs to a restarted process: all of it was generated since.
    grown = sum(after - before if after >= before else after for before, after in pairwise(within))
    return Number(grown / seconds, at, int(WINDOW_S))


def _growth(memory: _Memory, now: float) -> Buckets:
    """Return the first tokens of the window by upper bound, cumulative."""
    newest, oldest = (dict(_exported(at[1].ttft)) for at in (_fresh(memory, now), _first(memory, now)))
    restarted = any(count < oldest.get(bound, 0.0) for bound, count in newest.items())
    return tuple((bound, count - (0.0 if restarted else oldest.get(bound, 0.0))) for bound, count in newest.items())


def _added(growths: Iterable[Buckets]) -> Buckets:
    """Return the sum of cumulative counts, also of pods whose engines have other bounds."""
    every = [dict(growth) for growth in growths]
    bounds = sorted({bound for growth in every for bound in growth})
    return tuple((bound, sum(_up_to(bound, growth) for growth in every)) for bound in bounds)


def _up_to(bound: float, growth: Mapping[float, float]) -> float:
    return max((count for own, count in growth.items() if own <= bound), default=0.0)


def quantile(share: float, buckets: Buckets) -> float:
    """Return a quantile as PromQL's histogram_quantile does: linear within a bucket.

    Above the last finite bound the result is that bound.
    """
    rank, lower, below = share * buckets[-1][1], 0.0, 0.0
    for bound, count in buckets:
        if count >= rank and count > below:
            return lower if math.isinf(bound) else lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = (lower, below) if math.isinf(bound) else (bound, count)
    return lower


def _ttft_of_pod(memory: _Memory, now: float) -> Number:
    at, _ = _fresh(memory, now)
    grown = _growth(memory, now)
    if not grown or grown[-1][1] <= 0:
        raise Unknown(f"no request had its first token in the last {WINDOW_S:g} s")
    return Number(quantile(0.95, grown), at, int(WINDOW_S))


def _replica_seconds(series: Series, now: float) -> Number:
    """Return the percentile times status.replicas: an AverageValue is divided by the replicas, which restores it.

    So an autoscaler compares the percentile with its target, whatever pods a rollout has added.
    """
    number = series.ttft_p95(now)
    return Number(number.value * max(1, series.followed.replicas), number.at, number.window_s)


QUEUE_DEPTH = "slipway_queue_depth"
OF_POD: Mapping[str, OfPod] = {
    QUEUE_DEPTH: _gauge(lambda reading: reading.waiting),
    "slipway_requests_running": _gauge(lambda reading: reading.running),
    "slipway_tokens_per_second": _tokens_per_second,
    "slipway_kv_cache_usage": _gauge(lambda reading: reading.kv_usage),
    "slipway_ttft_p95_seconds": _ttft_of_pod,
}


def _total(metric: str) -> Callable[[Series, float], Number]:
    return lambda series, now: series.total(OF_POD[metric], now)


OF_DEPLOYMENT: Mapping[str, Callable[[Series, float], Number]] = {
    **{metric: _total(metric) for metric in OF_POD},
    QUEUE_DEPTH: Series.queue_depth,
    "slipway_in_flight": Series.inflight,
    "slipway_ttft_p95_seconds": Series.ttft_p95,
    "slipway_ttft_p95_replica_seconds": _replica_seconds,
}
