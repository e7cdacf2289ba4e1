"""A model of a cluster that carries out plans: pods come up, gateways follow, time is a number.

It stands in for no component under test: it is the environment of `plan()` in property tests. What there is lies in
model_world.py, what must hold on every write in model_invariants.py, and how gateways count in model_gateway.py.
"""

import copy
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import yaml

from slipway_operator.api.v1alpha1.hooks import HookOutcome, HookType
from slipway_operator.api.v1alpha1.status import Status
from slipway_operator.kube.reading.observe import snapshot
from slipway_operator.manifests.analysis_run import analysis_run
from slipway_operator.manifests.owner import Owner
from slipway_operator.model import labels
from slipway_operator.model.analysis.measure import ProviderAnswer, Question
from slipway_operator.model.analysis.stored_run import RunWrite, stored_run
from slipway_operator.model.cluster import history
from slipway_operator.model.cluster.observed import Autoscaler, Pod
from slipway_operator.model.cluster.plan import Annotate, Gate, Plan
from slipway_operator.model.deployment import status as status_room
from slipway_operator.model.deployment.hooks import HookAnswer, HookCall
from slipway_operator.planning.analysis.continuing import identified
from slipway_operator.planning.analysis.runs import READ_S
from slipway_operator.planning.decided import PlanSettings
from tests.support.model_gateway import START as START
from tests.support.model_gateway import ModelGateway as ModelGateway
from tests.support.model_invariants import WatchedWorld, counted
from tests.support.model_world import Pods, StandbyPods
from tests.support.planned import plan

SETTINGS = PlanSettings(
    server_image="slipway-server:1",
    endpoint="http://slipway-gateway.slipway-system.svc/v1",
    lease="slipway-system/slipway-operator",
)
WORDS = yaml.load((Path(__file__).parents[2] / "docs" / "status.yaml").read_text(), yaml.CSafeLoader)


class Crashed(Exception):
    """The operator died between two calls."""


@dataclass
class ModelCluster(WatchedWorld):
    """One ModelDeployment and its world, moving."""

    settings: PlanSettings = SETTINGS
    run_writes: int = 0

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
        self.forge({key: value for key, value in (self.status | change).items() if value is not None})

    def forge(self, status: dict[str, Any]) -> None:
        """The status is this, by another hand than the operator's."""
        self.status, self._parsed, self._written = status, None, None

    def keep(self, new: Status, rendered: dict[str, Any]) -> None:
        """The status is this from now on, as the operator rendered it."""
        self.status, self._parsed, self._written = rendered, None, new

    def reconcile(self) -> Plan:
        """One reconcile; raises Crashed when the operator dies on the way."""
        self.seen_serving = {name: len(self.serving(name)) for name in self.standby}
        decided = self._with_runs(plan(self.obj(), self.parsed(), self.observed(), self.settings, self.now))
        for made in (*decided.create, *([decided.autoscaler] if decided.autoscaler else ())):
            self._call()
            self._create(made.manifest)
        for item in decided.annotate:
            self._call()
            self._annotate(item)
        for gate in decided.gates:
            for change in self._gate_changes(gate):
                self._call()
                self._change_standby(gate.pod, **change)
        for scale in decided.scale:
            self._call()
            self._scale(scale.kind, scale.name, scale.replicas)
        if decided.status != self._written and (rendered := status_room.render(decided.status)) != self.status:
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
        self._run_standby()
        if gateways:
            table = self.parsed().traffic
            for gateway in self.gateways:
                gateway.follow(table)
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

    # --- the world moves ----------------------------------------------------------------------------------------------

    def _serve(self, seconds: int) -> None:
        """Requests of these seconds; which ones come depends on the moment alone, not on how any request ended."""
        table = self.parsed().traffic
        for index, gateway in enumerate(self.gateways):
            if table and gateway.ready and gateway.generation == table.generation:
                if requests := self._requests(seconds):
                    gateway.ask(table, requests, self, Random(f"{self.now}/{index}"))
                gateway.probe(table, seconds, self)
            gateway.look(self.now)

    def _requests(self, seconds: int) -> int:
        """Requests at each gateway in the last seconds; a rate below one gives one now and then."""
        passed = self.now.timestamp()
        return int(self.rate * passed) - int(self.rate * (passed - seconds))

    def _place(self) -> None:
        """What leaves frees its place first; then the scheduler goes through the pods that wait."""
        for item in self.pods.values():
            item.replicas, item.placed = item.desired, min(item.placed, item.desired)
            item.made = (item.made + [self.now] * item.desired)[: item.desired]
        for item in self.pods.values():
            free = self.places - sum(other.placed for other in self.pods.values()) if self.places is not None else 999
            item.placed += max(0, min(item.desired - item.placed, free))

    def _run_standby(self) -> None:
        """ReplicaSet controller and kubelet: pods that are not ready leave first, new ones load, gates count."""
        for revision, item in self.standby.items():
            while len(item.pods) > item.desired:
                item.pods.remove(min(item.pods, key=lambda pod: (pod.ready, pod.loaded, -pod.created_at.timestamp())))
            while len(item.pods) < item.desired:
                item.made += 1
                name = f"{item.name}-{item.made}"
                item.pods.append(Pod(name, self.now, False, uid=name, serves=False))
            for at, pod in enumerate(item.pods):
                loaded = pod.loaded or (self.now - pod.created_at).total_seconds() >= self.standby_loads_s
                loaded = loaded and not self.is_broken(revision)
                left = self.drained_before is not None and pod.created_at < self.drained_before
                item.pods[at] = replace(pod, loaded=loaded, ready=loaded and pod.gate_open, leaving=left)

    def _gate_changes(self, gate: Gate) -> list[dict[str, bool]]:
        """The two writes of a gate, in their order."""
        changes = [{"gate_open": gate.serves}, {"serves": gate.serves}]
        return changes if gate.serves else changes[::-1]

    def _change_standby(self, name: str, **change: bool) -> None:
        for item in self.standby.values():
            item.pods = [replace(pod, **change) if pod.name == name else pod for pod in item.pods]

    def _answer(self) -> None:
        for key, call in self._questions.items():
            ok = self.hook_answers.get(call.hook.name, call.hook.type is not HookType.ROLLBACK)
            self._answers[key] = HookAnswer(ok, "200 OK" if ok else "403 Forbidden: not yet")
        self._questions = {}
        for key, question in self._due.items():
            value = self.values.get(question.metric.name, ProviderAnswer(problem="no response"))
            self._measurements[key] = value if isinstance(value, ProviderAnswer) else ProviderAnswer(value)
        self._due = {}

    # --- what the operator decided is carried out ---------------------------------------------------------------------

    def _with_runs(self, decided: Plan) -> Plan:
        """Write the runs of a plan before its status, which gets their UIDs. If they are refused, plan again."""
        if decided.runs and self.run_refusal:
            refused = replace(self.observed(), run_refusal=self.run_refusal)
            return plan(self.obj(), self.parsed(), refused, self.settings, self.now)
        uids = {}
        for item in decided.runs:
            self._call()
            uids[item.name] = self._write_run(item)
        rollout = identified(decided.status.rollout, uids)
        return replace(decided, status=replace(decided.status, rollout=rollout))

    def _write_run(self, item: RunWrite) -> str:
        """What the API server does: it gives a new object a UID, and counts each change of its contents."""
        manifest = msgspec.json.decode(msgspec.json.encode(analysis_run(Owner.of(self.obj()), item.name, item.run)))
        former = self.runs.get(item.name)
        if former and item.former is None and former["status"] == manifest["status"]:
            return str(former["metadata"]["uid"])  # created by an operator that died before it wrote the status
        assert (former is None) == (item.former is None), f"{item.name} is created where it is, or replaced where not"
        if former and (read := stored_run(former)) and read.run:
            assert counted(read.run.counts) <= counted(item.run.counts), "counts only grow"
            assert (item.run.read_at - read.run.read_at).total_seconds() >= READ_S, "it is written once in a while"
        self.run_writes += 1
        kept = former["metadata"] if former else {"uid": f"run-{self.run_writes}", "generation": 0}
        changed = {"generation": kept["generation"] + 1, "resourceVersion": str(self.run_writes)}
        manifest["metadata"] |= {"uid": kept["uid"], **changed}
        self.runs[item.name] = manifest
        return str(kept["uid"])

    def _call(self) -> None:
        if self.calls_until_crash is not None and self.calls >= self.calls_until_crash:
            # Questions on their way and answers that were not written down die with the operator.
            self._questions, self._answers = {}, {}
            self._due, self._measurements = {}, {}
            raise Crashed
        self.calls += 1

    def _create(self, manifest: dict[str, Any]) -> None:
        if manifest["kind"] == "HorizontalPodAutoscaler":
            name = manifest["metadata"]["name"]
            made = self.autoscalers[name].created_at if name in self.autoscalers else self.now
            self.autoscalers[name] = Autoscaler(name, True, True, made, copy.deepcopy(manifest["spec"]))
            return
        name, revision = manifest["metadata"]["name"], manifest["metadata"]["labels"][labels.REVISION]
        if manifest["kind"] == "ControllerRevision":
            written = snapshot(manifest, self.name)
            assert written, "the operator can read what it writes"
            self.snapshots[revision], self.uris[revision] = written, written.inputs.model.uri
        elif manifest["kind"] == "Service":
            self.services[revision] = name
        elif labels.is_standby(revision):
            assert not self.adapter
            self.standby[labels.what_runs(revision)] = StandbyPods(manifest["spec"]["replicas"], name)
        else:
            annotations = manifest["metadata"].get("annotations", {})
            record, entry = annotations.get(labels.RECORD, ""), annotations.get(labels.POOL_REPLICAS)
            assert self.adapter == (entry is not None) and not (entry and manifest["spec"]["replicas"])
            desired = int(entry) if entry else manifest["spec"]["replicas"]
            self.pods[revision] = Pods(desired, name=name, kind=manifest["kind"], record=record)
            self._assert_room()

    def _scale(self, kind: str, name: str, replicas: int) -> None:
        for item in self.standby.values():
            if item.name == name:
                item.desired = replicas
                return
        revision = self._workload_named(kind, name)
        up = replicas > self.pods[revision].desired
        if not up:
            self._assert_may_shrink(revision, replicas)
        self.pods[revision].desired = replicas
        if up:
            self._assert_room()

    def _annotate(self, item: Annotate) -> None:
        if item.kind != "ControllerRevision":
            self.pods[self._workload_named(item.kind, item.name)].record = item.text
            return
        [revision] = (key for key, found in self.snapshots.items() if found.name == item.name)
        self.snapshots[revision] = replace(self.snapshots[revision], history=history.parse(item.text))

    def _workload_named(self, kind: str, name: str) -> str:
        made = "ReplicaSet" if self.adapter else kind
        return next(key for key, item in self.pods.items() if (item.kind, item.name) == (made, name))

    def _evict(self, pod: str) -> None:
        for standby in self.standby.values():
            if any(one.name == pod for one in standby.pods):
                standby.pods = [one for one in standby.pods if one.name != pod]
                return
        _, revision, number = pod.split("-")
        item = self.pods[revision]
        item.made.pop(int(number))
        item.replicas, item.placed = item.replicas - 1, item.placed - 1
        item.ready -= int(number) < item.ready

    def _delete(self, kind: str, name: str) -> None:
        if kind == "HorizontalPodAutoscaler":
            self.autoscalers.pop(name, None)
            return
        if kind == "ControllerRevision":
            self.snapshots = {key: item for key, item in self.snapshots.items() if item.name != name}
        elif kind == "Service":
            self.services = {key: item for key, item in self.services.items() if item != name}
        else:
            spent = [key for key, item in self.standby.items() if item.name == name]
            assert not any(self.standby.pop(key).pods for key in spent), "standby pods leave before their ReplicaSet"
            gone = {key: item for key, item in self.pods.items() if (item.kind, item.name) == (kind, name)}
            assert not any(item.replicas for item in gone.values()), "a workload is deleted only when it is empty"
            self.pods = {key: item for key, item in self.pods.items() if key not in gone}

    def _write_status(self, new: Status, rendered: dict[str, Any]) -> None:
        old = self.parsed()
        for item in new.conditions:
            words = WORDS["conditions"][item.type]
            known = (*words["reasons"], *(WORDS["causes"] if words.get("causes") else ()))
            assert item.reason in known, f"docs/status.yaml lacks {item.reason} of {item.type}"
        self._assert_weights(old.traffic, new.traffic, min(self._carriers(old), self._carriers(new)))
        self._assert_mirrors(old.traffic, new)
        self._assert_shadow(old.traffic, new)
        self._assert_confirmed(old, new)
        self._assert_judged(old, new)
        self._assert_one_transition(old, new)
        self._assert_scale(old, new)
        if old.stable_revision != new.stable_revision:
            replaced = self._is_lost(old) and self.all_ready(new.stable_revision or "")
            acked = self._acked_weight(new.stable_revision) == 100
            assert acked or replaced, "I4: the pointer moves at acknowledged weight 100, or from pods that are gone"
        if new.rollout:
            rollout = new.rollout
            key = (rollout.revision, rollout.attempt, rollout.steps_hash, rollout.started_at)
            assert new.rollout.step_index >= self.reached.get(key, 0), "I6: a step is never done twice"
            self.reached[key] = new.rollout.step_index
        self.keep(new, rendered)
        self._note_zeroes()

    def _is_lost(self, status: Status) -> bool:
        """Stable has no ready pod, and had none for the deadline."""
        since = status.rollout and status.rollout.stable_lost_at
        deadline = timedelta(seconds=int(self.spec.get("progressDeadlineSeconds", 600)))  # the CRD's default
        return since is not None and not self.all_ready(status.stable_revision or "") and self.now - since >= deadline

    def _ask(self, calls: tuple[HookCall, ...]) -> None:
        wanted = {call.key: call for call in calls}
        self._answers = {key: answer for key, answer in self._answers.items() if key in wanted}
        self.hook_calls += [
            call for key, call in wanted.items() if key not in self._answers and key not in self._questions
        ]
        self._questions = {key: call for key, call in wanted.items() if key not in self._answers}
        rollout = self.parsed().rollout
        passed = {state.key for state in rollout.hooks if state.outcome is HookOutcome.PASSED} if rollout else set()
        assert not passed & set(wanted), "a hook that passed is not called again"

    def _measure(self, questions: tuple[Question, ...]) -> None:
        wanted = {question.key: question for question in questions}
        self._measurements = {key: answer for key, answer in self._measurements.items() if key in wanted}
        new = {key: question for key, question in wanted.items() if key not in self._measurements}
        self.measured += [question for key, question in new.items() if key not in self._due]
        self._due = new


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
