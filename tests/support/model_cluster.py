"""A model of a cluster that carries out plans: pods come up, gateways follow, time is a number.

It stands in for no component under test: it is the environment of `plan()` in property tests, and asserts the
invariants of a rollout (I1-I7) on every write.
"""

import copy
import json
from bisect import bisect_left
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate, count
from pathlib import Path
from random import Random
from typing import Any

import yaml

from slipway_operator.model import labels
from slipway_operator.model import status as status_room
from slipway_operator.model.analysis import Counts
from slipway_operator.model.hooks import HookAnswer, HookCall, HookOutcome, HookType
from slipway_operator.model.labels import baseline_of, what_runs
from slipway_operator.model.measuring import Answer, Question
from slipway_operator.model.observed import Autoscaler, Gateway, Observed, Pod, PodTrouble, Snapshot, Workload
from slipway_operator.model.plan import Event, Plan
from slipway_operator.model.samples import Pairs, Sample, Side
from slipway_operator.model.sleep import SleepState
from slipway_operator.model.spec import parse_inputs
from slipway_operator.model.status import Mode, State, Status, Traffic
from slipway_operator.model.strategy import parse_strategy
from slipway_operator.model.template import found
from slipway_operator.planning.canary import replicas_for
from slipway_operator.planning.plan import PlanSettings, plan

SETTINGS = PlanSettings(server_image="slipway-server:1", endpoint="http://slipway-gateway.slipway-system.svc/v1")
START = datetime(2026, 1, 1, tzinfo=UTC)
WORDS = yaml.safe_load((Path(__file__).parents[2] / "docs" / "status.yaml").read_text())


class Crashed(Exception):
    """The operator died between two calls."""


@dataclass
class Pods:
    """The pods of one ReplicaSet: counts are enough."""

    desired: int
    replicas: int = 0
    ready: int = 0
    placed: int = 0  # pods that have a node
    made: list[datetime] = field(default_factory=list)  # when each pod was made, oldest first


BOUNDS = {"ttft": (0.1, 0.2, 0.4, 0.8, 1.6)}
STRATUM = "b<4k,stream"
HUNG_AFTER_S = 60
_INCARNATIONS = count(1)


@dataclass
class Attempt:
    """A request that never ends."""

    generation: int
    revision: str
    begun: datetime
    told: bool = False  # that its silence is too long


@dataclass
class ModelGateway:
    """A gateway that follows the table when it is told to, and counts what it splits."""

    name: str
    generation: int | None = None
    ready: bool = True
    reachable: bool = True
    cut_off: str = ""
    incarnation: str = field(default_factory=lambda: f"process-{next(_INCARNATIONS)}")
    samples: dict[int, Sample] = field(default_factory=dict)  # by generation
    open: list[Attempt] = field(default_factory=list)
    asleep: bool = False  # by its table
    holds: bool = False  # for longer than a moment, by its table
    since: datetime = START  # when it began to know the route
    last: datetime | None = None  # when it last had a request in hand
    held: int = 0
    served: int = 0  # of those that came by `visit`
    refused: int = 0

    def visit(self, world: "ModelCluster") -> None:
        """One request comes; what cannot be served is held, where its table says so. Without a table none comes."""
        if self.generation is None:
            return
        self.last = world.now
        if self._serves(world):
            self.served += 1
        else:
            self.held, self.refused = self.held + self.holds, self.refused + (not self.holds)

    def let_go(self, world: "ModelCluster") -> None:
        """Held requests go to pods that are there."""
        if self.held:
            self.last = world.now
        if self.held and self._serves(world):
            self.served, self.held = self.served + self.held, 0

    def _serves(self, world: "ModelCluster") -> bool:
        table = world.parsed().traffic
        revisions = [backend.revision for backend in table.backends] if table and not self.asleep else []
        return any(world.pods[name].ready for name in revisions if name in world.pods)

    def ask(self, table: Traffic, requests: int, world: "ModelCluster", chance: Random) -> None:
        """So many requests come, are split by weight, answered and counted."""
        weights = {backend.revision: backend.weight for backend in table.backends}
        sample = self.samples.setdefault(table.generation, Sample(table.generation, weights, {}))
        for _ in range(requests):
            chosen = _split(weights, chance.random() * 100)
            before = sample.revisions.get(chosen, Side())
            errors = before.events.get("errors", 0) + (chance.random() < world.error_rate(chosen))
            slow = world.is_among(chosen, world.slow) or world.is_cold(chosen)
            seconds = chance.lognormvariate(-1.6, 0.5) * (3 if slow else 1)
            hangs = chance.random() < world.hangs.get(world.uri(chosen), 0.0)
            if hangs:
                self.open.append(Attempt(table.generation, chosen, world.now))
                sample.revisions[chosen] = replace(before, assigned=before.assigned + 1)
                continue
            buckets = [*before.slow.get("ttft", {}).get(STRATUM, (0,) * 6)]
            buckets[bisect_left(BOUNDS["ttft"], seconds)] += not world.is_among(chosen, world.mute)
            slow = {"ttft": {STRATUM: tuple(buckets)}}
            sample.revisions[chosen] = Side(before.requests + 1, {"errors": errors}, slow, assigned=before.assigned + 1)
            for mirror in table.mirror_routes:
                if chosen != mirror.revision and chance.random() * 100 < mirror.percentage:
                    self._mirror(sample, mirror.revision, world.ready(what_runs(chosen)) > 1, world, chance)
        self.samples = dict(sorted(self.samples.items())[-4:])

    def _mirror(self, sample: Sample, canary: str, floor: bool, world: "ModelCluster", chance: Random) -> None:
        """One copy: whether canary, and a second pod of stable where there is one, says something else than stable."""
        differs, anyway = chance.random() < world.drift, chance.random() < world.floor
        before = sample.shadow.get(canary, {}).get("text", Pairs())
        if floor:
            more = (1, differs and not anyway, anyway and not differs, differs and anyway, 0, 0)
        else:
            more = (0, 0, 0, 0, 1, differs)
        sums = [getattr(before, item.name) + int(add) for item, add in zip(fields(Pairs), more, strict=True)]
        sample.shadow[canary] = {"text": Pairs(*sums)}

    def look(self, now: datetime) -> None:
        """What takes too long is counted as an error, once."""
        for one in self.open:
            sample = self.samples.get(one.generation)
            if sample and not one.told and (now - one.begun).total_seconds() > HUNG_AFTER_S:
                one.told = True
                side = sample.revisions[one.revision]
                events = side.events | {"errors": side.events.get("errors", 0) + 1}
                sample.revisions[one.revision] = replace(side, requests=side.requests + 1, events=events)

    def _late(self, sample: Sample, now: datetime) -> Sample:
        """With what is known of requests that have not ended."""
        sides = dict(sample.revisions)
        for one in self.open:
            age_s = (now - one.begun).total_seconds()
            if one.generation == sample.generation and age_s > BOUNDS["ttft"][0]:
                side = sides[one.revision]
                buckets = [*side.late.get("ttft", {}).get(STRATUM, (0,) * 6)]
                buckets[bisect_left(BOUNDS["ttft"], age_s)] += 1
                sides[one.revision] = replace(side, late={"ttft": {STRATUM: tuple(buckets)}})
        return replace(sample, revisions=sides)

    def seen(self, inflight: dict[str, int], now: datetime) -> Gateway:
        """As the operator sees it."""
        if not self.reachable:
            return Gateway(self.name, self.ready, reachable=False)
        last = now if self.held or any(inflight.values()) else self.last
        return Gateway(
            self.name,
            self.ready,
            True,
            self.generation,
            dict(inflight),
            self.incarnation,
            self.cut_off,
            BOUNDS,
            copy.deepcopy(tuple(self._late(sample, now) for sample in self.samples.values())),
            held=self.held,
            known_s=(now - self.since).total_seconds(),
            last_request_s=(now - last).total_seconds() if last else None,
        )


@dataclass
class ModelCluster:
    """One ModelDeployment and its world."""

    spec: dict[str, Any]
    now: datetime = START
    generation: int = 1
    status: dict[str, Any] = field(default_factory=dict)
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    pods: dict[str, Pods] = field(default_factory=dict)
    services: set[str] = field(default_factory=set)
    autoscalers: dict[str, Autoscaler] = field(default_factory=dict)  # by name
    gateways: list[ModelGateway] = field(default_factory=lambda: [ModelGateway("a"), ModelGateway("b")])
    broken: set[str] = field(default_factory=set)  # model URIs whose pods never get ready
    places: int | None = None  # pods that the nodes take; None is any number
    queue_says: str = (
        "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."  # the scheduler, of those without a place
    )
    inflight: dict[str, int] = field(default_factory=dict)
    rate: int = 0  # requests that each gateway gets in a second
    bad: dict[str, float] = field(default_factory=dict)  # rate of errors by model URI, else one in a hundred
    slow: set[str] = field(default_factory=set)  # model URIs that answer three times slower
    cold_s: int = 0  # how long a pod answers three times slower at first
    mute: set[str] = field(default_factory=set)  # model URIs of whose answers no latency is counted
    drift: float = 0.0  # how often canary answers a mirrored prompt otherwise than stable
    floor: float = 0.02  # how often a second pod of stable does
    hangs: dict[str, float] = field(default_factory=dict)  # how often an answer never ends, by model URI
    crashed: set[str] = field(default_factory=set)  # model URIs whose pods are not ready any more
    restarts: dict[str, int] = field(default_factory=dict)  # of the first pod, by model URI
    templates: dict[str, dict[str, Any]] = field(default_factory=dict)  # specs of AnalysisTemplates by name
    events: list[Event] = field(default_factory=list)
    calls_until_crash: int | None = None
    calls: int = 0
    zero_since: dict[str, datetime] = field(default_factory=dict)  # when a revision's weight 0 was acknowledged
    says: dict[str, bool] = field(
        default_factory=dict
    )  # answers of hooks by name; else a rollback hook says no, others yes
    asked: list[HookCall] = field(default_factory=list)  # questions put to hooks; a new operator may put one again
    values: dict[str, Any] = field(default_factory=dict)  # what providers answer by metric: a value, or an Answer
    measured: list[Question] = field(default_factory=list)  # questions put to them
    reached: dict[tuple[str, int, str, datetime], int] = field(default_factory=dict)  # highest step of an attempt

    # --- what a test does ---------------------------------------------------------------------------------------------

    def edit(self, **changes: Any) -> None:
        """Change the spec as a user would."""
        before = copy.deepcopy(self.spec)
        for path, value in changes.items():
            *parents, leaf = path.split("__")
            node = self.spec
            for parent in parents:
                node = node.setdefault(parent, {})
            if value is None:
                node.pop(leaf, None)
            else:
                node[leaf] = value
        self.generation += before != self.spec

    def patch_status(self, **change: Any) -> None:
        """Merge a patch into the status as kubectl does: None removes."""
        self.status = {key: value for key, value in (self.status | change).items() if value is not None}
        self._parsed = None

    def reconcile(self) -> Plan:
        """One reconcile; raises Crashed when the operator dies on the way."""
        decided = plan(self.obj(), self.parsed(), self.observed(), SETTINGS, self.now)
        for item in decided.create:
            self._call()
            self._create(item.manifest)
        for scale in decided.scale:
            self._call()
            self._scale(scale.name, scale.replicas)
        rendered = status_room.render(decided.status)
        if rendered != self.status:
            self._call()
            self._write_status(decided.status, rendered)
        for gone in decided.delete:
            self._call()
            self._delete(gone.kind, gone.name)
        for evict in decided.evict:
            self._call()
            self._evict(evict.pod)
        self.events.extend(decided.events)
        self._ask(decided.calls)
        self._measure(decided.questions)
        return decided

    def pass_time(self, seconds: int = 1, *, pods: bool = True, gateways: bool = True) -> None:
        """Let the world move: ReplicaSets make pods, pods get ready, gateways follow."""
        self.now += timedelta(seconds=seconds)
        self._place()
        for revision, item in self.pods.items():
            item.ready = min(item.ready, item.placed)
            if self.is_among(revision, self.crashed):
                item.ready = 0
            elif pods and not self.is_broken(revision):
                item.ready = item.placed
        if gateways:
            table = self.parsed().traffic
            for gateway in self.gateways:
                gateway.generation = table.generation if table else None
                gateway.asleep = bool(table and table.asleep)
                gateway.holds = bool(table and table.hold_seconds is not None)
        self._serve(seconds)
        for gateway in self.gateways:
            gateway.let_go(self)
        self._answer()
        self._note_zeroes()

    def run(self, seconds: int, *, step: int = 1) -> None:
        """Reconcile and let the world move, for so long."""
        for _ in range(0, seconds, step):
            self.reconcile()
            self.pass_time(step)
        self.reconcile()

    def run_until(self, state: str | None, limit_s: int = 600) -> None:
        """Run until the rollout is in this state (None: idle)."""
        for _ in range(limit_s):
            self.reconcile()
            if self.state() == state and self.parsed().stable_revision:
                return
            self.pass_time()
        raise AssertionError(f"not {state} within {limit_s} s but {self.state()}: {self.parsed().message}")

    # --- what a test sees ---------------------------------------------------------------------------------------------

    def obj(self) -> dict[str, Any]:
        """The ModelDeployment."""
        metadata = {"name": "chat", "namespace": "default", "uid": "u1", "generation": self.generation}
        return json.loads(json.dumps({"metadata": metadata, "spec": self.spec, "status": self.status}))  # type: ignore[no-any-return]

    def parsed(self) -> Status:
        """Its status."""
        if self._parsed is None:
            self._parsed = status_room.parse(self.status)
        return self._parsed

    def state(self) -> str | None:
        """State of the rollout; None when idle."""
        rollout = self.parsed().rollout
        return rollout.state.value if rollout else None

    def weights(self) -> dict[str, int]:
        """Weights by version of the model, for reading in tests."""
        traffic = self.parsed().traffic
        return {backend.version or "": backend.weight for backend in traffic.backends} if traffic else {}

    def is_broken(self, revision: str) -> bool:
        """Whether pods of this revision never get ready."""
        return self.uri(revision) in self.broken

    def uri(self, revision: str) -> str:
        """The model of a revision, or of its baseline."""
        return self.snapshots[what_runs(revision)].inputs.model.uri

    def ready(self, revision: str) -> int:
        """Ready pods that run a revision."""
        return sum(item.ready for name, item in self.pods.items() if what_runs(name) == revision)

    def error_rate(self, revision: str) -> float:
        """How often an answer of this revision fails."""
        return self.bad.get(self.uri(revision), 0.01)

    def is_cold(self, revision: str) -> bool:
        """Whether every pod of this revision is young."""
        made = self.pods[revision].made if revision in self.pods else []
        return bool(made) and (self.now - made[0]).total_seconds() < self.cold_s

    def is_among(self, revision: str, uris: set[str]) -> bool:
        """Whether a revision's model is one of these."""
        return self.uri(revision) in uris

    def observed(self) -> Observed:
        """What the operator sees."""
        return Observed(
            snapshots=dict(self.snapshots),
            workloads={name: self._workload(name, item) for name, item in self.pods.items()},
            services=frozenset(self.services),
            gateways=tuple(item.seen(self.inflight, self.now) for item in self.gateways),
            hooks=dict(self._answers),
            measured=dict(self._measurements),
            templates={name: found(name, spec) for name, spec in self.templates.items()},
            autoscalers=tuple(self.autoscalers.values()),
        )

    def fixpoint(self) -> dict[str, Any]:
        """What must not depend on how the operator came here: everything but times and generations."""
        parsed = self.parsed()
        traffic = parsed.traffic.backends if parsed.traffic else ()
        return {
            "stable": parsed.stable_revision,
            "state": self.state(),
            "backends": traffic,
            "pods": {name: item.desired for name, item in self.pods.items()},
            "services": set(self.services),
            "snapshots": set(self.snapshots),
            "aborted": parsed.aborted_revisions,
        }

    def _serve(self, seconds: int) -> None:
        """Requests of these seconds; which ones come depends on the moment alone, not on what became of anybody."""
        table = self.parsed().traffic
        for index, gateway in enumerate(self.gateways):
            if table and self.rate and gateway.ready and gateway.generation == table.generation:
                gateway.ask(table, self.rate * seconds, self, Random(f"{self.now}/{index}"))
            gateway.look(self.now)

    # --- the world's side ---------------------------------------------------------------------------------------------

    def _place(self) -> None:
        """What leaves frees its place first; then the scheduler goes through the pods that wait."""
        for item in self.pods.values():
            item.replicas, item.placed = item.desired, min(item.placed, item.desired)
            item.made = (item.made + [self.now] * item.desired)[: item.desired]
        for item in self.pods.values():
            free = self.places - sum(other.placed for other in self.pods.values()) if self.places is not None else 999
            item.placed += max(0, min(item.desired - item.placed, free))

    def _call(self) -> None:
        if self.calls_until_crash is not None and self.calls >= self.calls_until_crash:
            # Questions on their way and answers that were not written down die with the operator.
            self._questions, self._answers = {}, {}
            self._due, self._measurements = {}, {}
            raise Crashed
        self.calls += 1

    def _ask(self, calls: tuple[HookCall, ...]) -> None:
        wanted = {call.key: call for call in calls}
        self._answers = {key: answer for key, answer in self._answers.items() if key in wanted}
        self.asked += [call for key, call in wanted.items() if key not in self._answers and key not in self._questions]
        self._questions = {key: call for key, call in wanted.items() if key not in self._answers}
        rollout = self.parsed().rollout
        passed = {state.key for state in rollout.hooks if state.outcome is HookOutcome.PASSED} if rollout else set()
        assert not passed & set(wanted), "a hook that passed is not asked again"

    def _answer(self) -> None:
        for key, call in self._questions.items():
            ok = self.says.get(call.hook.name, call.hook.type is not HookType.ROLLBACK)
            self._answers[key] = HookAnswer(ok, "200 OK" if ok else "403 Forbidden: not yet")
        self._questions = {}
        for key, question in self._due.items():
            value = self.values.get(question.metric.name, Answer(problem="nobody answers"))
            self._measurements[key] = value if isinstance(value, Answer) else Answer(value)
        self._due = {}

    def _measure(self, questions: tuple[Question, ...]) -> None:
        wanted = {question.key: question for question in questions}
        self._measurements = {key: answer for key, answer in self._measurements.items() if key in wanted}
        new = {key: question for key, question in wanted.items() if key not in self._measurements}
        self.measured += [question for key, question in new.items() if key not in self._due]
        self._due = new

    def _workload(self, name: str, item: Pods) -> Workload:
        waiting = item.replicas - item.placed
        broken = PodTrouble(f"chat-{name}-x", "CrashLoopBackOff", "shard 2 is missing")
        unplaced = PodTrouble(f"chat-{name}-y", "Unschedulable", self.queue_says)
        fails = self.is_broken(name) or self.is_among(name, self.crashed)
        troubles = (*((broken,) if fails else ()), *((unplaced,) if waiting else ()))
        restarts = self.restarts.get(self.uri(name), 0)
        pods = tuple(
            Pod(f"chat-{name}-{n}", made, n < item.ready, 0 if n else restarts) for n, made in enumerate(item.made)
        )
        return Workload(name, item.desired, item.replicas, item.ready, troubles, waiting, pods)

    def _create(self, manifest: dict[str, Any]) -> None:
        if manifest["kind"] == "HorizontalPodAutoscaler":
            name = manifest["metadata"]["name"]
            made = self.autoscalers[name].created_at if name in self.autoscalers else self.now
            self.autoscalers[name] = Autoscaler(name, True, True, made, copy.deepcopy(manifest["spec"]))
            return
        revision = manifest["metadata"]["labels"][labels.REVISION]
        if manifest["kind"] == "ControllerRevision":
            data = manifest["data"]
            self.snapshots[revision] = Snapshot(
                revision, manifest["revision"], parse_inputs(data["inputs"], "chat"), data["image"], 600, 1
            )
        elif manifest["kind"] == "Service":
            self.services.add(revision)
        else:
            self.pods[revision] = Pods(manifest["spec"]["replicas"])
            self._assert_room()

    def _scale(self, name: str, replicas: int) -> None:
        revision = name.removeprefix("chat-")
        up = replicas > self.pods[revision].desired
        if not up:
            self._assert_may_shrink(revision, replicas)
        self.pods[revision].desired = replicas
        if up:
            self._assert_room()

    def _evict(self, pod: str) -> None:
        _, revision, number = pod.split("-")
        item = self.pods[revision]
        item.made.pop(int(number))
        item.replicas, item.placed = item.replicas - 1, item.placed - 1
        item.ready -= int(number) < item.ready

    def _delete(self, kind: str, name: str) -> None:
        if kind == "HorizontalPodAutoscaler":
            self.autoscalers.pop(name, None)
            return
        revision = name.removeprefix("chat-")
        if kind == "ControllerRevision":
            self.snapshots.pop(revision, None)
        elif kind == "Service":
            self.services.discard(revision)
        else:
            assert self.pods[revision].replicas == 0, "a workload is deleted only when it is empty"
            self.pods.pop(revision, None)

    def _write_status(self, new: Status, rendered: dict[str, Any]) -> None:
        old = self.parsed()
        for item in new.conditions:
            words = WORDS["conditions"][item.type]
            known = (*words["reasons"], *(WORDS["causes"] if words.get("causes") else ()))
            assert item.reason in known, f"docs/status.yaml lacks {item.reason} of {item.type}"
        self._assert_weights(old.traffic, new.traffic, min(self._carriers(old), self._carriers(new)))
        self._assert_mirrors(old.traffic, new)
        self._assert_confirmed(old, new)
        self._assert_judged(old, new)
        self._assert_scale(old, new)
        if old.stable_revision != new.stable_revision:
            assert self._acked_weight(new.stable_revision) == 100, "I4: the pointer moves at acknowledged weight 100"
        if new.rollout:
            rollout = new.rollout
            key = (rollout.revision, rollout.attempt, rollout.steps_hash, rollout.started_at)
            assert new.rollout.step_index >= self.reached.get(key, 0), "I6: a step is never done twice"
            self.reached[key] = new.rollout.step_index
        self.status, self._parsed = rendered, None
        self._note_zeroes()

    def _assert_scale(self, old: Status, new: Status) -> None:
        """An autoscaler divides demand by the replicas, and looks for load in the pods of the selector."""
        live = {name for name in (new.stable_revision, new.rollout and new.rollout.revision) if name}
        if new.rollout and new.rollout.state is State.ABORTED:
            live -= {new.rollout.revision} - {new.stable_revision}
        assert new.selector == f"slipway.dev/modeldeployment=chat,slipway.dev/revision in ({','.join(sorted(live))})"
        present = sum(item.replicas for name, item in self.pods.items() if name in live)
        wanted = 0 if self._sleeps(old) and self._sleeps(new) else self.spec.get("replicas", 1)
        assert new.replicas == min(present, wanted), "what a rollout adds is no capacity"

    def _sleeps(self, status: Status) -> bool:
        return status.sleep is not None and status.sleep.state is SleepState.ASLEEP

    def _assert_weights(self, old: Traffic | None, new: Traffic | None, carriers: int) -> None:
        if new is None:
            assert old is None, "a table is never taken back"
            return
        assert sum(backend.weight for backend in new.backends) == 100, "I3: weights sum to 100"
        assert len({what_runs(item.revision) for item in new.backends}) <= 2, "I3: at most two revisions"
        assert all(0 <= backend.weight <= 100 for backend in new.backends), "I3: weights are shares"
        if old and old.backends != new.backends:
            assert new.generation > old.generation, "a change has a new generation"
        self.served |= {backend.revision for backend in new.backends if backend.weight}
        for backend in new.backends:
            # What a baseline has falls back to stable whenever it leaves: stable carries it all the time.
            shares = (backend.revision, baseline_of(backend.revision))
            before, weight = (sum(table.weight(name) for name in shares) if table else 0 for table in (old, new))
            if weight > before:
                self._assert_carries(backend.revision, weight, new, carriers)
            if what_runs(backend.revision) != backend.revision:
                assert backend.weight == new.backends[0].weight, "a baseline has the canary's weight"

    def _assert_mirrors(self, old: Traffic | None, new: Status) -> None:
        """Copies go to a revision under test that has a ready pod, and to none that is promoted or rejected."""
        mirrors = new.traffic.mirror_routes if new.traffic else ()
        for mirror in mirrors:
            assert new.rollout and new.stable_revision and new.rollout.state not in ("Promoting", "Aborting", "Aborted")
            assert mirror.revision == new.rollout.revision != new.stable_revision
            assert self.pods[mirror.revision].ready > 0, "a mirror needs a ready pod"
        if old and new.traffic and old.mirror_routes != mirrors:
            assert new.traffic.generation > old.generation, "what is mirrored is counted by generation"

    def _assert_confirmed(self, old: Status, new: Status) -> None:
        """Gates, as written before, are open for every higher weight of a revision under test."""
        if not (old.stable_revision and old.rollout and new.rollout and new.rollout.in_flight and new.traffic):
            return
        before = old.traffic.weight(new.rollout.revision) if old.traffic else 0
        if new.traffic.weight(new.rollout.revision) <= before or new.rollout.skip_steps:
            return
        first = () if before else (HookType.CONFIRM_ROLLOUT, HookType.PRE_ROLLOUT)
        open_now = {state.name for state in old.rollout.hooks if state.outcome is HookOutcome.PASSED}
        for hook in self.spec.get("strategy", {}).get("hooks", ()):
            asked = hook["type"] in (HookType.CONFIRM_TRAFFIC_INCREASE, *first)
            assert not asked or hook["name"] in open_now, f"{hook['name']} did not confirm the weight"

    def _assert_judged(self, old: Status, new: Status) -> None:
        """What follows from a verdict follows from one that was written before; counts only grow within a run."""
        before, after = old.rollout, new.rollout
        if not (before and after and before.attempt_token == after.attempt_token):
            return
        for former, run in ((before.analysis, after.analysis), (before.background, after.background)):
            if former and run and (former.id, former.started_at) == (run.id, run.started_at):
                assert _requests(former.counts) <= _requests(run.counts), "counts only grow"
        verdicts = [run.verdict.outcome for run in (before.analysis, before.background) if run and run.verdict]
        if after.abort and not before.abort and after.abort.reason == "AnalysisFailed":
            assert "Fail" in verdicts, "an analysis rejects by what is written down"
        passed = [item for item in new.decisions if item.row == "analysis-passed" and item.at == self.now]
        if passed and passed[-1] not in old.decisions:
            assert before.analysis and before.analysis.verdict and before.analysis.verdict.outcome == "Pass"
            assert before.analysis.id == before.step_token, "each step has a verdict of its own"

    def _assert_carries(self, revision: str, weight: int, table: Traffic, carriers: int) -> None:
        ready = self.pods[revision].ready if revision in self.pods else 0
        others = [b.revision for b in table.backends if what_runs(b.revision) != what_runs(revision)]
        last_healthy = not any(self.pods.get(other, Pods(0)).ready for other in others)
        needed = replicas_for(weight, carriers)
        assert ready >= needed or last_healthy, f"I1: {weight}% needs {needed} ready pods, there are {ready}"

    def _assert_may_shrink(self, revision: str, replicas: int) -> None:
        """I2 for revisions that leave; one that serves keeps what its weight needs."""
        parsed = self.parsed()
        live = (parsed.stable_revision, parsed.rollout.revision if parsed.rollout else None)
        shares = (revision, baseline_of(revision))
        weight = sum(parsed.traffic.weight(name) for name in shares) if parsed.traffic else 0
        if self._sleeps(parsed) and replicas == 0 and revision == parsed.stable_revision:
            self._assert_may_sleep()
            return
        if revision in live and replicas > 0:
            assert replicas >= replicas_for(weight, self._carriers()), "I1: shrunk below its weight"
        elif revision == parsed.stable_revision and self._mode() is Mode.RECREATE:
            assert self.spec["strategy"]["capacity"]["policy"] == "AllowRecreate", "the only pod leaves by leave only"
        elif replicas == 0 and self.spec.get("replicas", 1) > 0 and revision in self.served:
            assert revision in self.zero_since, "I2: weight 0 is acknowledged before pods leave"
            delay = (
                0
                if what_runs(revision) != revision
                else self.spec.get("strategy", {}).get("canary", {}).get("scaleDownDelaySeconds", 30)
            )
            waited = (self.now - self.zero_since[revision]).total_seconds()
            short = self.pods[parsed.stable_revision or revision].desired < self.spec.get("replicas", 1)
            known = self.delays_changed or short or self.places is not None
            assert waited >= delay or known, f"I2: pods leave after {waited} s, not {delay}"

    def _assert_may_sleep(self) -> None:
        """What a gateway has in hand when pods leave, it holds; a new one has no table yet."""
        told = [item for item in self.gateways if item.generation is not None]
        assert all(item.asleep for item in told), "pods leave once every gateway holds what comes"
        assert self.parsed().traffic.asleep  # type: ignore[union-attr]
        assert not any(item.open for item in self.gateways), "and none has a request at a pod"

    delays_changed: bool = False
    surge_changed: bool = False
    replicas_walk: bool = False  # up again while pods of former revisions drain, which are not to make way
    _parsed: Status | None = None
    _questions: dict[str, HookCall] = field(default_factory=dict)
    _answers: dict[str, HookAnswer] = field(default_factory=dict)
    _due: dict[str, Question] = field(default_factory=dict)
    _measurements: dict[str, Answer] = field(default_factory=dict)
    served: set[str] = field(default_factory=set)  # revisions that ever had weight

    def _assert_room(self) -> None:
        """I7, on every growth: replicas and surge, and what a shrunk spec or surge still has to drain."""
        growth = sum(item.desired for item in self.pods.values())
        replicas = self.spec.get("replicas", 1)
        left = self._live() if self.replicas_walk else self.pods.keys()
        draining = sum(item.desired for name, item in self.pods.items() if item.desired > replicas or name not in left)
        surge = parse_strategy(self.spec.get("strategy") or {}).capacity.surge(replicas)
        most = replicas + surge + draining
        assert growth <= most or self.surge_changed, f"I7: {growth} pods for {replicas} replicas and {surge} more"
        assert growth <= replicas + max(replicas, surge) + draining, f"I7: {growth} pods for {replicas} replicas"

    def _live(self) -> set[str | None]:
        rollout = self.parsed().rollout
        return {self.parsed().stable_revision, rollout.revision if rollout else None}

    def _mode(self, status: Status | None = None) -> Mode:
        rollout = (status or self.parsed()).rollout
        return rollout.capacity_mode if rollout else Mode.SURGE

    def _carriers(self, status: Status | None = None) -> int:
        """Pods that carry everything: one fewer while they are replaced in place."""
        return int(self.spec.get("replicas", 1)) - (self._mode(status) is Mode.REPLACE)

    def _acked_weight(self, revision: str | None) -> int:
        traffic = self.parsed().traffic
        ready = [gateway for gateway in self.gateways if gateway.ready]
        acked = traffic and ready and all((item.generation or 0) >= traffic.generation for item in ready)
        return traffic.weight(revision) if traffic and acked else -1

    def _note_zeroes(self) -> None:
        for revision in self.pods:
            if self._acked_weight(revision) == 0:
                self.zero_since.setdefault(revision, self.now)
            elif self.parsed().traffic and self.parsed().traffic.weight(revision) > 0:  # type: ignore[union-attr]
                self.zero_since.pop(revision, None)


def _split(weights: dict[str, int], position: float) -> str:
    """The first whose cumulative weight, in percent, exceeds the position."""
    sums = zip(weights, accumulate(weights.values()), strict=True)
    return next(name for name, upto in sums if position < upto)


def _requests(counts: tuple[Counts, ...]) -> int:
    return sum(epoch.nc + epoch.ns for item in counts for epoch in item.epochs)


def cluster(
    version: str = "v1", *, replicas: int = 2, steps: list[dict[str, Any]] | None = None, **spec: Any
) -> ModelCluster:
    """A cluster with one ModelDeployment, not yet reconciled."""
    canary = {"steps": steps or [{"setWeight": 10}, {"pause": {}}, {"setWeight": 50}, {"pause": {"duration": "10s"}}]}
    return ModelCluster(
        {
            "model": model(version),
            "replicas": replicas,
            "strategy": {"canary": canary},
            "progressDeadlineSeconds": 60,
            **spec,
        }
    )


def hook(kind: str, name: str = "", **fields: Any) -> dict[str, Any]:
    """An item of spec.strategy.hooks, by default named after its type."""
    return {"name": name or kind, "type": kind, "url": "http://hooks.tools.svc/", **fields}


def model(version: str) -> dict[str, Any]:
    """A spec.model of this version."""
    return {"uri": f"file:///models/{version}", "version": version}


def healthy(version: str = "v1", **options: Any) -> ModelCluster:
    """A cluster whose first revision serves."""
    built = cluster(version, **options)
    built.run_until(None)
    return built
