"""What the demo takes for reached, and what not."""

from typing import Any

import pytest

from examples.demo.view import (
    WIDTH,
    folded,
    headline,
    is_paused,
    is_rejected,
    is_settled,
    news,
    rejection,
    rows,
    versions,
    weights_of,
)

STABLE, CANARY = "aaaaaaaaaa", "bbbbbbbbbb"


def deployment(**status: Any) -> dict[str, Any]:
    fields = {"observedGeneration": 3, "phase": "Healthy", "ready": "2/2", "message": "serving"} | status
    return {"metadata": {"generation": 3}, "status": fields}


def traffic(**weights: int) -> dict[str, Any]:
    return {"backends": [{"version": version, "weight": weight} for version, weight in weights.items()]}


def test_settled_is_one_version_with_all_pods_and_no_rollout() -> None:
    assert is_settled(deployment(traffic=traffic(v2=100)), "v2", 2)
    assert is_settled(deployment(traffic=traffic(v2=100, v1=0)), "v2", 2)


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Progressing"},
        {"ready": "1/2"},
        {"ready": "3/3"},
        {"traffic": traffic(v1=100)},
        {"traffic": traffic(v2=50, v1=50)},
        {"traffic": None},
        {"rollout": {"state": "Promoting"}},
        {"observedGeneration": 2},
    ],
)
def test_anything_else_is_not_settled(status: dict[str, Any]) -> None:
    assert not is_settled(deployment(**{"traffic": traffic(v2=100)} | status), "v2", 2)


def test_nothing_is_reached_before_there_is_a_status() -> None:
    for seen in ({}, {"metadata": {"generation": 1}}):
        assert not is_settled(seen, "v1", 2)
        assert not is_paused(seen, "v1", 10)
        assert not is_rejected(seen, "UserAbort", "v1")
        assert rejection(seen) == ""
        assert headline(seen) == "Pending [no pods]"


def test_paused_counts_once_every_gateway_acknowledged_the_weight() -> None:
    status = {"rollout": {"state": "Paused"}, "traffic": traffic(v2=10, v1=90)}
    assert is_paused(deployment(weight=10, **status), "v2", 10)
    assert not is_paused(deployment(weight=0, **status), "v2", 10)
    assert not is_paused(deployment(weight=10, **status), "v1", 10)


def test_rejected_names_its_reason_and_what_serves() -> None:
    aborted = {"state": "Aborted", "abort": {"reason": "UserAbort", "message": "aborted by spec.rollout.abort"}}
    seen = deployment(rollout=aborted, traffic=traffic(v2=100))
    assert is_rejected(seen, "UserAbort", "v2")
    assert not is_rejected(seen, "ProgressDeadlineExceeded", "v2")
    assert not is_rejected(deployment(rollout=aborted, traffic=traffic(v4=10, v2=90)), "UserAbort", "v2")
    assert rejection(seen) == "it was rejected: UserAbort: aborted by spec.rollout.abort"


def test_rows_join_the_status_with_what_the_load_counted() -> None:
    listed = [
        {"revision": CANARY, "version": "v2", "role": "canary", "replicas": 1, "ready": 1, "weight": 10},
        {"revision": STABLE, "version": "v1", "role": "stable", "replicas": 2, "ready": 2, "weight": 90},
    ]
    seen = deployment(revisions=listed, step="2/5")
    first, second = rows(seen, {CANARY: 3}, {STABLE: 1})
    assert (first.version, first.ready, first.requests, first.failures) == ("v1", "2/2", 0, 1)
    assert (second.version, second.weight, second.requests, second.failures) == ("v2", 10, 3, 0)
    assert headline(seen) == "Healthy step 2/5 [v1 90% 2/2, v2 10% 1/1] serving"
    assert versions([seen]) == {CANARY: "v2", STABLE: "v1"}


def test_weights_of_an_outdated_status_are_none() -> None:
    assert weights_of(deployment(observedGeneration=2, traffic=traffic(v1=100))) == {}


WHY = (
    "pod chat-1: Error: container fetch: The weights of tiny-broken are incomplete: model-00002 is missing " + "x " * 60
)


@pytest.mark.finding("L9")
def test_lines_are_folded_between_the_parts_of_a_message() -> None:
    """A line of the log had 569 characters."""
    text = f"Degraded [v2 100% 2/2] serving stable a; revision b was rejected: {WHY}; former leaves | 684 requests"
    lines = folded(text)
    assert max(map(len, lines)) <= WIDTH and lines[0] == "Degraded [v2 100% 2/2] serving stable a;"
    assert " ".join(lines).split() == text.split()
    assert folded("short; text | load") == ["short; text | load"] and folded("") == [""]
    assert all(len(line) <= WIDTH for line in folded("x" * 1000))


@pytest.mark.finding("L9")
def test_a_long_part_is_printed_once() -> None:
    """The same sentence about missing weights stood in nine lines."""
    former = f"revision b comes up: 0 of 1 pods ready; {WHY}"
    assert news(f"rejecting revision b; {WHY}; weight 10 returns", former) == (
        f"rejecting revision b; {WHY[:40]} …; weight 10 returns"
    )
    assert news(former, "") == former
