"""Which nodes are drained."""

import pytest

from slipway_operator.kube.reading.nodes import UNREACHABLE, Nodes, is_drained


def node(name: str = "a", taints: tuple[str, ...] = (), **spec: object) -> dict[str, object]:
    written = [{"key": key, "effect": "NoSchedule"} for key in taints]
    return {"metadata": {"name": name}, "spec": {**({"taints": written} if written else {}), **spec}}


@pytest.mark.parametrize(
    "taint",
    [
        "ToBeDeletedByClusterAutoscaler",
        "karpenter.sh/disrupted",
        "cloud.google.com/impending-node-termination",
        "aws-node-termination-handler/spot-itn",
    ],
)
def test_a_node_that_is_taken_away_is_drained(taint: str) -> None:
    assert is_drained(node(taints=("nvidia.com/gpu", taint)))


def test_a_cordoned_node_is_drained_and_a_tainted_one_is_not() -> None:
    assert is_drained(node(unschedulable=True))
    assert not is_drained(node(taints=("nvidia.com/gpu", "node.kubernetes.io/disk-pressure")))
    assert not is_drained({"metadata": {"name": "a"}})


def test_pods_of_an_unreachable_node_are_replaced_but_not_where_most_are() -> None:
    nodes = Nodes()
    for name in "abc":
        nodes.on_event("ADDED", node(name))
    assert nodes.on_event("MODIFIED", node("a", taints=(UNREACHABLE,))) and nodes.leaving == {"a"}
    nodes.on_event("MODIFIED", node("c", unschedulable=True))
    assert nodes.on_event("MODIFIED", node("b", taints=(UNREACHABLE,))) and nodes.leaving == {"c"}
    assert nodes.on_event("MODIFIED", node("b")) and nodes.leaving == {"a", "c"}
    assert nodes.on_event("DELETED", node("a")) and nodes.leaving == {"c"}


def test_an_event_of_one_node_reports_all_whose_pods_it_concerns() -> None:
    """Nodes that become unreachable together: with the last of them they are the most; with its return they are few."""
    nodes = Nodes()
    for name in "abcd":
        assert nodes.on_event("ADDED", node(name)) == set()
    assert [nodes.on_event("MODIFIED", node(name, taints=(UNREACHABLE,))) for name in "ab"] == [{"a"}, {"b"}]
    assert nodes.on_event("MODIFIED", node("c", taints=(UNREACHABLE,))) == {"a", "b"}
    assert nodes.on_event("MODIFIED", node("c")) == {"a", "b"}
    assert nodes.on_event("DELETED", node("d")) == {"a", "b"}


def test_nodes_whose_deletion_was_missed_are_forgotten() -> None:
    nodes = Nodes()
    for name in "abc":
        nodes.on_event("ADDED", node(name, taints=(UNREACHABLE,) if name == "a" else (), unschedulable=name == "b"))
    nodes.keep(["c", "d"])
    assert nodes.leaving == frozenset()
    nodes.on_event("ADDED", node("d"))
    nodes.on_event("ADDED", node("e", taints=(UNREACHABLE,)))
    assert nodes.leaving == {"e"}


def test_only_changes_are_reported() -> None:
    nodes = Nodes()
    assert not nodes.on_event(None, node())
    assert nodes.on_event("MODIFIED", node(unschedulable=True)) and nodes.leaving == {"a"}
    assert not nodes.on_event("MODIFIED", node(unschedulable=True))
    assert nodes.on_event("MODIFIED", node()) and nodes.leaving == frozenset()
    nodes.on_event("MODIFIED", node(unschedulable=True))
    assert nodes.on_event("DELETED", node(unschedulable=True)) and nodes.leaving == frozenset()
