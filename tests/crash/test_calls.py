"""Calls are named as in RBAC, and end states are compared without times, counters and namespaces."""

import random
from collections import Counter

import pytest

from tests.crash import campaign
from tests.crash.calls import KILLS, Fault, Point, is_write, kind_of
from tests.crash.end_state import differences, end_state

APPLY = {"Content-Type": "application/apply-patch+yaml"}


@pytest.mark.parametrize(
    ("method", "path", "query", "headers", "kind"),
    [
        ("GET", "/apis/apps/v1/namespaces/a/replicasets", {}, {}, "LIST replicasets"),
        ("GET", "/apis/apps/v1/replicasets", {"watch": "true"}, {}, "WATCH replicasets"),
        ("GET", "/api/v1/namespaces/a/services/chat", {}, {}, "GET services"),
        ("PATCH", "/apis/apps/v1/namespaces/a/replicasets/chat", {}, APPLY, "APPLY replicasets"),
        ("PATCH", "/apis/apps/v1/namespaces/a/replicasets/chat", {}, {}, "PATCH replicasets"),
        ("PUT", "/apis/a.b/v1/namespaces/a/modeldeployments/c/status", {}, {}, "UPDATE modeldeployments/status"),
        ("POST", "/api/v1/namespaces/a/events", {}, {}, "CREATE events"),
        ("GET", "/apis/apps/v1", {}, {}, "GET /apis/apps/v1"),
        ("GET", "/api", {}, {}, "GET /api"),
    ],
)  # fmt: skip
def test_kinds(method, path, query, headers, kind):
    assert kind_of(method, path, query, headers) == kind
    assert is_write(kind) == (method != "GET")


def obj(**status):
    return {"metadata": {"namespace": "n-1", "name": "chat"}, "status": status}


def test_times_counters_and_the_namespace_make_no_difference():
    first = end_state(
        obj(
            decisions=["2026-01-01T00:00:00Z a: b"],
            at="2026-01-01T00:00:00Z",
            observedGeneration=3,
            url="http://x.n-1.svc",
        ),
        {},
        [],
    )
    other = {
        "metadata": {"namespace": "n-2"},
        "status": {"decisions": ["2026-01-01T00:00:09Z a: b"], "at": "2026-01-01T00:00:09Z", "url": "http://x.n-2.svc"},
    }
    assert first == end_state(other, {}, [])


def test_other_differences_count():
    child = {"metadata": {"name": "a", "labels": {}}, "spec": {"replicas": 2}}
    less = {**child, "spec": {"replicas": 1}}
    event = {"type": "Normal", "reason": "RolloutCompleted"}
    expected = end_state(obj(weight=50), {"ReplicaSet": [child]}, [event])
    assert differences(expected, end_state(obj(weight=40), {"ReplicaSet": [child]}, [event])) == [
        "status.weight: 50 became 40"
    ]
    assert differences(expected, end_state(obj(weight=50), {"ReplicaSet": [less]}, [event]))
    assert differences(expected, end_state(obj(weight=50), {"ReplicaSet": [child]}, []))


def test_namespace_makes_no_difference_in_the_arguments_of_a_pod():
    def state(namespace):
        child = {"metadata": {"name": "a", "labels": {}}, "spec": {"template": {"args": [f"{namespace}/chat"]}}}
        return end_state({"metadata": {"namespace": namespace}}, {"ReplicaSet": [child]}, [])

    assert state("n-1") == state("n-2")


@pytest.fixture
def known():
    counts = Counter({"LIST pods": 9, "APPLY services": 2, "UPDATE modeldeployments/status": 7})
    return {"rollout": campaign.Reference({}, counts), "abort": campaign.Reference({}, counts)}


def test_the_enumeration_names_every_call_for_every_fault_once(known):
    cases = list(campaign.enumeration(known))
    named = [(case.scenario, point, fault) for case in cases for point, fault in case.targets.items()]
    assert len(named) == len(set(named)) == 2 * 18 * len(Fault)


def test_a_sample_kills_before_and_after_every_kind_of_call(known):
    cases = list(campaign.sample(known, random.Random(3), kinds_per_error=1))
    for kill in KILLS:
        assert {point.kind for case in cases for point, fault in case.targets.items() if fault is kill} == {
            "LIST pods",
            "APPLY services",
            "UPDATE modeldeployments/status",
        }
    assert all(isinstance(point, Point) and point.occurrence >= 1 for case in cases for point in case.targets)
