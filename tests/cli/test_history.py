"""Former revisions: reading, naming and comparing them."""

from typing import Any

import pytest

from slipway_cli import history
from slipway_cli.deployment import read
from tests.cli.objects import CANARY, STABLE, idle, in_flight


def controller_revision(ordinal: int, revision: str, version: str, uid: str = "u1") -> dict[str, Any]:
    metadata = {
        "labels": {history.REVISION_LABEL: revision},
        "ownerReferences": [{"uid": uid}],
        "creationTimestamp": "2026-01-01T12:00:00Z",
    }
    inputs = {"model": {"uri": f"file:///{version}", "name": "chat", "version": version}}
    return {"metadata": metadata, "revision": ordinal, "data": {"inputs": inputs, "image": "server:1"}}


KNOWN = history.records([controller_revision(2, CANARY, "v2"), controller_revision(1, STABLE, "v1")], "u1")


def test_records_are_those_of_this_very_object_oldest_first() -> None:
    foreign = controller_revision(3, "dddddddddd", "v9", uid="of a former namesake")
    found = history.records([controller_revision(2, CANARY, "v2"), foreign, controller_revision(1, STABLE, "v1")], "u1")
    assert [(item.ordinal, item.revision, item.version, item.image) for item in found] == [
        (1, STABLE, "v1", "server:1"),
        (2, CANARY, "v2", "server:1"),
    ]


@pytest.mark.parametrize(("which", "revision"), [("1", STABLE), (CANARY, CANARY), ("3", None), ("v1", None)])
def test_an_ordinal_or_a_hash_names_a_revision(which: str, revision: str | None) -> None:
    assert history.find(KNOWN, which) == revision


def test_roles() -> None:
    of = read(in_flight())
    assert [history.role(of, item) for item in (STABLE, CANARY, "dddddddddd")] == ["stable", "canary", ""]
    assert history.role(read(in_flight("Aborted")), CANARY) == "rejected"
    assert history.role(read(idle(previousRevision=CANARY)), CANARY) == "previous"


def test_diff_shows_what_makes_pods_differ() -> None:
    assert history.diff(KNOWN, STABLE, "2") == [
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
    assert history.diff(KNOWN, STABLE, STABLE) == []


def test_pair_is_what_changed_last() -> None:
    assert history.pair(read(in_flight()), KNOWN, ()) == (STABLE, CANARY)
    assert history.pair(read(idle(previousRevision=CANARY)), KNOWN, ()) == (CANARY, STABLE)
    assert history.pair(read(idle()), KNOWN, ("2",)) == (CANARY, STABLE)
    assert history.pair(read(idle()), KNOWN, ("2", STABLE)) == (CANARY, STABLE)


def test_what_cannot_be_compared_is_said() -> None:
    with pytest.raises(LookupError, match="one revision only"):
        history.pair(read(idle()), KNOWN, ())
    with pytest.raises(LookupError, match=r"revision 9 is not in the history; there are: 1 \(aaaaaaaaaa\), 2"):
        history.pair(read(idle()), KNOWN, ("9", "1"))
