"""The invariants of a rollout (I1-I7), asserted on every write that the operator makes."""

from dataclasses import dataclass, field
from datetime import datetime

from slipway_contracts.route_table import Traffic
from slipway_operator.api.v1alpha1.analysis_run import Counts
from slipway_operator.api.v1alpha1.hooks import HookOutcome, HookType
from slipway_operator.api.v1alpha1.status import Mode, SleepState, State, Status
from slipway_operator.model.deployment.strategy import parse_strategy
from slipway_operator.model.labels import baseline_of, what_runs
from slipway_operator.planning.sizing.canary import replicas_for
from tests.support.model_world import World


@dataclass
class WatchedWorld(World):
    """A world that remembers what it needs to know whether a write may be."""

    zero_since: dict[str, datetime] = field(default_factory=dict)  # when a revision's weight 0 was acknowledged
    reached: dict[tuple[str, int, str, datetime], int] = field(default_factory=dict)  # highest step of an attempt
    delays_changed: bool = False
    surge_changed: bool = False
    replicas_walk: bool = False  # up again while pods of former revisions drain, which are not to make way
    seen_serving: dict[str, int] = field(default_factory=dict)  # standby pods that served when the operator looked
    served: set[str] = field(default_factory=set)  # revisions that ever had weight

    def _assert_scale(self, old: Status, new: Status) -> None:
        """An autoscaler divides demand by the replicas, and looks for load in the pods of the selector."""
        live = {name for name in (new.stable_revision, new.rollout and new.rollout.revision) if name}
        if new.rollout and new.rollout.state is State.ABORTED:
            live -= {new.rollout.revision} - {new.stable_revision}
        plain = f"slipway.dev/modeldeployment=chat,slipway.dev/revision in ({','.join(sorted(live))})"
        if self.adapter:
            assert new.selector is None, "it has no scale"
            return
        assert (new.selector or "").removesuffix(",app.kubernetes.io/component=server") == plain
        present = sum(
            item.replicas + self.seen_serving.get(name, 0) for name, item in self.pods.items() if name in live
        )
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
            assert self.all_ready(mirror.revision) > 0, "a mirror needs a ready pod"
        if old and new.traffic and old.mirror_routes != mirrors:
            assert new.traffic.generation > old.generation, "what is mirrored is counted by generation"

    def _assert_shadow(self, old: Traffic | None, new: Status) -> None:
        """Pairs are compared in an analysis, before any client is served: a revision under test beside its twin."""
        shadow = new.traffic.twin_shadow if new.traffic else None
        if shadow and new.traffic:
            assert new.rollout and new.rollout.state is State.ANALYZING and new.rollout.analysis
            assert (shadow.revision, shadow.twin) == (new.rollout.revision, new.stable_revision)
            assert new.traffic.weight(shadow.revision) == 0, "no client is served while copies are compared"
            twin = shadow.twin if shadow.reference else baseline_of(shadow.twin)
            assert self.all_ready(shadow.revision) and self.all_ready(twin), "both sides answer"
        if old and new.traffic and old.twin_shadow != shadow:
            assert new.traffic.generation > old.generation, "pairs are counted by generation"

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
            required = hook["type"] in (HookType.CONFIRM_TRAFFIC_INCREASE, *first)
            assert not required or hook["name"] in open_now, f"{hook['name']} did not confirm the weight"

    def _assert_one_transition(self, old: Status, new: Status) -> None:
        """D3 of ARCHITECTURE.md: each row of the table is written before the next one is considered."""
        rows = {item.row for item in new.decisions if item not in old.decisions}
        assert len(rows) <= 1, f"one reconcile took the rows {sorted(rows)}"

    def _assert_judged(self, old: Status, new: Status) -> None:
        """What follows from a verdict follows from one that was written before; counts only grow within a run."""
        before, after = old.rollout, new.rollout
        if not (before and after and before.attempt_token == after.attempt_token):
            return
        verdicts = [run.verdict.outcome for run in (before.analysis, before.background) if run and run.verdict]
        if after.abort and not before.abort and after.abort.reason == "AnalysisFailed":
            assert "Fail" in verdicts, "an analysis rejects by what is written down"
        passed = [item for item in new.decisions if item.row == "analysis-passed" and item.at == self.now]
        if passed and passed[-1] not in old.decisions:
            assert before.analysis and before.analysis.verdict and before.analysis.verdict.outcome == "Pass"
            assert before.analysis.id == before.step_token, "each step has a verdict of its own"

    def _assert_carries(self, revision: str, weight: int, table: Traffic, carriers: int) -> None:
        ready = self.all_ready(revision)
        others = [b.revision for b in table.backends if what_runs(b.revision) != what_runs(revision)]
        last_healthy = not any(self.all_ready(other) for other in others)
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
            there = replicas + len(self.serving(revision))
            assert there >= replicas_for(weight, self._carriers()), "I1: shrunk below its weight"
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
            # A rejected revision makes room for the next one where surge is short.
            rejected = any(token.startswith(f"{revision}/") for token in parsed.aborted_revisions)
            yields = rejected and parsed.canary_revision not in (None, revision)
            known = self.delays_changed or short or yields or self.places is not None
            assert waited >= delay or known, f"I2: pods leave after {waited} s, not {delay}"

    def _assert_may_sleep(self) -> None:
        """What a gateway has in hand when pods leave, it holds; a new one has no table yet."""
        following = [item for item in self.gateways if item.generation is not None]
        assert all(item.asleep for item in following), "pods leave once every gateway holds what comes"
        assert self.parsed().traffic.asleep  # type: ignore[union-attr]
        assert not any(item.open for item in self.gateways), "and none has a request at a pod"

    def _assert_room(self) -> None:
        """I7, on every growth: replicas and surge, and what a shrunk spec or surge still has to drain."""
        serving = sum(len(self.serving(name)) for name in self.standby)  # those that wait have room of their own
        growth = sum(item.desired for item in self.pods.values()) + serving
        replicas = self.spec.get("replicas", 1)
        left = self._live() if self.replicas_walk else self.pods.keys()
        draining = sum(item.desired for name, item in self.pods.items() if item.desired > replicas or name not in left)
        surge = parse_strategy(self.spec.get("strategy") or {}).capacity.surge(replicas)
        most = replicas + surge + draining
        assert growth <= most or self.surge_changed, f"I7: {growth} pods for {replicas} replicas and {surge} more"
        assert growth <= replicas + max(replicas, surge) + draining, f"I7: {growth} pods for {replicas} replicas"

    def _note_zeroes(self) -> None:
        for revision in self.pods:
            if self._acked_weight(revision) == 0:
                self.zero_since.setdefault(revision, self.now)
            elif self.parsed().traffic and self.parsed().traffic.weight(revision) > 0:  # type: ignore[union-attr]
                self.zero_since.pop(revision, None)


def counted(counts: tuple[Counts, ...]) -> int:
    """Requests that are counted, over all metrics and epochs."""
    return sum(epoch.canary_units + epoch.stable_units for item in counts for epoch in item.epochs)
