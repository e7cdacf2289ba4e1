"""Every type of hook by name, in a model cluster: when it is asked, what it holds, what its answer does."""

import itertools
import re
from datetime import timedelta

import pytest

from slipway_operator.api.v1alpha1.hook_state import HookOutcome
from slipway_operator.api.v1alpha1.status import Status
from slipway_operator.model.cluster.plan import Event
from slipway_operator.planning.plan import plan
from slipway_operator.planning.rollout.hook_calls import notices
from tests.support.model_cluster import SETTINGS, Crashed, ModelCluster, healthy, hook, model

STEPS = [{"setWeight": 10}, {"setWeight": 50}]


def world_with(*hooks: dict, steps: list[dict] | None = None, **says: bool) -> ModelCluster:
    """A stable first revision, and a second one asked for."""
    world = healthy(replicas=4, steps=steps or STEPS)
    world.says = {name.replace("_", "-"): answer for name, answer in says.items()}
    world.edit(strategy__hooks=list(hooks), model=model("v2"))
    return world


def abouts(world: ModelCluster, kind: str) -> list[str]:
    """Which questions hooks of a type were put: step, hook and number of their keys."""
    keys = [call.key.split("/")[3:] for call in world.asked if call.hook.type == kind]
    return [f"{step}/{name}/{question.partition('-')[2]}" for step, name, question in keys]


def reasons(world: ModelCluster) -> list[str]:
    return [event.reason for event in world.events]


def state_of(world: ModelCluster, name: str):
    rollout = world.parsed().rollout
    assert rollout
    return next(state for state in rollout.hooks if state.name == name)


def target(world: ModelCluster) -> str:
    return world.parsed().canary_revision or ""


def test_first_revision_asks_nobody() -> None:
    kinds = ("confirm-rollout", "pre-rollout", "rollout", "confirm-promotion", "post-rollout", "rollback")
    world = healthy(strategy={"canary": {"steps": STEPS}, "hooks": [hook(kind) for kind in kinds]})
    assert world.asked == []
    assert world.weights() == {"v1": 100}


def test_hooks_that_say_yes_hold_up_nothing_and_are_asked_once_each() -> None:
    gates = ("confirm-rollout", "confirm-traffic-increase", "confirm-promotion")
    kinds = (*gates, "pre-rollout", "rollout", "post-rollout")
    world = world_with(*(hook(kind) for kind in kinds))
    world.run_until(None)
    world.run(3)
    assert world.weights() == {"v2": 100}
    asked = {kind: abouts(world, kind) for kind in kinds}
    assert asked == {
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
    assert len({call.key for call in world.asked}) == len(world.asked)
    assert "HookFailed" not in reasons(world)
    assert "GateWaiting" not in reasons(world)


def test_confirm_rollout_holds_before_pods_are_made() -> None:
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
    world.says["start"] = True
    world.run_until(None)
    assert world.weights() == {"v2": 100}


def test_pre_rollout_runs_when_pods_are_ready_and_before_the_first_weight() -> None:
    world = world_with(hook("pre-rollout", "smoke"))
    while not world.asked:
        world.reconcile()
        world.pass_time(pods=world.now.second % 2 == 0)
    assert world.pods[target(world)].ready == 1
    assert world.weights() == {"v2": 0, "v1": 100}
    payload = world.asked[0].payload
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
    assert len(abouts(world, kind)) == 1, "a check is one question; its tries are the runner's"


def weights_ever(world: ModelCluster) -> list[int]:
    """Weights that the rejected revision ever had, from the Events."""
    rejected = world.parsed().rollout.revision  # type: ignore[union-attr]
    told = [event.message for event in world.events if event.reason == "TrafficWeightUpdated"]
    return [int(share) for text in told for share in re.findall(rf"{rejected} (\d+)%", text)]


def test_rollout_hook_runs_after_each_acknowledged_weight_step() -> None:
    world = world_with(
        hook("rollout", "load"), steps=[{"setWeight": 10}, {"pause": {"duration": "5s"}}, {"setWeight": 50}]
    )
    world.gateways[0].generation, world.gateways[0].digest = 0, ""
    for _ in range(10):
        world.reconcile()
        world.pass_time(gateways=False)
    assert world.asked == [], "no gateway routes by the weight yet"
    world.run_until(None)
    assert [(call.payload["step"], call.payload["weight"]) for call in world.asked] == [(0, 10), (2, 50)]


def test_confirm_traffic_increase_holds_each_raise() -> None:
    world = world_with(hook("confirm-traffic-increase", "more"), more=False)
    world.run(30)
    assert (world.state(), world.weights()) == ("Shifting", {"v2": 0, "v1": 100})
    world.says["more"] = True
    while world.weights()["v2"] == 0:
        world.run(1)
    world.says["more"] = False
    world.run(200)
    assert world.weights() == {"v2": 10, "v1": 90}, "the yes to 10 is none to 50"
    assert world.asked[-1].payload["nextWeight"] == 50
    world.says["more"] = True
    world.run_until(None)


def test_a_raise_that_healing_takes_is_not_asked_again() -> None:
    world = world_with(hook("confirm-traffic-increase", "more"), steps=[{"setWeight": 50}, {"pause": {}}])
    world.run_until("Paused")
    asked = len(world.asked)
    world.pods[target(world)].ready = 0
    world.run(20)
    assert (world.weights(), len(world.asked)) == ({"v2": 50, "v1": 50}, asked)


def test_steering_by_hand_is_confirmed_too() -> None:
    world = healthy(replicas=4)
    hooks = [hook("confirm-traffic-increase", "more")]
    world.edit(strategy={"canary": {"trafficPercent": 20}, "hooks": hooks}, model=model("v2"))
    world.run_until("Paused")
    world.says = {"more": False}
    world.edit(strategy={"canary": {"trafficPercent": 40}, "hooks": hooks})
    world.run(30)
    assert world.weights() == {"v2": 20, "v1": 80}
    world.edit(strategy={"canary": {"trafficPercent": 10}, "hooks": hooks})
    world.run(10)
    assert world.weights() == {"v2": 10, "v1": 90}, "down needs no yes"
    keys = [call.key for call in world.asked]
    assert len(set(keys)) == len(keys), "each question about each weight has a key of its own"


def test_confirm_promotion_holds_pods_and_weight_where_the_steps_left_them() -> None:
    world = world_with(hook("confirm-promotion", "approval"), approval=False)
    world.run(400)
    assert (world.state(), world.weights()) == ("Promoting", {"v2": 50, "v1": 50})
    assert world.pods[target(world)].desired == 2, "no further pod before the yes"
    assert "waits for gate approval (confirm-promotion, promotion)" in world.parsed().message
    assert world.asked[-1].payload["phase"] == "WaitingPromotion"
    world.says["approval"] = True
    world.run_until(None)
    assert world.weights() == {"v2": 100}


def test_confirm_promotion_holds_the_switch_of_blue_green() -> None:
    world = healthy(replicas=4)
    world.says = {"approval": False}
    world.edit(strategy={"blueGreen": {}, "hooks": [hook("confirm-promotion", "approval")]}, model=model("v2"))
    world.run(60)
    assert world.weights() == {"v2": 0, "v1": 100}
    assert world.pods[target(world)].ready == 4
    world.says["approval"] = True
    world.run_until(None)


def test_without_steps_all_gates_hold_before_the_first_request() -> None:
    kinds = ("confirm-rollout", "pre-rollout", "confirm-traffic-increase", "confirm-promotion")
    world = healthy(replicas=4)
    world.says = dict.fromkeys(("confirm-traffic-increase", "confirm-promotion"), False)
    world.edit(strategy={"hooks": [hook(kind) for kind in kinds]}, model=model("v2"))
    world.run(100)
    assert (world.state(), world.weights()) == ("Promoting", {"v2": 0, "v1": 100})
    world.says = {}
    world.run_until(None)


@pytest.mark.parametrize("end", ["promoted", "rejected", "reverted"])
def test_post_rollout_is_told_of_the_end(end: str) -> None:
    world = world_with(hook("post-rollout", "tell"))
    world.run(3)
    revision = target(world)
    if end == "rejected":
        world.edit(rollout__abort=f"{revision}/1")
    elif end == "reverted":
        world.edit(model=model("v1"))
    world.run_until("Aborted" if end == "rejected" else None)
    world.run(3)
    (call,) = world.asked
    stable = world.parsed().stable_revision
    assert (call.payload["phase"], call.payload["canary"]) == ("Succeeded" if end == "promoted" else "Failed", revision)
    assert call.payload["stable"] == stable
    ended = world.parsed().ended
    assert ended
    assert ended.promoted is (end == "promoted")
    assert ended.hooks[0].outcome is HookOutcome.PASSED


def test_post_rollout_answer_is_only_noted() -> None:
    world = world_with(hook("post-rollout", "tell"), tell=False)
    world.run_until(None)
    world.run(5)
    ended = world.parsed().ended
    assert ended and (ended.hooks[0].outcome, ended.hooks[0].message) == (HookOutcome.FAILED, "403 Forbidden: not yet")
    assert reasons(world).count("HookFailed") == 1
    assert world.parsed().phase == "Healthy"


def test_post_rollout_survives_a_killed_operator() -> None:
    world = world_with(hook("post-rollout", "tell"))
    world.run_until(None)
    world.reconcile()
    world._questions = {}  # killed while the call is on its way
    world.run(5)
    assert [call.key for call in world.asked] == [world.asked[0].key] * 2, "told again, under the same key"
    assert world.parsed().ended.hooks[0].outcome is HookOutcome.PASSED  # type: ignore[union-attr]


def test_rollback_is_polled_in_flight_and_a_yes_rejects() -> None:
    world = world_with(hook("rollback", "button"), steps=[{"setWeight": 10}, {"pause": {}}])
    world.run_until("Paused")
    world.run(5)
    asked, calls = len(world.asked), world.calls
    world.run(150)
    assert len(world.asked) - asked == 10, "every 15 s: the timeout of 10 s and 5 s"
    assert world.calls == calls, "a no is no write"
    world.says["button"] = True
    world.run_until("Aborted", 40)
    abort = world.parsed().rollout.abort  # type: ignore[union-attr]
    assert abort and (abort.reason, abort.message) == ("HookRollback", "hook button (rollback) requested it: 200 OK")
    asked = len(world.asked)
    world.run(100)
    assert len(world.asked) == asked, "nothing is in flight any more"


def test_rollback_is_live_while_a_gate_holds_or_the_spec_is_paused() -> None:
    for change in (
        {"paused": True},
        {"strategy__hooks": [hook("rollback", "button"), hook("confirm-rollout", "start")]},
    ):
        world = world_with(hook("rollback", "button"), start=False)
        world.edit(**change)
        world.run(20)
        world.says["button"] = True
        world.run_until("Aborted", 40)


def test_event_hears_every_event() -> None:
    world = world_with(hook("event", "chat", metadata={"team": "a"}), hook("event", "log"))
    decided = world.reconcile()
    assert decided.events
    told = notices(world.obj(), decided.status, decided.events, world.now)
    assert [call.hook.name for call in told] == ["chat", "log"] * len(decided.events)
    first = told[0].payload
    assert first["metadata"] == {
        "team": "a",
        "eventMessage": decided.events[0].message,
        "eventType": "Normal",
        "eventReason": "RolloutUpdated",
        "timestamp": str(int(world.now.timestamp() * 1000)),
    }
    assert first["phase"] == "Progressing"
    assert len({call.key for call in told}) == len(told)
    assert world.asked == [], "nobody waits for them"


def test_event_hook_of_an_unreadable_status_still_speaks() -> None:
    world = world_with(hook("event"))
    (told,) = notices(world.obj(), Status(), [Event("Warning", "CreateFailed", "quota")], world.now)
    assert told.payload["metadata"]["eventReason"] == "CreateFailed"


def test_gates_are_asked_with_back_off_and_never_busily() -> None:
    world = world_with(hook("confirm-rollout", "start"), start=False)
    moments = []
    for _ in range(400):
        before = len(world.asked)
        world.reconcile()
        if len(world.asked) > before:
            moments.append(world.now)
        world.pass_time()
    gaps = [(later - sooner).total_seconds() for sooner, later in itertools.pairwise(moments)]
    # After 5 s and then as long as it has held, up to 60 s, and the second that an answer takes.
    assert gaps[0] in (6, 7)
    assert gaps == sorted(gaps)
    assert max(gaps) in (61, 62)
    assert len(moments) <= 12
    (written,) = world.parsed().rollout.hooks  # type: ignore[union-attr]
    assert written.asked == len(moments) + 1, "the number of the next question"


def test_between_two_questions_the_plan_sleeps() -> None:
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


def test_an_open_question_waits_for_its_answer_and_for_nothing_else() -> None:
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


def test_gate_events_once_per_transition() -> None:
    world = world_with(hook("confirm-rollout", "start"), start=False)
    world.run(200)
    world.says["start"] = True
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


def test_promote_full_skips_checks_and_keeps_the_red_button() -> None:
    world = world_with(hook("pre-rollout", "smoke"), hook("rollback", "button"), smoke=False, button=False)
    world.reconcile()
    world.edit(rollout__promoteFull=world.parsed().rollout.revision)  # type: ignore[union-attr]
    world.broken = {"file:///models/v2"}
    world.run(5)
    assert abouts(world, "pre-rollout") == []
    world.says["button"] = True
    world.run_until("Aborted", 40)


def test_rollback_to_a_former_revision_asks_no_gate() -> None:
    world = healthy(replicas=4, steps=STEPS)
    world.edit(model=model("v2"))
    world.run_until(None)
    now, former = world.parsed().current_revision, world.parsed().previous_revision
    world.says = dict.fromkeys(("a", "b", "c"), False)
    gates = ("confirm-rollout", "confirm-traffic-increase", "confirm-promotion")
    hooks = [hook(kind, name) for kind, name in zip(gates, "abc", strict=True)]
    world.edit(strategy__hooks=hooks, rollout__rollbackTo=f"{now}/{former}")
    world.reconcile()
    world.run_until(None)
    assert world.weights() == {"v1": 100}


def test_retry_asks_everybody_anew_under_new_keys() -> None:
    world = world_with(hook("pre-rollout", "smoke"), smoke=False)
    world.run_until("Aborted")
    first = world.asked[-1].key
    world.says = {}
    world.edit(rollout__retry=f"{world.parsed().rollout.revision}/2")  # type: ignore[union-attr]
    world.reconcile()
    world.run_until(None)
    assert world.asked[-1].key != first
    assert world.asked[-1].key.split("/")[2] == "2"


def test_a_revision_that_goes_out_again_is_a_new_question() -> None:
    """It is attempt 1 again: a receiver that remembers its answers must not open the gate with an old one."""
    world = world_with(hook("confirm-rollout", "start"))
    world.run_until(None)
    for version in ("v1", "v2"):
        world.edit(model=model(version))
        world.reconcile()
        world.run_until(None)
    keys = [call.key for call in world.asked]
    assert len(keys) == 3
    assert keys[0].split("/")[:5] == keys[2].split("/")[:5]
    assert keys[0] != keys[2]


def test_hooks_are_asked_in_the_order_they_are_written() -> None:
    world = world_with(hook("pre-rollout", "one"), hook("pre-rollout", "two"), one=False)
    world.run_until("Aborted")
    assert [call.hook.name for call in world.asked] == ["one"]


def test_a_hook_removed_from_the_spec_holds_no_longer() -> None:
    world = world_with(hook("confirm-rollout", "start"), start=False)
    world.run(30)
    world.edit(strategy__hooks=[])
    world.run_until(None)


def test_no_question_while_the_spec_is_paused() -> None:
    world = world_with(hook("confirm-rollout", "start"))
    world.edit(paused=True)
    world.run(30)
    assert world.asked == []
    revision = world.parsed().canary_revision
    waits = f"held by spec.paused; revision {revision} waits for gate start (confirm-rollout, start)"
    assert world.parsed().message == waits
    world.edit(paused=False)
    world.run_until(None)


def test_pods_lost_behind_a_closed_gate_are_given_their_whole_deadline() -> None:
    """The clock of the deadline stands while a gate holds; it must not have run out when the hold ends."""
    world = world_with(hook("confirm-promotion", "go"), go=False)
    world.run(300)
    world.broken = {"file:///models/v2"}
    world.says["go"] = True
    world.run(50)
    assert world.state() == "Promoting"
    world.run_until("Aborted")


def test_an_answer_is_written_down_before_it_takes_effect() -> None:
    """A yes that only the operator's memory knows opens nothing: killed then, the next one would not know either."""
    world = world_with(hook("confirm-traffic-increase", "more"))
    while not world._answers:
        world.reconcile()
        world.pass_time()
    assert world._answers, "answered, not yet written"
    decided = plan(world.obj(), world.parsed(), world.observed(), SETTINGS, world.now)
    assert decided.status.traffic == world.parsed().traffic
    assert [state.outcome for state in decided.status.rollout.hooks] == [HookOutcome.PASSED]  # type: ignore[union-attr]


def test_killed_before_any_call_it_asks_no_passed_hook_again_and_ends_the_same() -> None:
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
        # A question whose answer was lost is put again, under the key it had.
        for kind in kinds:
            assert set(abouts(world, kind)) == set(abouts(undisturbed, kind))
        assert len({call.key for call in world.asked}) == len({call.key for call in undisturbed.asked})
    assert points > 25


ALL_KINDS = ("confirm-rollout", "pre-rollout", "confirm-traffic-increase", "rollout", "confirm-promotion")


@pytest.mark.parametrize("surge", [0, 1])
@pytest.mark.parametrize("kind", ["confirm-rollout", "confirm-traffic-increase", "confirm-promotion"])
def test_gates_hold_and_open_where_revisions_take_turns(surge: int, kind: str) -> None:
    """With maxSurge 0 or 1 weight and pods move together: a gate must neither be passed by nor stop for good."""
    hooks = [hook(one) for one in ALL_KINDS]
    world = healthy(replicas=4)
    strategy = {"canary": {"steps": STEPS}, "capacity": {"maxSurge": surge}, "hooks": hooks}
    world.says = {kind: False}
    world.edit(strategy=strategy, model=model("v2"))
    world.run(100)
    held = {"confirm-rollout": 0, "confirm-traffic-increase": 0, "confirm-promotion": 50}[kind]
    assert world.weights().get("v2", 0) == held
    assert f"waits for gate {kind}" in world.parsed().message
    if kind == "confirm-rollout":
        assert sorted(pods.desired for pods in world.pods.values()) == [0, 4], (
            "stable keeps its pods for the time being"
        )
    world.says = {}
    world.run_until(None)
    assert world.weights() == {"v2": 100}


@pytest.mark.parametrize("kind", ["confirm-rollout", "confirm-traffic-increase", "confirm-promotion"])
def test_the_only_pod_is_not_replaced_before_every_gate_is_open(kind: str) -> None:
    """On a full node the new pod has all requests from its first moment: who must confirm is asked before."""
    world = healthy(replicas=1)
    world.places = 1
    capacity = {"policy": "AllowRecreate", "surgeTimeoutSeconds": 5, "deadlineSeconds": 60}
    hooks = [hook(one) for one in ALL_KINDS]
    world.says = {kind: False}
    strategy = {"canary": {"steps": STEPS}, "capacity": capacity, "hooks": hooks}
    world.edit(strategy=strategy, model=model("v2"))
    world.run(200)
    assert world.weights().get("v1") == 100
    assert world.pods[world.parsed().stable_revision or ""].ready == 1, "the old pod serves until it is confirmed"
    assert world.state() != "Aborted"
    world.says = {}
    world.run_until(None)
    assert world.weights() == {"v2": 100}


def test_a_repeated_no_fills_no_list_of_decisions() -> None:
    world = world_with(hook("confirm-rollout", "start"), start=False)
    world.run(600)
    rows = [decision.row for decision in world.parsed().decisions]
    assert rows.count("hook-answered") == 1
    assert "new-revision" in rows
