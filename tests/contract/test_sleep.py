"""Sleep between the processes: the route table for gateways, their reports, and their calls that wake a deployment."""

import re
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from slipway_contracts.gateway_report import encoded
from slipway_contracts.route_table import Backend, Traffic
from slipway_gateway.balancing.load_balancer import LoadBalancer
from slipway_gateway.routing import table
from slipway_gateway.serving.admin import CALLS_WAIT_S, AdminApi
from slipway_gateway.telemetry.metrics import GatewayMetrics
from slipway_operator.api.v1alpha1.status import Phase, Sleep, SleepState, Status
from slipway_operator.kube.reading import calls, gateways
from slipway_operator.model.deployment import status as status_room
from slipway_process.supervisor import Supervisor
from testkit.cluster.api import Api
from tests.contract.documented import TEXT, routes, traffic
from tests.crds.objects import model_deployment, path
from tests.support.report import as_report, route_reports

ASLEEP = Traffic(3, "chat", "s", (Backend("abcdefgh22", 100),), (), 300, asleep=True, wake_seconds=8)


def route_of(written: Traffic) -> table.Route:
    metadata = {"namespace": "default", "name": "chat", "uid": "u-1"}
    found = table.parse_route({"metadata": metadata, "status": status_room.render(Status(traffic=written))})
    assert isinstance(found, table.Route), found
    return found


def test_gateway_reads_sleep_as_the_operator_writes_it() -> None:
    route = route_of(ASLEEP)
    assert (route.asleep, route.hold_s, route.wake_s) == (True, 300, 8)
    awake = route_of(Traffic(4, "chat", "s", ASLEEP.backends))
    assert (awake.asleep, awake.hold_s, awake.wake_s) == (False, None, None)
    written = status_room.parse({"traffic": traffic()}).traffic
    assert written is not None
    assert (written.asleep, written.wake_seconds) == (True, 8)
    assert (route_of(written).asleep, route_of(written).wake_s) == (True, 8)


def test_operator_reads_activity_as_the_gateway_reports_it() -> None:
    balancer = LoadBalancer(GatewayMetrics("test"), clock=lambda: 50.0)
    balancer.publish(table.build([route_of(ASLEEP)], []))
    (documented,) = routes()["routes"].values()
    assert set(route_reports(balancer)["default/chat"]["activity"]) == set(documented["activity"])

    def seen() -> Any:
        return gateways.Answer("gw", True, True, encoded(balancer.report())).about("default", "chat", "u-1")

    assert (seen().held, seen().known_s, seen().last_request_s, seen().idle_s) == (0, 0.0, None, 0.0)
    activity = balancer.enter("chat")
    activity.held = 2
    assert (seen().held, seen().last_request_s, seen().idle_s) == (2, 0.0, 0.0)
    old = gateways.Answer("gw", True, True, as_report({"default/chat": {"uid": "u-1", "generation": 3}}))
    assert old.about("default", "chat", "u-1").idle_s is None
    odd = {"uid": "u-1", "generation": 3, "activity": {"known_s": "long"}}
    assert (
        not gateways.Answer("gw", True, True, as_report({"default/chat": odd}))
        .about("default", "chat", "u-1")
        .reachable
    )


async def test_operator_reads_calls_as_the_gateway_reports_them() -> None:
    balancer = LoadBalancer(GatewayMetrics("test"), incarnation="p1")
    balancer.publish(table.build([route_of(ASLEEP)], []))
    balancer.enter("chat")
    admin = AdminApi(None, balancer, GatewayMetrics("test"), None, "p1")  # type: ignore[arg-type]
    async with TestServer(admin.app()) as server, aiohttp.ClientSession() as session:
        listener = calls.Calls(None, session, lambda key: None, Supervisor(lambda task: None))  # type: ignore[arg-type]
        url = str(server.make_url("")).rstrip("/")
        assert await listener._poll(url, "") == ("p1.1", [("default", "chat")])
        assert await listener._poll(f"{url}/nowhere", "") is None


def test_request_timeout_of_the_operator_exceeds_the_wait_of_a_gateway() -> None:
    assert calls.TIMEOUT_S > CALLS_WAIT_S
    documented = re.search(r"at the latest after (\d+) s\. A route leaves the list", TEXT)
    assert documented
    assert float(documented[1]) == CALLS_WAIT_S


@pytest.mark.integration
def test_status_of_a_deployment_that_sleeps_is_accepted_whole(api: Api, namespace: str) -> None:
    made = api.post(path(namespace), model_deployment()).body
    slept = Sleep(SleepState.ASLEEP, datetime(2026, 1, 1, tzinfo=UTC), (7, 8))
    written = {**made, "status": status_room.render(Status(phase=Phase.ASLEEP, traffic=ASLEEP, sleep=slept))}
    answer = api.put(path(namespace, "chat", "status"), written, fieldValidation="Strict")
    assert answer.ok, answer.message
    assert answer.body["status"] == written["status"]
