"""The tree of `slipway status`, word for word."""

import io
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from slipway_cli.objects.bad_when_true import BAD_WHEN_TRUE
from slipway_cli.views import status
from slipway_cli.views.tree import PLAIN_WIDTH, build_tree
from tests.cli.objects import CANARY, STABLE, deployment, event, failing_fetch, idle, in_flight, pod

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def look(obj: dict[str, Any], pods: Any = (), events: Any = (), notes: Any = ()) -> status.View:
    return status.build_view(obj, pods, events, NOW, notes)


def drawn(seen: status.View) -> list[str]:
    paper = io.StringIO()
    Console(file=paper, width=PLAIN_WIDTH, no_color=True, highlight=False).print(build_tree(seen, NOW))
    return paper.getvalue().splitlines()


def test_a_canary_that_waits_and_a_pod_that_does_not_come_up() -> None:
    pods = [pod(STABLE, "x1"), pod(STABLE, "x2"), pod(CANARY, "y1", **failing_fetch())]
    events = [
        event("RolloutPaused", "revision b pauses", "2026-01-01T11:56:48Z", type="Normal"),
        event("CreateFailed", "quota", "2026-01-01T11:55:00Z", type="Warning", count=3),
    ]
    assert drawn(look(in_flight(), pods, events)) == [
        "demo/chat  Paused  step 2/4  weight 10%  ready 2/3  model chat",
        "step 2 of 4: revision bbbbbbbbbb has weight 10",
        "attempt 1 of revision bbbbbbbbbb began 5m ago",
        "step 2 of 4 (Paused) for 3m12s",
        "├── canary bbbbbbbbbb  v2  weight 10%  ready 0/1",
        "│   └── chat-bbbbbbbbbb-y1  CrashLoopBackOff  0/1  restarts 3  10m  "
        "container fetch: shard 2 is missing (exit code 1)",
        "├── stable aaaaaaaaaa  v1  weight 90%  ready 2/2",
        "│   ├── chat-aaaaaaaaaa-x1  Running  1/1  restarts 0  10m",
        "│   └── chat-aaaaaaaaaa-x2  Running  1/1  restarts 0  10m",
        "├── old cccccccccc  weight 0%  ready 1/1  in flight 4  may leave at 2026-01-01T12:00:30Z",
        "├── steps",
        "│   ├── [x] 1 setWeight 10",
        "│   ├── [>] 2 pause until it is promoted",
        "│   ├── [ ] 3 setWeight 50",
        "│   └── [ ] 4 pause 10m",
        "├── not as it should be",
        "│   └── Available is False (PodsNotReady) for 50s: 2 of 3 pods are ready",
        "└── last events",
        "    ├── 5m ago  CreateFailed (x3)  quota",
        "    └── 3m12s ago  RolloutPaused  revision b pauses",
    ]


def test_healthy_deployment_takes_two_lines() -> None:
    assert drawn(look(idle(ready="2/2"))) == ["demo/chat  Healthy  ready 2/2", "serving"]


@pytest.mark.finding("S2")
def test_deployment_without_its_model_name_is_shown_with_the_conflict() -> None:
    """S2: the loser looked like a deployment that serves."""
    condition = {
        "type": "NameConflict",
        "status": "True",
        "reason": "ModelNameTaken",
        "message": "it belongs to a/chat",
    }
    lines = drawn(
        look(deployment({"phase": "Degraded", "message": "why", "model": "demo/chat", "conditions": [condition]}))
    )
    assert lines[0] == "demo/chat  Degraded  model demo/chat"
    assert "NameConflict is True (ModelNameTaken)" in lines[-1] and "it belongs to a/chat" in lines[-1]


@pytest.mark.parametrize("kind", sorted(BAD_WHEN_TRUE))
def test_a_condition_that_is_bad_when_true_is_shown_and_when_false_it_is_not(kind: str) -> None:
    def lines(status: str) -> list[str]:
        condition = {"type": kind, "status": status, "reason": "Why", "message": "because"}
        return drawn(look(deployment({"phase": "Healthy", "message": "serving", "conditions": [condition]})))

    assert f"{kind} is True (Why)" in lines("True")[-1]
    assert not any(kind in line for line in lines("False"))


def test_deployment_that_the_operator_has_not_seen() -> None:
    obj = deployment()
    obj["status"] = {}
    assert drawn(look(obj)) == [
        "demo/chat  Pending",
        "the operator has not looked at it yet",
        "the operator has not looked at the last change of the spec yet",
    ]


def test_a_rejected_rollout_shows_the_step_where_it_ended() -> None:
    lines = drawn(look(in_flight("Aborted", "Degraded")))
    assert "│   ├── [!] 2 pause until it is promoted" in lines
    assert not [line for line in lines if "deadline" in line]


def test_rollout_that_waits_for_pods_shows_its_deadline() -> None:
    lines = drawn(look(in_flight("Provisioning", "Progressing", progressDeadlineSeconds=300)))
    assert "last progress of pods 3m20s ago, deadline 300s" in lines


def test_steps_that_the_operator_counts_otherwise_are_not_shown() -> None:
    strategy = {"canary": {"steps": [{"setWeight": 10}]}}
    assert look(in_flight(strategy=strategy)).steps == ()


def test_steps_of_a_newer_operator_are_shown_as_they_are_written() -> None:
    steps = [{"setHeaderRoute": {"match": [1]}}, {"setCanaryScale": {"replicas": 1}}, {"analysis": {}}, {"pause": {}}]
    texts = [line.text for line in look(in_flight(strategy={"canary": {"steps": steps}})).steps]
    assert texts[:3] == ['setHeaderRoute {"match": [1]}', 'setCanaryScale {"replicas": 1}', "analysis {}"]


def test_forbidden_objects_are_named() -> None:
    assert drawn(look(idle(), notes=["pods: you may not do this"]))[-2:] == [
        "└── not shown",
        "    └── pods: you may not do this",
    ]


def test_markup_in_foreign_messages_is_escaped() -> None:
    assert drawn(look(idle(message="[red]model[/red] [bold")))[1] == "[red]model[/red] [bold"


def test_only_the_last_events_are_shown_oldest_first() -> None:
    events = [event(f"E{minute:02}", "m", f"2026-01-01T11:{minute:02}:00Z") for minute in (9, 2, 7, 1, 8, 3, 4, 5, 6)]
    assert [item.reason for item in look(idle(), events=events).events] == ["E04", "E05", "E06", "E07", "E08", "E09"]


def test_without_events_the_last_decisions_are_shown() -> None:
    decisions = [
        *(1, "forged", "99:00 step-done: a"),
        "2026-01-01T11:59:00Z step-done: step 1 of 4 is done (Normal RolloutStepCompleted)",
    ]
    assert drawn(look(idle(decisions=decisions)))[-1] == "    └── 1m ago  step-done  step 1 of 4 is done"


def test_wait_for_capacity_shows_its_start() -> None:
    obj = in_flight("CapacityWait", "Progressing")
    obj["status"]["rollout"] |= {"capacitySince": "2026-01-01T11:58:00Z", "capacityMode": "Surge"}
    assert "waits for capacity for 2m, in mode Surge" in drawn(look(obj))


def test_headline_is_one_line() -> None:
    assert status.format_headline(look(in_flight())) == (
        "Paused step 2/4 [v2 10% 0/1, v1 90% 2/2, cccccccccc 0% 1/1] step 2 of 4: revision bbbbbbbbbb has weight 10"
    )
    assert status.format_headline(look(idle())) == "Healthy [no pods] serving"


def test_as_data_is_camel_case_without_what_is_not_known() -> None:
    data = status.to_data(look(in_flight(), [pod(CANARY, "y1")]))
    canary = data["revisions"][0]
    assert canary["pods"][0]["createdAt"] == "2026-01-01T11:50:00Z"
    assert "inflight" not in canary and data["revisions"][2]["leavesAt"] == "2026-01-01T12:00:30Z"


@pytest.mark.finding("S11")
def test_a_rollback_that_holds_names_both_revisions_the_rejection_and_the_way_out() -> None:
    text = f"revision {CANARY}, attempt 1, is rejected: it was too slow"
    decision = f"2026-01-01T11:00:00Z abort: {text} (Warning RolloutAborted)"
    obj = idle(currentRevision=CANARY, abortedRevisions=[f"{CANARY}/1"], decisions=[decision])
    obj["spec"]["rollout"] = {"rollbackTo": f"{CANARY}/{STABLE}"}
    line = (
        f"rollback holds: revision {STABLE} runs in place of {CANARY}, which spec.model describes (it was too slow); "
        f"ends when spec.model changes, or with `slipway undo chat --to {CANARY}`"
    )
    seen = look(obj)
    assert line in drawn(seen)
    assert status.format_headline(seen).endswith(line)
    assert status.to_data(seen)["rollback"] == line


@pytest.mark.finding("S11")
@pytest.mark.parametrize("token", [f"dddddddddd/{STABLE}", f"{CANARY}/eeeeeeeeee"])
def test_a_rollback_of_a_former_spec_or_to_an_unknown_revision_does_not_hold(token: str) -> None:
    obj = idle(currentRevision=CANARY)
    obj["spec"]["rollout"] = {"rollbackTo": token}
    assert look(obj).rollback is None


def standby(name: str, *, loaded: bool, revision: str) -> dict[str, Any]:
    """A pod of the ReplicaSet of standby pods, whose label says whether it serves."""
    serves = revision == STABLE
    conditions = [
        {"type": "Ready", "status": str(loaded and serves)},
        {"type": "ContainersReady", "status": str(loaded)},
    ]
    state = {"name": "server", "ready": loaded, "restartCount": 0, "state": {"running": {}}}
    made = pod(STABLE, name, phase="Running", conditions=conditions, containerStatuses=[state])
    made["metadata"] |= {"ownerReferences": [{"uid": "s1"}], "labels": {"slipway.dev/revision": revision}}
    return made


def test_standby_pods_have_rows_that_say_what_they_do() -> None:
    revision = {"revision": STABLE, "role": "stable", "weight": 100, "ready": 2, "replicas": 2, "standbyUid": "s1"}
    missing = {"replicas": 2, "ready": 1, "serving": 1, "message": "no node has room"}
    waiting = f"{STABLE}-standby"
    pods = [
        pod(STABLE, "x1"),
        standby("s-a", loaded=True, revision=STABLE),
        standby("s-b", loaded=True, revision=waiting),
        standby("s-c", loaded=False, revision=waiting),
    ]
    lines = drawn(look(idle(revisions=[revision], standby=missing), pods))
    assert lines[2:] == [
        f"└── stable {STABLE}  weight 100%  ready 2/2  standby 1/2 wait, 1 more serve: no node has room",
        f"    ├── chat-{STABLE}-x1  Running  1/1  restarts 0  10m",
        f"    ├── chat-{STABLE}-s-a  Running  1/1  restarts 0  10m  standby pod that serves",
        f"    ├── chat-{STABLE}-s-b  Running  1/1  restarts 0  10m  standby: has loaded, and waits",
        f"    └── chat-{STABLE}-s-c  NotReady  0/1  restarts 0  10m  standby  container server runs, and its readiness "
        "probe does not pass yet",
    ]


def test_standby_pods_that_go_are_terminating_and_no_other_pods_have_such_rows() -> None:
    revision = {"revision": STABLE, "role": "stable", "weight": 100, "ready": 1, "replicas": 1, "standbyUid": "s1"}
    leaving = standby("s-b", loaded=True, revision=f"{STABLE}-standby")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T11:59:00Z"
    foreign = standby("s-x", loaded=True, revision=f"{STABLE}-standby")
    foreign["metadata"]["ownerReferences"] = [{"uid": "other"}]
    (seen,) = look(idle(revisions=[revision]), [leaving, foreign]).revisions
    assert [(row.phase, row.standby) for row in seen.pods] == [("Terminating", "standby")] and seen.standby is None
