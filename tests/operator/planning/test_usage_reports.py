"""A server that reports more usage than its requests can cause shows in a condition of its ModelDeployment."""

from dataclasses import replace

import pytest

from slipway_contracts.gateway_report import ImplausibleUsage
from slipway_operator.model.cluster.observed import Observed
from tests.support.model_cluster import ModelCluster, healthy


class Reported(ModelCluster):
    """A cluster whose first gateway saw such a report."""

    found: ImplausibleUsage | None = None

    def observed(self) -> Observed:
        seen = super().observed()
        first, *others = seen.gateways
        return replace(seen, gateways=(replace(first, implausible_usage=self.found), *others))


@pytest.mark.finding("F3")
def test_the_condition_has_the_numbers_and_goes_with_the_reports() -> None:
    world = healthy()
    world.__class__ = Reported
    assert isinstance(world, Reported)
    world.found = ImplausibleUsage(2_199_023_255_550, 8_300)
    world.reconcile()
    status = world.parsed()
    found = next(item for item in status.conditions if item.type == "UsageReportsImplausible")
    assert (found.status, found.reason) == ("True", "MoreThanPossible")
    assert "2199023255550" in found.message and "8300" in found.message
    # Requests are served: nothing else is wrong.
    assert (status.phase, status.reason) == ("Healthy", "MoreThanPossible")
    world.found = None
    world.reconcile()
    status = world.parsed()
    assert "UsageReportsImplausible" not in [item.type for item in status.conditions]
    assert status.reason is None
