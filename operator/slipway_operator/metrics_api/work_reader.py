"""What the pods of both revisions did in the last minute, and their prices: for analyses that compare costs."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from slipway_operator.api.objects import ObjectKey
from slipway_operator.component import Component, ReconciledDeployment
from slipway_operator.metrics_api.pod_loads import load_of
from slipway_operator.metrics_api.sampler import MetricsSampler
from slipway_operator.metrics_api.series import PERIOD_S, Series
from slipway_operator.model import labels
from slipway_operator.model.cluster.cost import cost_per_hour
from slipway_operator.model.cluster.observed import Gateway, Observed, RevisionWork
from slipway_operator.scaling_model.capacity_model import PodLoad

SPAN_S = 60.0  # of the numbers
LEAST_S = 40.0  # of readings before numbers are known
MOST_READINGS = 64  # of gateways, by ModelDeployment: one each second and a little more
E2E = "e2e"  # kind of latency: until the end of the response
MOST_SIDES = 8  # revisions with pods

Counter = tuple[str, int]  # gateway process, generation
Latencies = tuple[int, float]  # how many were measured, and their sum in seconds


@dataclass(frozen=True, slots=True)
class GatewayReading:
    """What all gateways have counted at one moment, by revision."""

    at: float
    ended: Mapping[str, Mapping[Counter, int]]
    latencies: Mapping[str, Mapping[Counter, Latencies]]


class WorkReader(Component):
    """Observes the work of revisions while a template of their ModelDeployment compares costs. `sampler`: may be None.

    What pods generated is read from their pages; requests are those that gateways counted, so classic models need no
    page.
    """

    def __init__(
        self,
        sampler: MetricsSampler | None,
        prices: Mapping[str, float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sampler, self._prices, self._clock = sampler, prices, clock
        self._read: dict[ObjectKey, tuple[str, deque[GatewayReading]]] = {}

    def observe(self, deployment: ReconciledDeployment, observed: Observed) -> Observed:
        """Return the observed state with the work of each revision that has ready pods."""
        key, uid = deployment.key, deployment.obj["metadata"]["uid"]
        if not any(found.spec and found.spec.cost for found in observed.templates.values()):
            self.forget(key)
            return observed
        former = self._read.get(key)
        readings = former[1] if former and former[0] == uid else deque[GatewayReading](maxlen=MOST_READINGS)
        self._read[key] = (uid, readings)
        now = self._clock()
        if not readings or now - readings[-1].at >= 1.0:
            readings.append(gateway_reading(observed.gateways, now))
        series = self._sampler.series(key) if self._sampler else None  # it counts as in use, so its pods are read
        series = series if series and series.followed.uid == uid else None
        ready = sorted(name for name, workload in observed.workloads.items() if workload.ready)[:MOST_SIDES]
        return replace(observed, work={name: self._work(name, observed, series, readings, now) for name in ready})

    def forget(self, key: ObjectKey) -> None:
        """Drop a ModelDeployment that is gone, or whose analyses compare no costs."""
        self._read.pop(key, None)

    def _work(
        self, revision: str, observed: Observed, series: Series | None, readings: deque[GatewayReading], now: float
    ) -> RevisionWork:
        pods, price = observed.ready(revision), self._price(revision, observed)
        if price is None:
            return RevisionWork(pods, SPAN_S, problem=_unpriced(revision, observed))
        work = of_gateways(revision, [one for one in readings if now - one.at <= SPAN_S], pods)
        work = replace(work, price=price)
        if self._sampler is None or series is None:
            return work
        pages, silent = series.readings(revision, SPAN_S + PERIOD_S / 2, self._sampler.clock())
        whole = [page for page in pages if page[-1][0] - page[0][0] >= LEAST_S]
        if silent:
            return replace(work, problem="the metrics of a pod cannot be read")
        if len(whole) < pods:
            return replace(work, problem="its pods were not read for a minute yet")
        loads = [load_of(page, None) for page in whole]
        return replace(work, running=sum(load.running for load in loads), tokens=_tokens(loads, work.seconds))

    def _price(self, revision: str, observed: Observed) -> float | None:
        snapshot = observed.snapshots.get(labels.what_runs(revision))
        if snapshot is None:
            return None
        return cost_per_hour(snapshot.inputs.resources, snapshot.inputs.engine.parallelism.nodes, self._prices)


def gateway_reading(gateways: tuple[Gateway, ...], now: float) -> GatewayReading:
    """Return what gateways have counted of each revision, whichever generation assigned the requests."""
    ended: dict[str, dict[Counter, int]] = {}
    latencies: dict[str, dict[Counter, Latencies]] = {}
    for gateway in gateways:
        for sample in gateway.samples:
            counter = gateway.incarnation, sample.generation
            for name, side in sample.revisions.items():
                ended.setdefault(name, {})[counter] = side.requests
                strata = side.slow.get(E2E, {}).values()
                latencies.setdefault(name, {})[counter] = _latencies(strata, gateway.bounds.get(E2E, ()))
    return GatewayReading(now, ended, latencies)


def of_gateways(revision: str, readings: list[GatewayReading], pods: int) -> RevisionWork:
    """Return the requests of a revision that ended between the first and the last reading, and the mean in progress.

    That mean is their rate by their mean latency (Little's law): looking now and then would miss short requests. A
    counter that a reading lacks, as that of a process that has just started, grows from its next reading on.
    """
    seconds = readings[-1].at - readings[0].at if readings else 0.0
    if seconds < LEAST_S:
        return RevisionWork(pods, seconds, problem="gateways were not read for a minute yet")
    grown, measured, total = 0, 0, 0.0
    for before, after in pairwise(readings):
        then, now = (one.ended.get(revision, {}) for one in (before, after))
        grown += sum(max(0, count - then.get(counter, count)) for counter, count in now.items())
        earlier, later = (one.latencies.get(revision, {}) for one in (before, after))
        for counter, (count, sum_s) in later.items():
            known = earlier.get(counter, (count, sum_s))
            if count > known[0]:
                measured, total = measured + count - known[0], total + sum_s - known[1]
    progress = grown / seconds * max(0.0, total) / measured if measured else None
    return RevisionWork(pods, seconds, in_progress=progress, predictions=float(grown))


def _latencies(strata: Iterable[Sequence[int]], bounds: Sequence[float]) -> Latencies:
    """Return how many latencies histograms have, and their sum, each as in the middle of its bucket."""
    number, total = 0, 0.0
    for counts in strata:
        for place, count in enumerate(counts):
            low = bounds[place - 1] if place else 0.0
            high = bounds[place] if place < len(bounds) else low
            number, total = number + count, total + count * (low + high) / 2
    return number, total


def _tokens(loads: list[PodLoad], seconds: float) -> float | None:
    """Return the tokens that all pods generated in so many seconds; None where one of them exports no number."""
    rates = [load.generated for load in loads]
    return sum(rate * seconds for rate in rates if rate is not None) if None not in rates else None


def _unpriced(revision: str, observed: Observed) -> str:
    snapshot = observed.snapshots.get(labels.what_runs(revision))
    if snapshot is None:
        return "its record is missing"
    device = snapshot.inputs.resources.accelerator
    name = device[0] if device else "cpu or memory"
    return f"no price of {name}: set `pricing` of the chart (--prices of the operator)"
