"""Which pods a ReplicaSet that gets smaller removes: those with the fewest requests, as gateways count them."""

from dataclasses import replace

import pytest

from slipway_operator.api.v1alpha1.status import Status
from slipway_operator.model.cluster.observed import Gateway, Observed, Pod, Workload
from slipway_operator.model.deployment.spec import Invalid, parse
from slipway_operator.model.labels import LEADER_WORKER_SET
from slipway_operator.planning import children
from slipway_operator.planning.facts.situation import Situation
from slipway_operator.planning.sizing.standby import Share
from tests.support.model_gateway import START

REVISION = "abcdefgh22"
PODS = tuple(Pod(f"chat-{n}", START, True, address=f"10.0.0.{n}") for n in range(3))


def gateway(*requests: int, **other: object) -> Gateway:
    """One that has so many requests at each of the pods."""
    at = {f"10.0.0.{n}": count for n, count in enumerate(requests) if count}
    found = Gateway("a", True, True, inflight={REVISION: sum(requests)}, at_pods={REVISION: at})
    return replace(found, **other)


def costs(desired: int, *gateways: Gateway, pods: tuple[Pod, ...] = PODS, kind: str = "ReplicaSet") -> dict[str, int]:
    """What is written when `desired` of the three pods are to stay."""
    workload = Workload(REVISION, 3, 3, 3, pods=pods, name="chat-a", kind=kind)
    spec = parse({"metadata": {"name": "chat"}, "spec": {"model": {"uri": "file:///m"}}})
    assert not isinstance(spec, Invalid)
    observed = Observed(workloads={REVISION: workload}, gateways=gateways)
    shares = {REVISION: Share(own=desired, standby=0, waiting=0)}
    [scale] = children.scalings(Situation(spec, REVISION, REVISION, Status(), observed, START), shares)
    assert (scale.name, scale.replicas, scale.kind) == ("chat-a", desired, kind)
    return dict(scale.costs)


def test_the_cost_of_a_pod_is_its_requests_at_all_gateways() -> None:
    assert costs(2, gateway(1, 0, 2), gateway(4, 0, 0)) == {"chat-0": 5, "chat-2": 2}


def test_only_costs_that_change_are_written() -> None:
    had = tuple(replace(pod, deletion_cost=2) for pod in PODS)
    assert costs(1, gateway(2, 0, 3), pods=had) == {"chat-1": 0, "chat-2": 3}


@pytest.mark.parametrize("desired", [0, 4])
def test_without_a_choice_nothing_is_written(desired: int) -> None:
    assert costs(desired, gateway(1, 0, 2)) == {}


def test_unknown_requests_are_no_zeros() -> None:
    assert costs(2, gateway(1, 0, 2), gateway(reachable=False)) == {}
    assert costs(2, gateway(1, 0, 2), gateway(0, 3, 0, at_pods={})) == {}, "a gateway of a former release"
    assert costs(2, gateway(1, 0, 2), gateway(at_pods={})) == {"chat-0": 1, "chat-2": 2}, "it has no requests"


def test_groups_go_by_their_index() -> None:
    assert costs(2, gateway(1, 0, 2), kind=LEADER_WORKER_SET) == {}
