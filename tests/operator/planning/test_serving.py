"""Healthy is impossible while requests get no answer: measurements of gateways against the readiness of pods."""

from dataclasses import replace
from typing import Any

import pytest

from slipway_contracts.gateway_report import ServiceReport
from slipway_operator.model.cluster.observed import Gateway, Observed
from tests.support.model_cluster import ModelCluster, cluster, healthy


class Measured(ModelCluster):
    """A cluster whose gateways report `measures`."""

    measures: tuple[ServiceReport, ...] = ()

    def observed(self) -> Observed:
        seen = super().observed()
        pairs = zip(seen.gateways, self.measures, strict=False)
        return replace(seen, gateways=tuple(replace(gateway, service=service) for gateway, service in pairs))


def measured(*services: ServiceReport, **options: Any) -> Measured:
    world = healthy(**options)
    world.__class__ = Measured
    assert isinstance(world, Measured)
    world.measures = services
    world.reconcile()
    return world


def ready(world: ModelCluster) -> tuple[str, str, str]:
    found = next(item for item in world.parsed().conditions if item.type == "Ready")
    return world.parsed().phase, found.status, found.reason


WELL, BAD = ServiceReport(answered=50), ServiceReport(answered=1, refused=29, last="no_endpoint")


@pytest.mark.finding(1, "S1")
def test_nearly_all_requests_fail() -> None:
    """Seen: `Healthy 2/2` while every request got 503 (safety 1, story S1)."""
    world = measured(BAD, BAD)
    assert ready(world) == ("Degraded", "False", "RequestsFailing")
    assert "58 of the last 60 requests got no answer (no_endpoint)" in world.parsed().message
    assert world.parsed().reason == "RequestsFailing"
    assert [event.reason for event in world.events].count("NotServing") == 1
    assert world.reconcile().requeue_after_s == 2.0, "the end of it is no event"
    world.measures = (WELL, WELL)
    world.reconcile()
    assert ready(world) == ("Healthy", "True", "Serving")


@pytest.mark.parametrize(
    "services",
    [
        (WELL, WELL),
        (BAD, WELL),
        (ServiceReport(refused=2), ServiceReport()),
        (ServiceReport(answered=2, refused=8), ServiceReport()),
        (ServiceReport(unserved_s=60.0), ServiceReport()),
        (ServiceReport(unserved_s=1.0), ServiceReport(unserved_s=2.0)),
    ],
    ids=["well", "one gateway of two", "two requests", "a fifth is answered", "one sees pods", "a moment"],
)
def test_healthy_measurements_keep_ready_true(services: tuple[ServiceReport, ...]) -> None:
    assert ready(measured(*services)) == ("Healthy", "True", "Serving")


def test_ready_pod_without_an_endpoint_at_any_gateway() -> None:
    world = measured(ServiceReport(unserved_s=5.5), ServiceReport(unserved_s=5.0))
    world.pass_time(5)
    world.reconcile()
    assert ready(world) == ("Degraded", "False", "NoEndpoints")


def test_gateways_have_a_moment_to_learn_of_the_first_pod() -> None:
    """They count since the route exists: the first pod loads its model for that long."""
    world = measured(ServiceReport(unserved_s=60.0), ServiceReport(unserved_s=60.0))
    assert ready(world) == ("Healthy", "True", "Serving")
    world.pass_time(6)
    world.reconcile()
    assert ready(world) == ("Degraded", "False", "NoEndpoints")
    world.measures = (WELL, WELL)
    world.reconcile()
    assert ready(world) == ("Healthy", "True", "Serving")


def test_requeue_comes_before_the_limit() -> None:
    world = measured(ServiceReport(unserved_s=1.0), ServiceReport(unserved_s=1.0))
    assert world.reconcile().requeue_after_s == 2.0


def test_without_a_gateway_no_request_gets_in() -> None:
    world = healthy()
    for gateway in world.gateways:
        gateway.ready = False
    world.reconcile()
    assert ready(world) == ("Degraded", "False", "NoGateway")


def test_measurements_of_an_unreachable_gateway_are_unknown() -> None:
    world = measured(BAD, BAD)
    for gateway in world.gateways:
        gateway.reachable = False
    world.reconcile()
    assert ready(world) == ("Healthy", "False", "GatewaysBehind")


def test_lack_of_pods_has_its_cause_and_zero_replicas_is_none() -> None:
    world = measured(BAD, BAD)
    world.crashed.add("file:///models/v1")
    world.pass_time()
    world.reconcile()
    assert ready(world) == ("Degraded", "False", "NoReadyPods")
    zero = cluster(replicas=0)
    zero.run(3)
    assert "RequestsFailing" not in {item.reason for item in zero.parsed().conditions}


def test_gateway_without_measurements_does_not_count_as_failing() -> None:
    """One of a former release."""
    assert Gateway("old", True, True).service == ServiceReport()
    assert ready(measured(ServiceReport(), ServiceReport())) == ("Healthy", "True", "Serving")


@pytest.mark.finding(1)
def test_unready_pods_are_reported_in_the_next_reconcile() -> None:
    """Safety 1: between an engine's crash and its restart."""
    world = healthy()
    world.crashed.add("file:///models/v1")
    world.pass_time()
    world.reconcile()
    assert ready(world) == ("Degraded", "False", "NoReadyPods")
    assert world.parsed().ready == "0/2"


def test_a_route_that_no_gateway_has_is_no_service() -> None:
    """It was Healthy all the time, while no gateway had the route."""
    world = healthy()
    for gateway in world.gateways:
        gateway.generation, gateway.digest = None, ""
    for second in range(7):
        world.reconcile()
        assert world.parsed().phase == ("Healthy" if second < 5 else "Degraded")
        world.pass_time(gateways=False)
    assert ready(world) == ("Degraded", "False", "NoRoute")
    assert [event.reason for event in world.events].count("NotServing") == 1
    world.pass_time()
    world.run(3)
    assert ready(world) == ("Healthy", "True", "Serving")
