"""The last minute of one ModelDeployment's demand, and the numbers that autoscalers read from it; pure.

A number is computed from fresh readings only. Without any it is `Unknown`, never zero: an autoscaler that read missing
data as no load would remove pods while requests wait. Times are seconds of one monotonic clock.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from slipway_contracts.service_levels import Counted
from slipway_operator.metrics_api.exposition import Buckets, ExposedSample
from slipway_operator.metrics_api.outcomes import OutcomeCounts
from slipway_operator.model.cluster.observed import MetricsPage
from slipway_operator.model.engine_types import VLLM, EngineMetrics
from slipway_operator.model.text import printable

PERIOD_S = 10.0  # between two readings of a pod
WINDOW_S = 60.0  # rates and percentiles are of this time
STALE_S = 30.0  # older readings do not count: three in a row failed
COUNTED = ("tokens", "prompt_tokens")
PROBLEM_LIMIT = 256  # characters of a problem in a status; the text may quote a pod's answer
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
    host: str = ""  # host name in its certificate; empty: it has no TLS


@dataclass(frozen=True, slots=True)
class Followed:
    """What is known of a ModelDeployment from its last reconcile."""

    uid: str
    pods: tuple[PodTarget, ...]
    replicas: int  # status.replicas, which autoscalers divide by
    scaled: bool  # an autoscaler reads its metrics
    asleep: bool = False  # asleep, or waking: it has no pods, or none yet
    live: tuple[str, ...] = ()  # its live revisions, also those without a ready pod
    copies: tuple[
        str, ...
    ] = ()  # revisions of a twin shadow: their pods serve only copies and probes, which are no demand
    objectives: tuple[str, ...] = ()  # keys of spec.slo that are counted for spec.autoscaling.objective


@dataclass(frozen=True, slots=True)
class Number:
    """One value of a series."""

    value: float
    at: float  # when the oldest reading in it was taken
    window_s: int | None = None  # seconds that a rate or percentile covers; None: the value of one moment


Reading = tuple[float, ExposedSample]  # when it was taken


@dataclass(slots=True)
class _Memory:
    """The readings of one pod, oldest first, and its counters."""

    since: float  # when the pod was first seen
    revision: str
    counts: dict[str, float] = field(default_factory=dict)  # the last reading of each counter
    polled: bool = False
    polled_at: float = float("-inf")
    readings: deque[Reading] = field(default_factory=lambda: deque(maxlen=_KEPT))
    problem: str = "it was not polled yet"


class Series:
    """The readings and values of one ModelDeployment."""

    def __init__(self, followed: Followed, now: float) -> None:
        self.followed = followed
        self._pods: dict[str, _Memory] = {}
        self._counted: dict[str, dict[str, float]] = {}  # by revision and counter: growth over all its pods
        self._inflight: tuple[float, int] | None = None
        self._held: tuple[float, int] = (float("-inf"), 0)
        self._inflight_problem = "the gateways were not polled yet"
        self._outcomes = OutcomeCounts(WINDOW_S)
        self._desired: tuple[float, int] | None = None
        self.follow(followed, now)

    def follow(self, followed: Followed, now: float) -> bool:
        """Store what a reconcile observed; returns True when there are new pods, which have no reading yet."""
        self.followed = followed
        present = {pod.name for pod in followed.pods}
        new = present - self._pods.keys()
        self._pods = {name: memory for name, memory in self._pods.items() if name in present}
        self._pods |= {pod.name: _Memory(now, pod.revision) for pod in followed.pods if pod.name in new}
        live = {*followed.live, *(pod.revision for pod in followed.pods)}
        self._counted = {revision: counts for revision, counts in self._counted.items() if revision in live}
        return bool(new)

    def polls(self, pod: str, now: float) -> None:
        """Note that a pod is polled now."""
        if memory := self._pods.get(pod):
            memory.polled_at = now

    def polled_at(self, pod: str) -> float:
        """Return when a pod was polled last, whatever it answered; minus infinity for one that never was."""
        memory = self._pods.get(pod)
        return memory.polled_at if memory else float("-inf")

    def add_reading(self, pod: str, reading: ExposedSample | str, now: float) -> None:
        """Store a pod's reading, or the text why there is none; ignored for a pod that is no longer followed."""
        if memory := self._pods.get(pod):
            memory.polled = True
            if isinstance(reading, str):
                memory.problem = reading
            else:
                memory.readings.append((now, reading))
                memory.problem = f"a rate needs two readings, {PERIOD_S:g} s apart"
                self._count(memory, reading)

    def _count(self, memory: _Memory, reading: ExposedSample) -> None:
        """Add the growth of the pod's counters since its former reading; the first reading adds nothing.

        So a pod that the operator follows late, or again after a restart of the operator, adds no jump.
        """
        for name in COUNTED:
            after: float | None = getattr(reading, name)
            if after is None:
                continue
            before = memory.counts.get(name, after)
            totals = self._counted.setdefault(memory.revision, {})
            totals[name] = totals.get(name, 0.0) + counter_growth(before, after)
            memory.counts[name] = after

    def add_gateways(self, inflight: int | str, now: float, held: int = 0) -> None:
        """Store the requests in progress over all gateways, or why they are unknown. `held`: those that wait there."""
        if isinstance(inflight, str):
            self._inflight_problem = inflight
        else:
            self._inflight = (now, inflight)
            self._held = (now, held)

    def add_outcomes(self, reported: Mapping[str, Mapping[str, Counted]], now: float) -> None:
        """Store what each gateway process has counted of the objectives since its start."""
        self._outcomes.add(reported, self.followed.objectives, now)

    def outcomes(self, seconds: float, now: float) -> tuple[float, dict[str, Counted]]:
        """Return how many seconds are counted, at most so many, and requests and misses in them by objective."""
        return self._outcomes.within(seconds, now)

    def publish(self, desired: int | None, now: float) -> None:
        """Store the number of pods that spec.autoscaling.objective needs; None: it publishes none."""
        self._desired = None if desired is None else (now, desired)

    def desired_replicas(self, now: float) -> Number:
        """Return that number; raises Unknown without a fresh one."""
        if self._desired is None or now - self._desired[0] > STALE_S:
            raise Unknown("spec.autoscaling.objective with mode Act has decided nothing in the last seconds")
        return Number(self._desired[1], self._desired[0])

    def readings(self, revision: str, seconds: float, now: float) -> tuple[list[list[Reading]], int]:
        """Return the readings of so many seconds for each pod of a revision, and the number of pods that lack them.

        A pod has them with two at least, the last of them fresh. One that is newer than STALE_S does not count as
        lacking.
        """
        pods, silent = [], 0
        for memory in self._pods.values():
            if memory.revision != revision:
                continue
            within = [reading for reading in memory.readings if now - reading[0] <= seconds]
            if len(within) > 1 and now - within[-1][0] <= STALE_S:
                pods.append(within)
            else:
                silent += now - memory.since > STALE_S
        return pods, silent

    def pages(self, now: float) -> tuple[MetricsPage, ...]:
        """Return the state of each pod's page of metrics; a pod whose first page is still awaited is left out."""
        return tuple(page for name in sorted(self._pods) if (page := _page(name, self._pods[name], now)))

    def counted(self, revision: str, counter: str) -> float | None:
        """Return the growth of a counter over a revision's pods since the operator follows it; None while unknown."""
        return self._counted.get(revision, {}).get(counter)

    # --- values of the whole ModelDeployment --------------------------------------------------------------------------

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
        """Return the number of requests that gateways have in progress at pods; raises Unknown if it is not fresh."""
        if self._inflight is None or now - self._inflight[0] > STALE_S:
            raise Unknown(self._inflight_problem)
        return Number(self._inflight[1], self._inflight[0])

    def total(self, of_pod: "OfPod", now: float) -> Number:
        """Return the sum over pods that serve clients. Pods without a fresh value count as the mean, if half have one.

        Without a fresh value, a pod that is newer than STALE_S counts as zero.
        """
        if self._sleeps:
            return Number(0.0, self.inflight(now).at)
        return _total_of(*_known(self._serving, of_pod, now))

    def of_revision(self, metric: str, revision: str, now: float) -> Number:
        """Return the sum of a metric over the pods of one revision; for the KV cache, the mean of the shares.

        Raises:
            KeyError: when there is no such metric.
            Unknown: when there is no fresh value.
        """
        pods = {name: memory for name, memory in self._pods.items() if memory.revision == revision}
        known, silent = _known(pods, OF_POD[metric], now)
        total = _total_of(known, silent)
        shared = metric == KV_CACHE_USAGE
        return Number(total.value / (len(known) + silent), total.at) if shared else total

    def ttft_of_revision(self, revision: str, now: float) -> Number:
        """Return the 95th percentile of the seconds to the first token over the pods of one revision.

        Raises:
            Unknown: when no fresh page has it, or no request had its first token.
        """
        pods = {name: memory for name, memory in self._pods.items() if memory.revision == revision}
        known, _ = _known(pods, _gauge(lambda reading: float(bool(_value(reading, "ttft")))), now)
        return _percentile([pods[name] for name in known], min(number.at for number in known.values()), now)

    def held(self, now: float) -> int:
        """Return the number of requests that wait at gateways; 0 while their report is not fresh."""
        return self._held[1] if now - self._held[0] <= STALE_S else 0

    def queue_depth(self, now: float) -> Number:
        """Return the number of requests that wait: in the pods, and at gateways if their report is fresh."""
        number = self.total(OF_POD[QUEUE_DEPTH], now)
        return Number(number.value + self.held(now), number.at)

    @property
    def _serving(self) -> dict[str, _Memory]:
        """The pods that serve clients."""
        return {name: one for name, one in self._pods.items() if one.revision not in self.followed.copies}

    @property
    def _sleeps(self) -> bool:
        """Whether the ModelDeployment sleeps and has no pods: then all waiting requests are at gateways."""
        return self.followed.asleep and not self._pods

    def ttft_p95(self, now: float) -> Number:
        """Return the 95th percentile of the seconds to the first token; 0 only when there is no request at all."""
        if self._sleeps and self.queue_depth(now).value == 0:
            return Number(0.0, self.inflight(now).at, int(WINDOW_S))
        known, _ = _known(self._serving, _latest, now)
        grown = _added(_growth(self._pods[name], now) for name in known)
        at = min(number.at for number in known.values())
        if grown and grown[-1][1] > 0:
            return Number(quantile(0.95, grown), at, int(WINDOW_S))
        busy = sum(number.value for number in known.values())
        if busy > 0:
            raise Unknown(f"{busy:g} requests are in the pods and none had its first token in the last {WINDOW_S:g} s")
        return Number(0.0, at, int(WINDOW_S))


OfPod = Callable[[_Memory, float], Number]


def _known(pods: Mapping[str, _Memory], of_pod: OfPod, now: float) -> tuple[dict[str, Number], int]:
    """Return the fresh numbers by pod, and how many pods older than STALE_S have none.

    Raises:
        Unknown: when more such pods than fresh numbers exist, or no fresh number.
    """
    found: dict[str, Number] = {}
    problems: dict[str, str] = {}
    for name, memory in pods.items():
        try:
            found[name] = of_pod(memory, now)
        except Unknown as error:
            problems[name] = str(error)
    if not pods:
        raise Unknown("no pod is ready")
    silent = sum(now - pods[name].since > STALE_S for name in problems)
    if len(found) < max(1, silent):
        name, problem = next(iter(problems.items()))
        raise Unknown(f"{len(found)} of {len(pods)} pods have fresh numbers; pod {name}: {problem}")
    return found, silent


def _total_of(known: Mapping[str, Number], silent: int) -> Number:
    """Return the sum of the known numbers plus their mean for each of the `silent` pods."""
    mean = sum(number.value for number in known.values()) / len(known)
    window = next(iter(known.values())).window_s
    return Number(mean * (len(known) + silent), min(number.at for number in known.values()), window)


def _page(name: str, memory: _Memory, now: float) -> MetricsPage | None:
    if memory.readings and now - memory.readings[-1][0] <= STALE_S:
        return MetricsPage(name, memory.revision, missing=memory.readings[-1][1].missing)
    if not memory.polled or now - memory.since <= STALE_S:
        return None
    return MetricsPage(name, memory.revision, printable(memory.problem[:PROBLEM_LIMIT]))


def _fresh(memory: _Memory, now: float) -> tuple[float, ExposedSample]:
    if not memory.readings or now - memory.readings[-1][0] > STALE_S:
        raise Unknown(memory.problem)
    return memory.readings[-1]


def _first(memory: _Memory, now: float) -> tuple[float, ExposedSample]:
    """Return the oldest reading within the window."""
    return next(item for item in memory.readings if now - item[0] <= WINDOW_S)


def _value(reading: ExposedSample, metric: str) -> Any:
    """Return the value of a field of a reading; raises Unknown if the page lacks it."""
    value = getattr(reading, metric)
    if value is None:
        name = reading.missing_name(metric)
        raise Unknown(f"{name} is missing" if name else "its engine does not export this metric")
    return value


def _gauge(read: Callable[[ExposedSample], float]) -> OfPod:
    def number(memory: _Memory, now: float) -> Number:
        at, reading = _fresh(memory, now)
        return Number(read(reading), at)

    return number


def _gauge_of(metric: str) -> OfPod:
    return _gauge(lambda reading: float(_value(reading, metric)))


_latest = _gauge(lambda reading: float(_value(reading, "waiting") + _value(reading, "running")))


def counter_growth(before: float, after: float) -> float:
    """Return the growth of a counter. If it fell, the process restarted, and its whole value is growth."""
    return after - before if after >= before else after


def _tokens_per_second(memory: _Memory, now: float) -> Number:
    """Return generated tokens per second between the oldest and the newest reading of the window."""
    at, latest = _fresh(memory, now)
    _value(latest, "tokens")
    window = [(moment, reading.tokens) for moment, reading in memory.readings if now - moment <= WINDOW_S]
    within = [(moment, tokens) for moment, tokens in window if tokens is not None]
    seconds = at - within[0][0]
    if seconds <= 0:
        raise Unknown(memory.problem)
    grown = sum(counter_growth(before, after) for (_, before), (_, after) in pairwise(within))
    return Number(grown / seconds, at, int(WINDOW_S))


def _growth(memory: _Memory, now: float) -> Buckets:
    """Return the cumulative counts of first tokens within the window, by upper bound in seconds."""
    newest = dict(_value(_fresh(memory, now)[1], "ttft"))
    oldest = dict(_first(memory, now)[1].ttft or ())
    restarted = any(count < oldest.get(bound, 0.0) for bound, count in newest.items())
    return tuple((bound, count - (0.0 if restarted else oldest.get(bound, 0.0))) for bound, count in newest.items())


def _added(growths: Iterable[Buckets]) -> Buckets:
    """Return the sum of cumulative histograms, also if engines have different bounds."""
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
    return _percentile([memory], _fresh(memory, now)[0], now)


def _percentile(memories: Iterable[_Memory], at: float, now: float) -> Number:
    grown = _added(_growth(memory, now) for memory in memories)
    if not grown or grown[-1][1] <= 0:
        raise Unknown(f"no request had its first token in the last {WINDOW_S:g} s")
    return Number(quantile(0.95, grown), at, int(WINDOW_S))


def _replica_seconds(series: Series, now: float) -> Number:
    """Return the percentile times status.replicas, because an autoscaler divides an AverageValue by the replicas.

    So it compares the percentile itself with the target, however many pods a rollout has added.
    """
    number = series.ttft_p95(now)
    return Number(number.value * max(1, series.followed.replicas), number.at, number.window_s)


QUEUE_DEPTH, RUNNING, KV_CACHE_USAGE = "slipway_queue_depth", "slipway_requests_running", "slipway_kv_cache_usage"
OF_POD: Mapping[str, OfPod] = {
    QUEUE_DEPTH: _gauge_of("waiting"),
    RUNNING: _gauge_of("running"),
    "slipway_tokens_per_second": _tokens_per_second,
    KV_CACHE_USAGE: _gauge_of("kv_usage"),
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
    "slipway_desired_replicas": Series.desired_replicas,
}
