"""A timeline finds each violated invariant and none in a good history; it gets every change as it happens."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from e2e.autoscaling import BY_DEMAND, ENGINE, POD
from e2e.timeline import Moment, Timeline, violations
from testkit.cluster.api import GROUP_PATH, Api
from testkit.cluster.deployment import Deployment
from testkit.cluster.kube import Kube


def moment(at: float = 0.0, wanted: int = 2, **changes: Any) -> Moment:
    """Half of the requests at each of two revisions, a pod each and both ready."""
    status: dict[str, Any] = {
        "stableRevision": "old",
        "rollout": {"revision": "new", "attempt": 1, "stepIndex": 1},
        "traffic": traffic(new=50, old=50),
        "revisions": [pods("new", 1, 50), pods("old", 1, 50)],
    }
    return Moment(at, wanted, status | changes)


def traffic(**weights: int) -> dict[str, Any]:
    return {"backends": [{"revision": name, "weight": weight} for name, weight in weights.items()]}


def pods(name: str, count: int, weight: int, **more: Any) -> dict[str, Any]:
    return {"revision": name, "replicas": count, "ready": count, "weight": weight, **more}


AUTOSCALING = {
    "type": "Autoscaling",
    "status": "True",
    "reason": "ScalingActive",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
ROLLOUT = {"revision": "new", "attempt": 1, "stepIndex": 0}


@pytest.mark.parametrize(
    ("invariant", "after"),
    [
        ("I1", moment(wanted=2, traffic=traffic(new=60, old=40))),
        ("I2", moment(revisions=[pods("new", 1, 50)])),
        ("I3", moment(traffic=traffic(new=30, old=50))),
        ("I3", moment(traffic=traffic(new=50, old=25, older=25))),
        ("I4", moment(stableRevision="new")),
        ("I6", moment(rollout=ROLLOUT)),
        ("I7", moment(revisions=[pods("new", 2, 50), pods("old", 2, 50)])),
    ],
)
def test_each_violation_is_found(invariant: str, after: Moment) -> None:
    found = violations([moment(), replace(after, at=3.0)], surge=1)
    assert any(text.startswith(f"3.0 s: {invariant}: ") for text in found), found


def test_a_good_history_has_none() -> None:
    """It grows to four, the promotion takes all requests, the former revision leaves when that was written down."""
    grown = [pods("new", 2, 50), pods("old", 3, 50)]
    leaving = [pods("new", 4, 100), pods("old", 1, 0, scaleDownAt="2026-01-01T00:00:00Z")]
    promoted: dict[str, Any] = {"rollout": None, "traffic": traffic(new=100), "stableRevision": "new"}
    history = [
        moment(wanted=1),
        moment(wanted=4),
        moment(wanted=4, revisions=grown),
        moment(wanted=4, revisions=[pods("new", 4, 100), pods("old", 1, 0)], traffic=traffic(new=100)),
        moment(wanted=4, revisions=[pods("new", 4, 100), pods("old", 1, 0)], **promoted),
        moment(wanted=4, revisions=leaving, **promoted),
        moment(wanted=4, revisions=[pods("new", 4, 100)], **promoted),
    ]
    assert violations(history, surge=1) == []


@pytest.mark.integration
def test_every_change_comes_from_a_watch(api: Api, api_server: Path, namespace: str) -> None:
    chat = Deployment(Kube(api_server), namespace)
    chat.create("v1", resources=POD, engine=ENGINE, autoscaling=BY_DEMAND)
    with Timeline(chat) as timeline:
        first = timeline.until(lambda now: now.wanted == 1, 30, "the present state comes first", since=0.0)
        chat.edit(replicas=3)
        grown = timeline.until(lambda now: now.wanted == 3, 30, "an edit comes")
        status = {"conditions": [AUTOSCALING]}
        path = f"{GROUP_PATH}/namespaces/{namespace}/modeldeployments/chat/status"
        assert (put := api.merge(path, {"status": status})).ok, put.message
        conditioned = timeline.until(lambda now: bool(now.condition("Autoscaling")), 30, "a status comes")
        with pytest.raises(AssertionError, match="waited for: nine replicas; not within 0 s"):
            timeline.until(lambda now: now.wanted == 9, 0, "nine replicas")
    assert first.at <= grown.at <= conditioned.at
    assert [item.wanted for item in timeline.moments(grown.at)] == [3, 3], "what held at that time is the first"
