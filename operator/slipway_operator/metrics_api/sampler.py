"""Scrapes the load of pods and gateways every few seconds, and keeps the last minute of it in memory."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

import aiohttp

from slipway_contracts.route_table import Traffic
from slipway_operator.api.objects import ObjectKey
from slipway_operator.api.v1alpha1.status import SleepState, Status
from slipway_operator.component import Component, ReconciledDeployment
from slipway_operator.kube.errors import ApiError
from slipway_operator.kube.reading.gateways import Answer
from slipway_operator.metrics_api import exposition
from slipway_operator.metrics_api.exposition import ExposedSample
from slipway_operator.metrics_api.series import PERIOD_S, Followed, PodTarget, Series
from slipway_operator.model import labels
from slipway_operator.model.cluster.observed import MetricsPage, Observed
from slipway_operator.model.cluster.plan import Plan
from slipway_operator.model.engine_types import VLLM, EngineMetrics, metrics_of
from slipway_operator.model.in_turns import in_turns
from slipway_operator.turns import Turns
from slipway_process.network.guarded import read_body
from slipway_process.network.host_names import host_name, pod_zone

PORT = 8000  # of the server: docs/contracts.md
TIMEOUT_S = 2.0
CONCURRENCY = 64
LARGEST_BYTES = 2 << 20
# How long pods without an autoscaler are scraped after a client read their metrics.
IN_USE_S = 120.0

State = tuple[tuple[str, bool, tuple[tuple[str, str], ...]], ...]  # (pod, unreadable, missing metrics)

log = logging.getLogger(__name__)


class Answers(Protocol):
    """The gateways, as `kube.reading.gateways.Gateways` polls them."""

    async def answers(self) -> Sequence[Answer]:
        """Return the report of each gateway."""


def followed(obj: dict[str, Any], status: Status, observed: Observed) -> Followed:
    """Return what the sampler needs of a ModelDeployment after a reconcile."""
    stable = status.stable_revision
    beside = labels.baseline_of(stable) if stable else None  # these pods serve clients too
    live = [name for name in (stable, status.canary_revision, beside) if name] or [
        item.revision for item in status.revisions
    ]
    pods = tuple(
        PodTarget(pod.name, pod.address, name, _metrics(observed, name), _host(obj, observed, name, pod.address))
        for name in live
        for pod in (observed.workloads[name].pods if name in observed.workloads else ())
        if pod.ready and pod.address
    )
    scaled = "autoscaling" in obj["spec"] or bool(observed.autoscalers)
    sleeps = status.sleep is not None and status.sleep.state in (SleepState.ASLEEP, SleepState.WAKING)
    copies = _serve_copies(status.traffic) if status.traffic else ()
    uid, objectives = obj["metadata"]["uid"], _objectives(obj, status)
    return Followed(uid, pods, status.replicas, scaled, sleeps, tuple(live), copies, objectives)


def _objectives(obj: dict[str, Any], status: Status) -> tuple[str, ...]:
    """Return the keys of what gateways count for spec.autoscaling.objective; empty without one."""
    levels = status.traffic.slo if status.traffic else None
    wanted = "objective" in (obj["spec"].get("autoscaling") or {})
    return tuple(levels.by_key()) if levels and wanted else ()


def _serve_copies(traffic: Traffic) -> tuple[str, ...]:
    """Return the revisions of a twin shadow that have no weight: their pods serve only copies, no clients."""
    shadow = traffic.twin_shadow
    sides = (shadow.revision, labels.baseline_of(shadow.twin)) if shadow else ()
    return tuple(name for name in sides if not traffic.weight(name))


def _host(obj: dict[str, Any], observed: Observed, revision: str, address: str) -> str:
    """Return the host name in the certificate of a pod with TLS; empty for a pod without TLS."""
    snapshot = observed.snapshots.get(labels.what_runs(revision))
    if snapshot is None or not snapshot.tls:
        return ""
    try:
        return host_name(address, pod_zone(obj["metadata"]["namespace"]))
    except ValueError:  # the podIP is no IP address, so no kubelet wrote it
        return ""


def _metrics(observed: Observed, revision: str) -> EngineMetrics:
    snapshot = observed.snapshots.get(labels.what_runs(revision))
    return metrics_of(snapshot.inputs.engine) if snapshot else VLLM


def _ignore(key: ObjectKey) -> None:
    """Do nothing: the default when no caller needs changes of the pages' state."""


class MetricsSampler(Component):
    """The series of every ModelDeployment. It scrapes the pods whose numbers are in use, and up to `beside` others.

    `changed` gets each autoscaled ModelDeployment of which the readable pages, or their missing metrics, changed.
    """

    task = "sampler"

    def __init__(
        self,
        gateways: Answers,
        session: aiohttp.ClientSession,
        clock: Callable[[], float] = time.monotonic,
        *,
        beside: int = 0,
        changed: Callable[[ObjectKey], None] = _ignore,
    ) -> None:
        self._gateways, self._session, self.clock = gateways, session, clock
        self._beside, self._changed = beside, changed
        self._states: dict[ObjectKey, State] = {}
        self._series: dict[ObjectKey, Series] = {}
        self._read_at: dict[ObjectKey, float] = {}
        self._turns = Turns(CONCURRENCY)
        self._parsing = asyncio.Lock()  # one page at a time: others run between two of them
        self._new: set[ObjectKey] = set()  # ModelDeployments with pods that were not scraped yet
        self._wanted_now = asyncio.Event()

    def observe(self, deployment: ReconciledDeployment, observed: Observed) -> Observed:
        """Return the observed state with the pages of its pods."""
        return replace(observed, pages=self.pages(deployment.key))

    def after(self, deployment: ReconciledDeployment, observed: Observed, planned: Plan, now: datetime) -> None:
        """Follow the pods that serve now."""
        self.follow(deployment.key, followed(deployment.obj, planned.status, observed))

    def follow(self, key: ObjectKey, seen: Followed) -> None:
        """Store what a reconcile observed; new pods are scraped at once."""
        series = self._series.get(key)
        if series is None or series.followed.uid != seen.uid:
            self._series[key], new = Series(seen, self.clock()), True
        else:
            new = series.follow(seen, self.clock())
        if new and self._is_wanted(key):
            self._want(key)

    def forget(self, key: ObjectKey) -> None:
        """Drop a ModelDeployment that is gone."""
        for memory in (self._series, self._read_at, self._states):
            memory.pop(key, None)
        self._new.discard(key)

    def series(self, key: ObjectKey) -> Series | None:
        """Return the series of a ModelDeployment, which counts as in use now; None when there is no such object."""
        found = self._series.get(key)
        if found and not self._is_wanted(key):
            self._want(key)
        if found:
            self._read_at[key] = self.clock()
        return found

    def peek(self, key: ObjectKey) -> Series | None:
        """Return the series of a ModelDeployment for reading its pods, which does not count as use."""
        return self._series.get(key)

    def every(self) -> Iterator[tuple[ObjectKey, Series]]:
        """Yield the series of every ModelDeployment, which does not count as use."""
        yield from sorted(self._series.items(), key=lambda item: item[0])

    def known(self, namespace: str = "") -> list[ObjectKey]:
        """Return the ModelDeployments of a namespace, or of all namespaces when it is empty."""
        return sorted(key for key in self._series if namespace in ("", key[0]))

    async def run(self) -> None:
        """Sample every PERIOD_S, and new pods at once, until cancelled."""
        due = self.clock()
        while True:
            await self._pause(due - self.clock())
            if self.clock() >= due:
                due = self.clock() + PERIOD_S
                self._new.clear()
                await self.sample(self.wanted())
            else:
                keys, self._new = sorted(self._new), set()
                await self.sample(keys)

    async def sample(self, keys: Sequence[ObjectKey]) -> None:
        """Poll the gateways once and scrape the pods of these ModelDeployments, for PERIOD_S at most.

        Pods that hang would delay the readings of all others. Those that were not reached are first the next time.
        """
        if not keys:
            return
        await self._poll_gateways(keys)
        pods = [(key, pod) for key in keys if key in self._series for pod in self._series[key].followed.pods]
        pods.sort(key=lambda item: self._series[item[0]].polled_at(item[1].name))
        await _for_a_period([self._scrape_pod(key, pod) for key, pod in pods])
        for key in keys:
            self._report(key)

    def wanted(self) -> list[ObjectKey]:
        """Return the ModelDeployments to sample: those in use, and as many others as `beside` pods allow.

        Others are taken in the order of their names, the first of each namespace, then the second of each: so they are
        the same ones each time, and not all of one namespace.
        """
        used = [key for key in self._series if self._is_wanted(key)]
        others, left = [], self._beside
        for key in in_turns(sorted(self._series.keys() - set(used)), lambda key: key[0]):
            if (pods := len(self._series[key].followed.pods)) <= left:
                left -= pods
                others.append(key)
        return [*used, *others]

    def pages(self, key: ObjectKey) -> tuple[MetricsPage, ...]:
        """Return for each pod whether its page of metrics is readable, and what it lacks."""
        series = self._series.get(key)
        return series.pages(self.clock()) if series else ()

    def _report(self, key: ObjectKey) -> None:
        """Call `changed` if an autoscaler needs the pages and their state changed, beyond the texts of problems."""
        if key not in self._series or not self._series[key].followed.scaled:
            return
        state = tuple((page.pod, bool(page.problem), page.missing) for page in self.pages(key))
        if self._states.get(key, ()) != state:
            self._states[key] = state
            self._changed(key)

    async def _pause(self, seconds: float) -> None:
        self._wanted_now.clear()
        if self._new or seconds <= 0:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._wanted_now.wait()
        except TimeoutError:
            return

    def _is_wanted(self, key: ObjectKey) -> bool:
        in_use = self.clock() - self._read_at.get(key, float("-inf")) < IN_USE_S
        return in_use or self._series[key].followed.scaled

    def _want(self, key: ObjectKey) -> None:
        self._new.add(key)
        self._wanted_now.set()

    async def _poll_gateways(self, keys: Sequence[ObjectKey]) -> None:
        try:
            answers: Sequence[Answer] = await self._gateways.answers()
            problem = ""
        except ApiError as error:
            answers, problem = (), f"the gateways cannot be found: {error}"
        now = self.clock()
        for key in keys:
            if series := self._series.get(key):
                uid = series.followed.uid
                held = sum(answer.held(*key, uid) for answer in answers if not answer.gone)
                series.add_gateways(problem or inflight(answers, key, uid), now, held)
                if series.followed.objectives:
                    parts = (answer.about(*key, uid) for answer in answers if answer.reachable)
                    series.add_outcomes({part.incarnation: part.objectives for part in parts}, now)

    async def _scrape_pod(self, key: ObjectKey, pod: PodTarget) -> None:
        async with self._turns.turn(key[0]):
            if series := self._series.get(key):
                series.polls(pod.name, self.clock())
            reading = await self._read(pod)
        if series := self._series.get(key):
            series.add_reading(pod.name, reading, self.clock())

    async def _read(self, pod: PodTarget) -> ExposedSample | str:
        path = pod.metrics.path
        host = f"[{pod.address}]" if ":" in pod.address else pod.address
        origin = f"https://{pod.host}:{PORT}" if pod.host else f"http://{host}:{PORT}"
        limit = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            # A redirect could count another host's page as this pod's; our servers do not redirect.
            async with self._session.get(f"{origin}{path}", timeout=limit, allow_redirects=False) as response:
                if response.status != 200:
                    return f"{path} answers {response.status}"
                page = await read_body(response, LARGEST_BYTES)
            if len(page) > LARGEST_BYTES:
                return f"{path} has more than {LARGEST_BYTES} bytes"
            async with self._parsing:
                return exposition.parse(page.decode(errors="replace"), pod.metrics)
        except exposition.Malformed as error:
            return f"{path}: {error}"
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return f"{path} cannot be read: {type(error).__name__}: {error}".rstrip(": ")


def inflight(answers: Sequence[Answer], key: ObjectKey, uid: str) -> int | str:
    """Return the number of requests in progress over all gateways, also terminating ones; or why it is unknown.

    Requests of a gateway that died do not count: its clients repeat them through another gateway.
    """
    present = [answer for answer in answers if not answer.gone]
    if not any(answer.ready for answer in present):
        return "no gateway is ready"
    silent = [answer.name for answer in present if answer.ready and not answer.reachable]
    if silent:
        return f"gateway {silent[0]} does not answer"
    counts = [count for answer in present if (count := answer.inflight(*key, uid)) is not None]
    return sum(counts) if counts else "no gateway has a route to it yet"


async def _for_a_period(calls: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all calls for at most PERIOD_S; those that have not ended by then are cancelled."""
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        done = (await asyncio.wait(tasks, timeout=PERIOD_S))[0] if tasks else set()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()  # raises what a bug raised
