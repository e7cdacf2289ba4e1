"""What became of a ModelDeployment over time: every change from the API server, and the requests that waited.

with Timeline(chat) as timeline:
    began = timeline.now()
    grown = timeline.until(lambda moment: moment.wanted == 4, 60, "four replicas are wanted", since=began)
"""

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

from slipway_operator.manifests.autoscaler import CUSTOM
from slipway_operator.model import quantity
from slipway_operator.planning.sizing.canary import replicas_for
from testkit.cluster.api import KubeError
from testkit.cluster.deployment import Deployment, status_of
from testkit.cluster.diagnosis import diagnosis
from testkit.cluster.tools import tool

Json = dict[str, Any]

LOOK_S = 5.0  # between two looks at the queue: its value is up to 10 s old anyway


@dataclass(frozen=True, slots=True)
class Moment:
    """The ModelDeployment in an event of a watch. `at` is in seconds since the timeline began."""

    at: float
    wanted: int  # spec.replicas, which autoscalers write
    status: Json

    @property
    def revisions(self) -> list[Json]:
        """Those that have pods."""
        return list(self.status.get("revisions") or ())

    @property
    def ready(self) -> int:
        """Ready pods, over all revisions."""
        return sum(item["ready"] for item in self.revisions)

    @property
    def pods(self) -> int:
        """Pods that are wanted, over all revisions: with what a rollout adds."""
        return sum(item["replicas"] for item in self.revisions)

    @property
    def weights(self) -> dict[str, int]:
        """Revision → percent of new requests, of those that get any."""
        backends = (self.status.get("traffic") or {}).get("backends") or ()
        return {item["revision"]: item["weight"] for item in backends if item["weight"]}

    @property
    def attempt(self) -> tuple[str, int] | None:
        """Which revision is tried, for which time."""
        rollout = self.status.get("rollout")
        return (rollout["revision"], rollout["attempt"]) if rollout else None

    @property
    def step(self) -> int:
        """The step of the rollout, counted from 0."""
        return int((self.status.get("rollout") or {}).get("stepIndex", 0))

    def condition(self, kind: str) -> Json:
        return next((item for item in self.status.get("conditions") or () if item["type"] == kind), {})


class Timeline:
    """Watches from entering to leaving."""

    def __init__(self, chat: Deployment) -> None:
        self._chat = chat
        self._began = time.monotonic()
        self._changed = threading.Condition()
        self._moments: list[Moment] = []
        self._waiting: list[tuple[float, float]] = []
        self._leaving = threading.Event()
        self._watch: subprocess.Popen[str] | None = None
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        kube, place = self._chat.kube, ("-n", self._chat.namespace, "-o", "json", "--watch")
        command = [tool("kubectl"), "--kubeconfig", str(kube.kubeconfig), "get", "mdep", self._chat.name, *place]
        self._watch = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._follow, self._look_at_the_queue)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._watch and self._watch.stdout
        self._leaving.set()
        self._watch.terminate()
        for thread in self._threads:
            thread.join(30)
        self._watch.stdout.close()
        self._watch.wait(10)

    def now(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began

    def moments(self, since: float = 0.0) -> list[Moment]:
        """What came since then, with what held at that time as the first."""
        with self._changed:
            before = [item for item in self._moments if item.at <= since]
            return before[-1:] + [item for item in self._moments if item.at > since]

    def waiting(self) -> list[tuple[float, float]]:
        """(seconds, requests that wait in the pods) as the metrics API returned it, where it had a value."""
        return list(self._waiting)

    def until(
        self, holds: Callable[[Moment], bool], within_s: float, what: str, *, since: float | None = None
    ) -> Moment:
        """The first moment from `since` (or from now) on that holds, what holds already included.

        Raises:
            AssertionError: when none comes in time; its text has the state of the cluster.
        """
        since = self.now() if since is None else since
        with self._changed:
            found = self._changed.wait_for(lambda: self._first(holds, since), since + within_s - self.now())
        if found:
            return self._first(holds, since)  # type: ignore[return-value]
        found_state = diagnosis(self._chat.kube, self._chat.name, self._chat.namespace)
        raise AssertionError(f"waited for: {what}; not within {within_s:.0f} s\n{found_state}\n{self._autoscalers()}")

    def _first(self, holds: Callable[[Moment], bool], since: float) -> Moment | None:
        return next((item for item in self.moments(since) if holds(item)), None)

    def _autoscalers(self) -> str:
        try:
            return self._chat.kube.kubectl("describe", "hpa", "-n", self._chat.namespace)
        except KubeError as error:
            return str(error)

    def _follow(self) -> None:
        assert self._watch and self._watch.stdout
        lines: list[str] = []
        for line in self._watch.stdout:
            lines.append(line)
            if line.rstrip() == "}":  # kubectl indents all but the ends of an object
                self._note(json.loads("".join(lines)))
                lines = []

    def _note(self, seen: Json) -> None:
        with self._changed:
            self._moments.append(Moment(self.now(), seen["spec"].get("replicas", 1), status_of(seen)))
            self._changed.notify_all()

    def _look_at_the_queue(self) -> None:
        place = f"/apis/{CUSTOM}/v1beta2/namespaces/{self._chat.namespace}/modeldeployments.slipway.dev"
        while not self._leaving.wait(LOOK_S):
            try:
                text = self._chat.kube.kubectl("get", "--raw", f"{place}/{self._chat.name}/slipway_queue_depth")
            except (KubeError, subprocess.SubprocessError):
                continue  # no fresh value is no zero
            self._waiting.append((self.now(), float(quantity.parse(json.loads(text)["items"][0]["value"]))))


def violations(moments: list[Moment], surge: int) -> list[str]:
    """The invariants of docs/rollouts.md that a watch can see, I1 to I4, I6 and I7, between each two moments."""
    return [
        f"{after.at:.1f} s: {text}" for before, after in pairwise(moments) for text in _violated(before, after, surge)
    ]


def _violated(before: Moment, after: Moment, surge: int) -> Iterator[str]:
    ready = {item["revision"]: item["ready"] for item in after.revisions}
    for revision, weight in after.weights.items():
        least = replicas_for(weight, min(before.wanted, after.wanted))
        if before.weights and weight > before.weights.get(revision, 0) and ready.get(revision, 0) < least:
            yield f"I1: {revision} got {weight} % and has {ready.get(revision, 0)} of {least} ready pods"
    kept = {item["revision"] for item in after.revisions if item["replicas"]}
    for item in before.revisions:
        if item["replicas"] and item["revision"] not in kept and (item["weight"] or "scaleDownAt" not in item):
            yield f"I2: the pods of {item['revision']} left before that was written down at weight 0"
    if after.weights and (sum(after.weights.values()) != 100 or len(after.weights) > 2):
        yield f"I3: weights are {after.weights}"
    stable = after.status.get("stableRevision")
    # What was acknowledged is read and acted on in one write, which may bring a new table: a watch sees the 100 alone.
    if stable != before.status.get("stableRevision") and before.weights != {stable: 100}:
        yield f"I4: {stable} became stable at weights {before.weights}"
    if before.attempt == after.attempt and after.step < before.step:
        yield f"I6: step {after.step} after {before.step}"
    if after.pods > before.pods and after.pods > after.wanted + surge:
        yield f"I7: {after.pods} pods for {after.wanted} replicas and {surge} more"
