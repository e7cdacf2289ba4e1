"""Former revisions: reading, naming and comparing them."""

from typing import Any

import pytest

from slipway_cli.api import REVISION_LABEL
from slipway_cli.objects import history
from slipway_cli.objects.deployment import read_deployment
from tests.cli.objects import CANARY, STABLE, idle, in_flight


def controller_revision(ordinal: int, revision: str, version: str, uid: str = "u1") -> dict[str, Any]:
    metadata = {
        "labels": {REVISION_LABEL: revision},
        "ownerReferences": [{"uid": uid}],
        "creationTimestamp": "2026-01-01T12:00:00Z",
    }
    inputs = {"model": {"uri": f"file:///{version}", "name": "chat", "version": version}}
    return {"metadata": metadata, "revision": ordinal, "data": {"inputs": inputs, "image": "server:1"}}


KNOWN = history.read_records([controller_revision(2, CANARY, "v2"), controller_revision(1, STABLE, "v1")], "u1")


def test_records_are_those_of_this_very_object_oldest_first() -> None:
    foreign = controller_revision(3, "dddddddddd", "v9", uid="of a former namesake")
    found = history.read_records(
        [controller_revision(2, CANARY, "v2"), foreign, controller_revision(1, STABLE, "v1")], "u1"
    )
    assert [(item.ordinal, item.revision, item.version, item.image) for item in found] == [
        (1, STABLE, "v1", "server:1"),
        (2, CANARY, "v2", "server:1"),
    ]


@pytest.mark.parametrize(("which", "revision"), [("1", STABLE), (CANARY, CANARY), ("3", None), ("v1", None)])
def test_an_ordinal_or_a_hash_names_a_revision(which: str, revision: str | None) -> None:
    assert history.find_revision(KNOWN, which) == revision


def test_roles() -> None:
    of = read_deployment(in_flight())
    assert [history.find_role(of, item) for item in (STABLE, CANARY, "dddddddddd")] == ["stable", "canary", ""]
    assert history.find_role(read_deployment(in_flight("Aborted")), CANARY) == "rejected"
    assert history.find_role(read_deployment(idle(previousRevision=CANARY)), CANARY) == "previous"


REJECTED = "the judge found it worse"
DECISION = f"2026-01-01T11:00:00Z abort: revision {CANARY}, attempt 2, is rejected: {REJECTED} (Warning RolloutAborted)"


@pytest.mark.finding("S11")
def test_a_rejection_stays_in_the_history_after_the_next_rollout() -> None:
    of = read_deployment(idle(abortedRevisions=[f"{CANARY}/1", f"{CANARY}/2"], decisions=[DECISION]))
    assert [(item.attempt, item.message) for item in of.rejections(CANARY)] == [(1, None), (2, REJECTED)]
    assert history.find_role(of, CANARY) == "rejected"
    assert of.rejections(STABLE) == []


def test_aborted_revisions_without_a_reason_are_left_out() -> None:
    """Who may write the status may write anything there."""
    of = read_deployment(idle(abortedRevisions=["x", f"{CANARY}/", f"{CANARY}/two", f"{CANARY}/2"]))
    assert [item.attempt for item in of.rejections(CANARY)] == [2]


@pytest.mark.finding("S11")
def test_the_reason_of_the_rollout_that_was_rejected_last_needs_no_decision() -> None:
    of = read_deployment(in_flight("Aborted"))
    assert [str(item) for item in of.rejections(CANARY)] == ["attempt 1: it was too slow"]


@pytest.mark.finding("S11")
@pytest.mark.parametrize("field", ["stableRevision", "previousRevision"])
def test_a_revision_that_was_promoted_after_a_rejection_does_not_count_as_rejected(field: str) -> None:
    of = read_deployment(idle(**{"abortedRevisions": [f"{CANARY}/1"], field: CANARY}))
    assert of.last_rejection(CANARY) is None and len(of.rejections(CANARY)) == 1


def test_diff_shows_what_makes_pods_differ() -> None:
    assert history.compare(KNOWN, STABLE, "2") == [
        f"--- 1 {STABLE}",
        f"+++ 2 {CANARY}",
        "@@ -3,4 +3,4 @@",
        "   model:",
        "     name: chat",
        "-    uri: file:///v1",
        "-    version: v1",
        "+    uri: file:///v2",
        "+    version: v2",
    ]
    assert history.compare(KNOWN, STABLE, STABLE) == []


def test_pair_is_what_changed_last() -> None:
    assert history.choose_pair(read_deployment(in_flight()), KNOWN, ()) == (STABLE, CANARY)
    assert history.choose_pair(read_deployment(idle(previousRevision=CANARY)), KNOWN, ()) == (CANARY, STABLE)
    assert history.choose_pair(read_deployment(idle()), KNOWN, ("2",)) == (CANARY, STABLE)
    assert history.choose_pair(read_deployment(idle()), KNOWN, ("2", STABLE)) == (CANARY, STABLE)


def test_revisions_that_cannot_be_compared_are_named() -> None:
    with pytest.raises(LookupError, match="one revision only"):
        history.choose_pair(read_deployment(idle()), KNOWN, ())
    with pytest.raises(LookupError, match=r"revision 9 is not in the history; there are: 1 \(aaaaaaaaaa\), 2"):
        history.choose_pair(read_deployment(idle()), KNOWN, ("9", "1"))
