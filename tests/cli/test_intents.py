"""Verbs that have nothing to do print the reason and the remedy; tests/contract has those that do something."""

from typing import Any

import pytest

from slipway_cli.objects.deployment import read_deployment
from slipway_cli.objects.history import RevisionRecord
from slipway_cli.rollouts import intents
from slipway_cli.rollouts.intents import Change, Nothing
from tests.cli.objects import CANARY, STABLE, deployment, idle, in_flight

RECORDS = [
    RevisionRecord(1, STABLE, "v1", "image", None, {}),
    RevisionRecord(2, CANARY, "v2", "image", None, {}),
]
ABORTED = in_flight("Aborted", "Degraded")
FIRST = deployment({"rollout": {"state": "Initializing", "revision": STABLE}, "message": "first comes up"})


def requested(**rollout: str) -> dict[str, Any]:
    return in_flight(rollout=rollout)


CASES = [
    (intents.promote, idle(), "there is nothing to promote: no rollout of chat is in flight (serving)"),
    (intents.promote, ABORTED, f"revision {CANARY} was rejected: it was too slow; run `slipway retry chat`"),
    (intents.promote, FIRST, "chat brings up its first revision, which has no steps"),
    (intents.promote, in_flight("Promoting"), f"revision {CANARY} has passed its steps already"),
    (intents.promote, in_flight("Shifting"), "step 2 of 4 is no pause and ends by itself"),
    (intents.promote, in_flight(paused=True), "chat is held by spec.paused: run `slipway resume chat` first"),
    (intents.promote, requested(promote=f"{CANARY}/1/1"), "the promotion of step 2 of 4"),
    (
        intents.promote_full,
        requested(promoteFull=f"{CANARY}/1"),
        f"the full promotion of {CANARY}/1 was requested already",
    ),
    (intents.abort, idle(), "there is nothing to abort"),
    (intents.abort, ABORTED, f"revision {CANARY} is rejected already: it was too slow"),
    (intents.abort, FIRST, "chat brings up its first revision, and there is no other to return to"),
    (intents.abort, requested(abort=f"{CANARY}/1"), f"the abort of {CANARY}/1 was requested already"),
    (intents.retry, idle(), "there is nothing to retry"),
    (intents.retry, in_flight(), f"revision {CANARY} was not rejected: it is on its way"),
    (intents.pause, deployment(paused=True), "chat is paused already"),
    (intents.resume, idle(), "chat is not paused"),
    (intents.resume, in_flight(), "it waits at a pause of its steps, step 2 of 4: run `slipway promote chat`"),
]


@pytest.mark.parametrize(("decide", "obj", "message"), CASES)
def test_nothing_to_do(decide: Any, obj: dict[str, Any], message: str) -> None:
    decided = decide(read_deployment(obj))
    assert isinstance(decided, Nothing), decided
    assert message in decided.why


def test_a_spec_that_the_operator_has_not_seen_is_named_as_a_reason() -> None:
    obj = idle()
    obj["metadata"]["generation"] = 4
    decided = intents.promote(read_deployment(obj))
    assert isinstance(decided, Nothing) and "has not looked at the last change" in decided.why


def test_rejected_revision_that_left_the_spec_is_not_retried() -> None:
    obj = in_flight("Aborted", "Degraded")
    obj["status"]["currentRevision"] = "cccccccccc"
    decided = intents.retry(read_deployment(obj))
    assert isinstance(decided, Nothing) and "is not what the spec describes any more" in decided.why


def test_full_promotion_of_a_held_rollout_reports_the_hold() -> None:
    decided = intents.promote_full(read_deployment(in_flight(paused=True)))
    assert isinstance(decided, Change) and "spec.paused holds it until `slipway resume chat`" in decided.text


UNDO_CASES = [
    (deployment(), None, "chat has no revision yet"),
    (
        idle(),
        None,
        f"no revision of chat served before {STABLE}; to run another one, name it: `slipway undo chat --to 2`; there",
    ),
    (idle(), "7", "revision 7 of chat is not in its history"),
    (idle(), "1", f"revision {STABLE} is what chat is to run already"),
    (idle(previousRevision="dddddddddd"), None, "revision dddddddddd is forgotten (spec.revisionHistoryLimit)"),
]


@pytest.mark.parametrize(("obj", "to", "message"), UNDO_CASES)
def test_nothing_to_undo(obj: dict[str, Any], to: str | None, message: str) -> None:
    decided = intents.undo(read_deployment(obj), RECORDS, to)
    assert isinstance(decided, Nothing) and message in decided.why


def test_without_a_history_there_is_nothing_to_undo() -> None:
    decided = intents.undo(read_deployment(idle()), [], None)
    assert decided == Nothing(f"no revision of chat served before {STABLE}")


def test_undo_to_the_revision_of_the_spec_ends_a_rollback() -> None:
    obj = idle(currentRevision=CANARY)
    obj["spec"]["rollout"] = {"rollbackTo": f"{CANARY}/{STABLE}"}
    decided = intents.undo(read_deployment(obj), RECORDS, CANARY)
    assert isinstance(decided, Change) and decided.spec == {"rollout": {"rollbackTo": None}}


def test_undo_ends_a_rollback_that_an_alarm_started() -> None:
    obj = idle(currentRevision=CANARY)
    obj["spec"]["accuracy"] = {"onAlarm": "Rollback"}
    obj["status"]["accuracy"] = {"rollback": f"{CANARY}/{STABLE}"}
    assert read_deployment(obj).rolled_back_to == STABLE
    decided = intents.undo(read_deployment(obj), RECORDS, CANARY)
    assert isinstance(decided, Change) and decided.spec == {"rollout": {"rollbackTo": f"{CANARY}/{CANARY}"}}
    obj["spec"]["rollout"] = decided.spec["rollout"]
    assert read_deployment(obj).rolled_back_to is None
    obj["spec"]["rollout"] = None
    obj["spec"]["accuracy"] = {"onAlarm": "Alert"}
    assert read_deployment(obj).rolled_back_to is None


@pytest.mark.finding("S11")
def test_undo_to_a_rejected_revision_warns_with_the_reason() -> None:
    decision = f"2026-01-01T11:00:00Z abort: revision {CANARY}, attempt 1, is rejected: it was too slow"
    decided = intents.undo(
        read_deployment(idle(abortedRevisions=[f"{CANARY}/1"], decisions=[decision])), RECORDS, CANARY
    )
    assert isinstance(decided, Change) and decided.warning
    assert decided.warning == f"revision {CANARY} was rejected, attempt 1: it was too slow"


@pytest.mark.finding("S11")
def test_undo_to_a_revision_that_served_warns_of_nothing() -> None:
    decided = intents.undo(read_deployment(idle(previousRevision=CANARY)), RECORDS, None)
    assert isinstance(decided, Change) and decided.warning is None
