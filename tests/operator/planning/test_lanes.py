"""A gateway whose two lanes count requests differently shows in a condition of the ModelDeployment."""

from dataclasses import replace

from slipway_contracts.gateway_report import RouteReport, encoded
from slipway_operator.kube.reading.gateways import MOST_KINDS, Answer
from slipway_operator.model.cluster.observed import Observed
from tests.support.model_cluster import ModelCluster, healthy


class Doubted(ModelCluster):
    """A cluster whose first gateway reports differences."""

    kinds: tuple[str, ...] = ()

    def observed(self) -> Observed:
        seen = super().observed()
        first, *others = seen.gateways
        return replace(seen, gateways=(replace(first, recounts_differ=self.kinds), *others))


def test_the_condition_names_what_differs_and_goes_with_the_gateway() -> None:
    world = healthy()
    world.__class__ = Doubted
    assert isinstance(world, Doubted)
    world.kinds = ("outcome", "revision")
    world.reconcile()
    status = world.parsed()
    shown = next(item for item in status.conditions if item.type == "LanesDiffer")
    assert (shown.status, shown.reason) == ("True", "CountedDifferently") and "(outcome, revision)" in shown.message
    assert (status.phase, status.reason) == ("Healthy", "CountedDifferently")
    world.kinds = ()
    world.reconcile()
    assert "LanesDiffer" not in [item.type for item in world.parsed().conditions]


def test_a_report_may_hold_any_number_of_kinds_of_any_length() -> None:
    report = RouteReport("u", 1, recounts_differ=("x" * 100_000,) * 1000)
    answer = Answer("gateway", ready=True, reachable=True, routes=encoded({"team/chat": report}))
    read = answer.about("team", "chat", "u").recounts_differ
    assert len(read) == MOST_KINDS and all(len(kind) <= 32 for kind in read)
