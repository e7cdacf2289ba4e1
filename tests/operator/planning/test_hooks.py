"""Every type of hook by name, in a model cluster: when it is called, what it holds, the effect of its answer."""

import itertools
import re
from datetime import timedelta

import pytest

from slipway_operator.api.v1alpha1.hooks import HookOutcome
from slipway_operator.api.v1alpha1.status import Status
from slipway_operator.model.cluster.plan import Event
from slipway_operator.model.deployment import spec
from slipway_operator.model.deployment.hooks import Hook, HookCall
from slipway_operator.planning.rollout.hook_calls import notices
from tests.support.model_cluster import SETTINGS, Crashed, ModelCluster, healthy, hook, model
from tests.support.planned import plan

STEPS = [{"setWeight": 10}, {"setWeight": 50}]


def world_with(*hooks: dict, steps: list[dict] | None = None, **answers: bool) -> ModelCluster:
    """A stable first revision, and a second one in the spec."""
    world = healthy(replicas=4, steps=steps or STEPS)
    set_answers(world, **answers)
    world.edit(strategy__hooks=list(hooks), model=model("v2"))
    return world


def set_answers(world: ModelCluster, **answers: bool) -> None:
    """From now on these hooks approve or refuse; `_` stands for `-` in their names."""
    world.hook_answers |= {name.replace("_", "-"): answer for name, answer in answers.items()}


def hook_calls(world: ModelCluster) -> list[HookCall]:
    """All calls of hooks so far; a restarted operator may repeat one."""
    return world.hook_calls


def called_points(world: ModelCluster, kind: str) -> list[str]:
    """The points at which hooks of a type were called: step, hook and number of their keys."""
    keys = [call.key.split("/")[3:] for call in hook_calls(world) if call.hook.type == kind]
    return [f"{step}/{name}/{call.partition('-')[2]}" for step, name, call in keys]


def reasons(world: ModelCluster) -> list[str]:
    return [event.reason for event in world.events]


def state_of(world: ModelCluster, name: str):
    rollout = world.parsed().rollout
    assert rollout
    return next(state for state in rollout.hooks if state.name == name)


def target(world: ModelCluster) -> str:
    return world.parsed().canary_revision or ""


def test_first_revision_calls_no_hook() -> None:
    kinds = ("confirm-rollout", "pre-rollout", "rollout", "confirm-promotion", "post-rollout", "rollback")
    world = healthy(strategy={"canary": {"steps": STEPS}, "hooks": [hook(kind) for kind in kinds]})
    assert hook_calls(world) == []
    assert world.weights() == {"v1": 100}


def test_approving_hooks_delay_nothing_and_are_called_once_each() -> None:
    gates = ("confirm-rollout", "confirm-traffic-increase", "confirm-promotion")
    kinds = (*gates, "pre-rollout", "rollout", "post-rollout")
    world = world_with(*(hook(kind) for kind in kinds))
    world.run_until(None)
    world.run(3)
    assert world.weights() == {"v2": 100}
    assert {kind: called_points(world, kind) for kind in kinds} == {
        "confirm-rollout": ["0/confirm-rollout/1"],
        "pre-rollout": ["0/pre-rollout/1"],
        "confirm-traffic-increase": [
            "0/confirm-traffic-increase/1",
            "1/confirm-traffic-increase/2",
            "2/confirm-traffic-increase/3",
        ],
        "rollout": ["0/rollout/1", "1/rollout/2"],
        "confirm-promotion": ["2/confirm-promotion/1"],
        "post-rollout": ["2/post-rollout/1"],
    }
    assert len({call.key for call in hook_calls(world)}) == len(hook_calls(world))
    assert "HookFailed" not in reasons(world)
    assert "GateWaiting" not in reasons(world)


def test_confirm_rollout_holds_before_pods_are_created() -> None:
    world = world_with(hook("confirm-rollout", "start"), start=False)
    world.run(400)
    assert sum(pods.desired for pods in world.pods.values()) == 4, "no pod beyond stable's"
    status = world.parsed()
    assert status.phase == "Paused", "held by a gate, so no deadline runs: it is 60 s here"
    state = state_of(world, "start")
    since = state.since.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert status.message == (
        f"revision {target(world)} waits for gate start (confirm-rollout, start) since {since}; "
        "last answer: 403 Forbidden: not yet"
    )
    set_answers(world, start=True)
    world.run_until(None)
    assert world.weights() == {"v2": 100}


def test_pre_rollout_runs_when_pods_are_ready_and_before_the_first_weight() -> None:
    world = world_with(hook("pre-rollout", "smoke"))
    while not hook_calls(world):
        world.reconcile()
        world.pass_time(pods=world.now.second % 2 == 0)
    assert world.pods[target(world)].ready == 1
    assert world.weights() == {"v2": 0, "v1": 100}
    payload = hook_calls(world)[0].payload
    assert (payload["type"], payload["weight"], payload["nextWeight"], payload["phase"]) == (
        "pre-rollout",
        0,
        10,
        "Progressing",
    )
    world.run_until(None)


@pytest.mark.parametrize(("kind", "weight"), [("pre-rollout", 0), ("rollout", 10)])
def test_failed_check_rejects_the_revision(kind: str, weight: int) -> None:
    world = world_with(hook(kind, "check"), check=False)
    world.run_until("Aborted")
    abort = world.parsed().rollout.abort  # type: ignore[union-attr]
    assert abort
    assert abort.reason == "HookFailed"
    about = {"pre-rollout": "pods", "rollout": "step 1, weight 10"}[kind]
    assert abort.message == f"hook check ({kind}, {about}) failed: 403 Forbidden: not yet"
    assert world.weights()["v1"] == 100
    assert ("Warning", "HookFailed") in [(event.type, event.reason) for event in world.events]
    assert max(weights_ever(world)) == weight
    assert len(called_points(world, kind)) == 1, "a check is one call; its tries are the runner's"


def weights_ever(world: ModelCluster) -> list[int]:
    """Weights that the rejected revision ever had, from the Events."""
    rejected = world.parsed().rollout.revision  # type: ignore[union-attr]
    messages = [event.message for event in world.events if event.reason == "TrafficWeightUpdated"]
    return [int(share) for text in messages for share in re.findall(rf"{rejected} (\d+)%", text)]


def test_rollout_hook_runs_after_each_acknowledged_weight_step() -> None:
    world = world_with(
        hook("rollout", "load"), steps=[{"setWeight": 10}, {"pause": {"duration": "5s"}}, {"setWeight": 50}]
    )
    world.gateways[0].generation, world.gateways[0].digest = 0, ""
    for _ in range(10):
        world.reconcile()
        world.pass_time(gateways=False)
    assert hook_calls(world) == [], "no gateway routes by the weight yet"
    world.run_until(None)
    assert [(call.payload["step"], call.payload["weight"]) for call in hook_calls(world)] == [(0, 10), (2, 50)]


def test_confirm_traffic_increase_holds_each_raise() -> None:
    world = world_with(hook("confirm-traffic-increase", "more"), more=False)
    world.run(30)
    assert (world.state(), world.weights()) == ("Shifting", {"v2": 0, "v1": 100})
    set_answers(world, more=True)
    while world.weights()["v2"] == 0:
        world.run(1)
    set_answers(world, more=False)
    world.run(200)
    assert world.weights() == {"v2": 10, "v1": 90}, "the approval of 10 is none of 50"
    assert hook_calls(world)[-1].payload["nextWeight"] == 50
    set_answers(world, more=True)
    world.run_until(None)


def test_gate_of_a_weight_is_not_called_again_when_lost_pods_recover() -> None:
    world = world_with(hook("confirm-traffic-increase", "more"), steps=[{"setWeight": 50}, {"pause": {}}])
    world.run_until("Paused")
    before = len(hook_calls(world))
    world.pods[target(world)].ready = 0
    world.run(20)
    assert (world.weights(), len(hook_calls(world))) == ({"v2": 50, "v1": 50}, before)


def test_manual_weight_increase_needs_a_confirmation() -> None:
    world = healthy(replicas=4)
    hooks = [hook("confirm-traffic-increase", "more")]
    world.edit(strategy={"canary": {"trafficPercent": 20}, "hooks": hooks}, model=model("v2"))
    world.run_until("Paused")
    set_answers(world, more=False)
    world.edit(strategy={"canary": {"trafficPercent": 40}, "hooks": hooks})
    world.run(30)
    assert world.weights() == {"v2": 20, "v1": 80}
    world.edit(strategy={"canary": {"trafficPercent": 10}, "hooks": hooks})
    world.run(10)
    assert world.weights() == {"v2": 10, "v1": 90}, "a lower weight needs no approval"
    keys = [call.key for call in hook_calls(world)]
    assert len(set(keys)) == len(keys), "each call about each weight has a key of its own"


def test_confirm_promotion_holds_pods_and_weight_where_the_steps_left_them() -> None:
    world = world_with(hook("confirm-promotion", "approval"), approval=False)
    world.run(400)
    assert (world.state(), world.weights()) == ("Promoting", {"v2": 50, "v1": 50})
    assert world.pods[target(world)].desired == 2, "no further pod before the approval"
    assert "waits for gate approval (confirm-promotion, promotion)" in world.parsed().message
    assert hook_calls(world)[-1].payload["phase"] == "WaitingPromotion"
    set_answers(world, approval=True)
    world.run_until(None)
    assert world.weights() == {"v2": 100}


def test_confirm_promotion_holds_the_switch_of_blue_green() -> None:
    world = healthy(replicas=4)
    set_answers(world, approval=False)
    world.edit(strategy={"blueGreen": {}, "hooks": [hook("confirm-promotion", "approval")]}, model=model("v2"))
    world.run(60)
    assert world.weights() == {"v2": 0, "v1": 100}
    assert world.pods[target(world)].ready == 4
    set_answers(world, approval=True)
    world.run_until(None)


def test_without_steps_all_gates_hold_before_the_first_request() -> None:
    kinds = ("confirm-rollout", "pre-rollout", "confirm-traffic-increase", "confirm-promotion")
    world = healthy(replicas=4)
    set_answers(world, confirm_traffic_increase=False, confirm_promotion=False)
    world.edit(strategy={"hooks": [hook(kind) for kind in kinds]}, model=model("v2"))
    world.run(100)
    assert (world.state(), world.weights()) == ("Promoting", {"v2": 0, "v1": 100})
    world.hook_answers = {}
    world.run_until(None)


@pytest.mark.parametrize("end", ["promoted", "rejected", "reverted"])
def test_post_rollout_is_called_with_the_result(end: str) -> None:
    world = world_with(hook("post-rollout", "report"))
    world.run(3)
    revision = target(world)
    if end == "rejected":
        world.edit(rollout__abort=f"{revision}/1")
    elif end == "reverted":
        world.edit(model=model("v1"))
    world.run_until("Aborted" if end == "rejected" else None)
    world.run(3)
    (call,) = hook_calls(world)
    stable = world.parsed().stable_revision
    assert (call.payload["phase"], call.payload["canary"]) == ("Succeeded" if end == "promoted" else "Failed", revision)
    assert call.payload["stable"] == stable
    ended = world.parsed().ended
    assert ended
    assert ended.promoted is (end == "promoted")
    assert ended.hooks[0].outcome is HookOutcome.PASSED


def test_post_rollout_answer_is_recorded_and_has_no_effect() -> None:
    world = world_with(hook("post-rollout", "report"), report=False)
    world.run_until(None)
    world.run(5)
    ended = world.parsed().ended
    assert ended and (ended.hooks[0].outcome, ended.hooks[0].message) == (HookOutcome.FAILED, "403 Forbidden: not yet")
    assert reasons(world).count("HookFailed") == 1
    assert world.parsed().phase == "Healthy"


def test_post_rollout_survives_a_killed_operator() -> None:
    world = world_with(hook("post-rollout", "report"))
    world.run_until(None)
    world.reconcile()
    world._questions = {}  # killed while the call is on its way
    world.run(5)
    assert [call.key for call in hook_calls(world)] == [hook_calls(world)[0].key] * 2, "called again, with the same key"
    assert world.parsed().ended.hooks[0].outcome is HookOutcome.PASSED  # type: ignore[union-attr]


def test_rollback_hook_is_polled_in_flight_and_an_approval_rejects() -> None:
    world = world_with(hook("rollback", "button"), steps=[{"setWeight": 10}, {"pause": {}}])
    world.run_until("Paused")
    world.run(5)
    before, api_calls = len(hook_calls(world)), world.calls
    world.run(150)
    assert len(hook_calls(world)) - before == 10, "every 15 s: the timeout of 10 s and 5 s"
    assert world.calls == api_calls, "a refusal is not written"
    set_answers(world, button=True)
    world.run_until("Aborted", 40)
    abort = world.parsed().rollout.abort  # type: ignore[union-attr]
    assert abort and (abort.reason, abort.message) == ("HookRollback", "hook button (rollback) requested it: 200 OK")
    before = len(hook_calls(world))
    world.run(100)
    assert len(hook_calls(world)) == before, "no rollout is in flight any more"


def test_rollback_hook_works_while_a_gate_holds_or_the_spec_is_paused() -> None:
    for change in (
        {"paused": True},
        {"strategy__hooks": [hook("rollback", "button"), hook("confirm-rollout", "start")]},
    ):
        world = world_with(hook("rollback", "button"), start=False)
        world.edit(**change)
        world.run(20)
        set_answers(world, button=True)
        world.run_until("Aborted", 40)


def hooks_of(world: ModelCluster) -> tuple[Hook, ...]:
    return spec.hooks_of(spec.parse(world.obj()), world.obj())


def test_event_hook_gets_every_event() -> None:
    world = world_with(hook("event", "chat", metadata={"team": "a"}), hook("event", "log"))
    decided = world.reconcile()
    assert decided.events
    calls = notices(world.obj(), hooks_of(world), decided.status, decided.events, world.now)
    assert [call.hook.name for call in calls] == ["chat", "log"] * len(decided.events)
    first = calls[0].payload
    assert first["metadata"] == {
        "team": "a",
        "eventMessage": decided.events[0].message,
        "eventType": "Normal",
        "eventReason": "RolloutUpdated",
        "timestamp": str(int(world.now.timestamp() * 1000)),
    }
    assert first["phase"] == "Progressing"
    assert len({call.key for call in calls}) == len(calls)
    assert hook_calls(world) == [], "a rollout does not wait for event hooks"


def test_event_hook_is_called_with_an_unreadable_status() -> None:
    world = world_with(hook("event"))
    (call,) = notices(world.obj(), hooks_of(world), Status(), [Event("Warning", "CreateFailed", "quota")], world.now)
    assert call.payload["metadata"]["eventReason"] == "CreateFailed"


def test_gates_are_called_with_backoff() -> None:
    world = world_with(hook("confirm-rollout", "start"), start=False)
    moments = []
    for _ in range(400):
        before = len(hook_calls(world))
        world.reconcile()
        if len(hook_calls(world)) > before:
            moments.append(world.now)
        world.pass_time()
    gaps = [(later - sooner).total_seconds() for sooner, later in itertools.pairwise(moments)]
    # After 5 s, then after as long as the gate has held, up to 60 s, and one second for the answer.
    assert gaps[0] in (6, 7)
    assert gaps == sorted(gaps)
    assert max(gaps) in (61, 62)
    assert len(moments) <= 12
    (written,) = world.parsed().rollout.hooks  # type: ignore[union-attr]
    assert written.asked == len(moments) + 1, "the number of the next call"


def test_plan_waits_between_two_calls_of_a_gate() -> None:
    world = world_with(hook("confirm-rollout", "start"), start=False)
    world.run(30)
    state = state_of(world, "start")
    assert state.outcome is HookOutcome.WAITING
    world.now = state.at + timedelta(seconds=1)  # type: ignore[operator]
    decided = world.reconcile()
    assert decided.calls == ()
    assert decided.requeue_after_s is not None
    assert decided.requeue_after_s > 3
    assert decided.status == world.parsed()


def test_open_call_waits_only_for_its_answer_or_the_deadline() -> None:
    world = world_with(hook("confirm-rollout", "start"))
    while not world._questions:
        world.reconcile()
    for gateway in world.gateways:
        gateway.follow(world.parsed().traffic)
    world.reconcile()
    decided = world.reconcile()
    assert [call.hook.name for call in decided.calls] == ["start"]
    assert decided.requeue_after_s
    assert decided.requeue_after_s > 50, "only the deadline is ahead"


def test_gates_have_one_event_per_transition() -> None:
    world = world_with(hook("confirm-rollout", "start"), start=False)
    world.run(200)
    set_answers(world, start=True)
    world.run_until(None)
    assert reasons(world).count("GateWaiting") == 1
    assert reasons(world).count("GateOpened") == 1


@pytest.mark.parametrize("way", ["abort", "supersede", "promoteFull"])
def test_intents_pass_through_a_closed_gate(way: str) -> None:
    world = world_with(hook("confirm-traffic-increase", "more"), hook("confirm-promotion", "go"), more=False, go=False)
    world.run(20)
    first = target(world)
    if way == "promoteFull":
        world.edit(rollout__promoteFull=first)
        world.run_until(None)
        assert world.weights() == {"v2": 100}
        return
    if way == "abort":
        world.edit(rollout__abort=f"{first}/1")
        world.run_until("Aborted")
    else:
        world.edit(model=model("v3"))
        world.run(60)
        assert world.parsed().rollout.revision != first  # type: ignore[union-attr]
    assert world.weights()["v1"] == 100


def test_promote_full_passes_the_gate_of_the_promotion() -> None:
    world = world_with(hook("confirm-promotion", "go"), go=False)
    world.run(60)
    assert world.state() == "Promoting"
    world.edit(rollout__promoteFull=target(world))
    world.run_until(None)
    assert world.weights() == {"v2": 100}
    assert reasons(world).count("SkipSteps") == 1


def test_promote_full_skips_checks_and_keeps_the_rollback_hook() -> None:
    world = world_with(hook("pre-rollout", "smoke"), hook("rollback", "button"), smoke=False, button=False)
    world.reconcile()
    world.edit(rollout__promoteFull=world.parsed().rollout.attempt_token)  # type: ignore[union-attr]
    world.broken = {"file:///models/v2"}
    world.run(5)
    assert called_points(world, "pre-rollout") == []
    set_answers(world, button=True)
    world.run_until("Aborted", 40)


def test_rollback_to_a_former_revision_calls_no_gate() -> None:
    world = healthy(replicas=4, steps=STEPS)
    world.edit(model=model("v2"))
    world.run_until(None)
    now, former = world.parsed().current_revision, world.parsed().previous_revision
    set_answers(world, a=False, b=False, c=False)
    gates = ("confirm-rollout", "confirm-traffic-increase", "confirm-promotion")
    hooks = [hook(kind, name) for kind, name in zip(gates, "abc", strict=True)]
    world.edit(strategy__hooks=hooks, rollout__rollbackTo=f"{now}/{former}")
    world.reconcile()
    world.run_until(None)
    assert world.weights() == {"v1": 100}


def test_retry_calls_hooks_again_with_new_keys() -> None:
    world = world_with(hook("pre-rollout", "smoke"), smoke=False)
    world.run_until("Aborted")
    first = hook_calls(world)[-1].key
    world.hook_answers = {}
    world.edit(rollout__retry=f"{world.parsed().rollout.revision}/2")  # type: ignore[union-attr]
    world.reconcile()
    world.run_until(None)
    assert hook_calls(world)[-1].key != first
    assert hook_calls(world)[-1].key.split("/")[2] == "2"


def test_revision_that_is_rolled_out_again_has_new_keys() -> None:
    """Its attempts are counted on: a receiver that caches its answers must not open the gate with an old one."""
    world = world_with(hook("confirm-rollout", "start"))
    world.run_until(None)
    stable = world.parsed().stable_revision
    for version in ("v1", "v2"):
        world.edit(model=model(version))
        world.reconcile()
        world.run_until(None)
    keys = [call.key for call in hook_calls(world)]
    assert len(keys) == 3
    assert [keys[0].split("/")[1:3], keys[2].split("/")[1:3]] == [[stable, "1"], [stable, "2"]]


def test_hooks_are_called_in_the_order_of_the_spec() -> None:
    world = world_with(hook("pre-rollout", "one"), hook("pre-rollout", "two"), one=False)
    world.run_until("Aborted")
    assert [call.hook.name for call in hook_calls(world)] == ["one"]


def test_a_hook_removed_from_the_spec_holds_no_longer() -> None:
    world = world_with(hook("confirm-rollout", "start"), start=False)
    world.run(30)
    world.edit(strategy__hooks=[])
    world.run_until(None)


def test_no_hook_is_called_while_the_spec_is_paused() -> None:
    world = world_with(hook("confirm-rollout", "start"))
    world.edit(paused=True)
    world.run(30)
    assert hook_calls(world) == []
    revision = world.parsed().canary_revision
    waits = f"held by spec.paused; revision {revision} waits for gate start (confirm-rollout, start)"
    assert world.parsed().message == waits
    world.edit(paused=False)
    world.run_until(None)


def test_pods_lost_behind_a_closed_gate_get_their_whole_deadline() -> None:
    """The clock of the deadline stops while a gate holds; the deadline must not be over when the hold ends."""
    world = world_with(hook("confirm-promotion", "go"), go=False)
    world.run(300)
    world.broken = {"file:///models/v2"}
    set_answers(world, go=True)
    world.run(50)
    assert world.state() == "Promoting"
    world.run_until("Aborted")


def test_answer_is_written_before_it_takes_effect() -> None:
    """An approval that is only in the memory of the operator opens nothing: a restart would lose it."""
    world = world_with(hook("confirm-traffic-increase", "more"))
    while not world._answers:
        world.reconcile()
        world.pass_time()
    assert world._answers, "answered, not yet written"
    decided = plan(world.obj(), world.parsed(), world.observed(), SETTINGS, world.now)
    assert decided.status.traffic == world.parsed().traffic
    assert [state.outcome for state in decided.status.rollout.hooks] == [HookOutcome.PASSED]  # type: ignore[union-attr]


def test_operator_killed_before_any_call_repeats_no_passed_hook() -> None:
    kinds = (
        "confirm-rollout",
        "pre-rollout",
        "confirm-traffic-increase",
        "rollout",
        "confirm-promotion",
        "post-rollout",
    )
    hooks = [hook(kind) for kind in kinds]

    def run(calls_until_crash: int | None) -> ModelCluster:
        world = world_with(*hooks)
        world.calls_until_crash = None if calls_until_crash is None else world.calls + calls_until_crash
        for _ in range(45):
            try:
                world.reconcile()
            except Crashed:
                world.calls_until_crash = None
            world.pass_time()
        return world

    undisturbed = run(None)
    first = world_with(*hooks).calls
    points = undisturbed.calls - first
    for number in range(points):
        world = run(number)
        assert world.fixpoint() == undisturbed.fixpoint()
        # A call whose answer was lost is repeated with its key.
        for kind in kinds:
            assert set(called_points(world, kind)) == set(called_points(undisturbed, kind))
        assert len({call.key for call in hook_calls(world)}) == len({call.key for call in hook_calls(undisturbed)})
    assert points > 25


ALL_KINDS = ("confirm-rollout", "pre-rollout", "confirm-traffic-increase", "rollout", "confirm-promotion")


@pytest.mark.parametrize("surge", [0, 1])
@pytest.mark.parametrize("kind", ["confirm-rollout", "confirm-traffic-increase", "confirm-promotion"])
def test_gates_hold_and_open_where_revisions_take_turns(surge: int, kind: str) -> None:
    """With maxSurge 0 or 1 weight and pods change together: a gate must hold both, and none once it is open."""
    hooks = [hook(one) for one in ALL_KINDS]
    world = healthy(replicas=4)
    strategy = {"canary": {"steps": STEPS}, "capacity": {"maxSurge": surge}, "hooks": hooks}
    set_answers(world, **{kind: False})
    world.edit(strategy=strategy, model=model("v2"))
    world.run(100)
    held = {"confirm-rollout": 0, "confirm-traffic-increase": 0, "confirm-promotion": 50}[kind]
    assert world.weights().get("v2", 0) == held
    assert f"waits for gate {kind}" in world.parsed().message
    if kind == "confirm-rollout":
        assert sorted(pods.desired for pods in world.pods.values()) == [0, 4], (
            "stable keeps its pods for the time being"
        )
    world.hook_answers = {}
    world.run_until(None)
    assert world.weights() == {"v2": 100}


@pytest.mark.parametrize("kind", ["confirm-rollout", "confirm-traffic-increase", "confirm-promotion"])
def test_the_only_pod_is_not_replaced_before_every_gate_is_open(kind: str) -> None:
    """On a full node the new pod gets all requests from its first moment: gates are called before."""
    world = healthy(replicas=1)
    world.places = 1
    capacity = {"policy": "AllowRecreate", "surgeTimeoutSeconds": 5, "deadlineSeconds": 60}
    hooks = [hook(one) for one in ALL_KINDS]
    set_answers(world, **{kind: False})
    strategy = {"canary": {"steps": STEPS}, "capacity": capacity, "hooks": hooks}
    world.edit(strategy=strategy, model=model("v2"))
    world.run(200)
    assert world.weights().get("v1") == 100
    assert world.pods[world.parsed().stable_revision or ""].ready == 1, "the old pod serves until it is confirmed"
    assert world.state() != "Aborted"
    world.hook_answers = {}
    world.run_until(None)
    assert world.weights() == {"v2": 100}


def test_repeated_refusal_adds_one_decision() -> None:
    world = world_with(hook("confirm-rollout", "start"), start=False)
    world.run(600)
    rows = [decision.row for decision in world.parsed().decisions]
    assert rows.count("hook-answered") == 1
    assert "new-revision" in rows
