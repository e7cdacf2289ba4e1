"""Metrics of the release's own processes: what counts, what is unknown, how often processes are read."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer, unused_port

from slipway_jobs.telemetry import JobsMetrics
from slipway_operator.kube.errors import Unavailable
from slipway_operator.kube.reading.gateways import Answer
from slipway_operator.metrics_api.app import Api
from slipway_operator.metrics_api.release import READ_AGAIN_S, JobsProcesses, ReleaseLoads
from slipway_operator.metrics_api.release_loads import (
    GATEWAY_IN_FLIGHT,
    JOBS_LINES,
    JobsLoad,
    gateways_in_flight,
    lines_of_jobs,
)
from slipway_operator.metrics_api.sampler import MetricsSampler
from slipway_operator.metrics_api.series import Unknown

EXTERNAL = "/apis/external.metrics.k8s.io/v1beta1/namespaces"


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@dataclass
class Reported:
    """Gateways with these answers."""

    items: list[Answer]
    failure: Exception | None = None
    polls: int = 0

    async def answers(self) -> list[Answer]:
        self.polls += 1
        if self.failure:
            raise self.failure
        return self.items


@dataclass
class Slices:
    """Stands for the client: EndpointSlices are all that is read of it."""

    ports: dict[int, bool]  # and whether the endpoint is ready
    lists: list[tuple[str, str]] = field(default_factory=list)

    async def list(self, resource: Any, namespace: str, selector: str = "", cached: bool = False) -> list[Any]:
        self.lists.append((namespace, selector))
        return [
            {
                "addressType": "IPv4",
                "ports": [{"name": "admin", "port": port}],
                # Slices of one Service have one port, and here each process has its own address.
                "endpoints": [{"addresses": [f"127.0.0.{n + 1}"], "conditions": {"ready": ready}}],
            }
            for n, (port, ready) in enumerate(self.ports.items())
        ]


def gateway(in_flight: int | None, **changes: Any) -> Answer:
    return Answer(**{"name": "gw", "ready": True, "reachable": True, "in_flight": in_flight, **changes})


@pytest.mark.parametrize(
    ("loads", "expected"),
    [([3.0], 3), ([3.0, 5.0], 8), ([3.0, 5.0, "gw-3 does not report it"], 12), ([6.0, "silent"], 12), ([0.0], 0)],
)
def test_a_silent_gateway_counts_as_the_mean_of_the_others(loads: list[float | str], expected: float) -> None:
    assert gateways_in_flight(loads) == expected


@pytest.mark.parametrize(
    ("loads", "why"),
    [
        ([], "none of the gateways is ready"),
        (["gw-1 does not report it"], "0 of 1 gateways have fresh numbers; gw-1 does not report it"),
        ([3.0, "gw-2 \x1b[2J", "gw-3"], r"1 of 3 gateways have fresh numbers; gw-2  \[2J"),
    ],
)
def test_too_few_gateways_are_no_number_and_never_zero(loads: list[float | str], why: str) -> None:
    with pytest.raises(Unknown, match=why):
        gateways_in_flight(loads)


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ([JobsLoad(24, 1000), JobsLoad(24, 990)], 1048),  # both count the same lines of one database
        ([JobsLoad(24, 1000), JobsLoad(0, 0)], 1024),  # one has just started
        ([JobsLoad(3, 0)], 3),
        ([JobsLoad(4, 10), "jobs-2: TimeoutError"], 18),
    ],
)
def test_lines_that_wait_are_counted_once(loads: list[JobsLoad | str], expected: float) -> None:
    assert lines_of_jobs(loads) == expected


def test_jobs_without_a_ready_process_are_no_number() -> None:
    with pytest.raises(Unknown, match="none of the jobs processes is ready"):
        lines_of_jobs([])


def loads(reported: Reported, slices: Slices, clock: Clock, session: Any = None, service: str = "jobs") -> ReleaseLoads:
    jobs = JobsProcesses(slices, session, "slipway", service)  # type: ignore[arg-type]
    return ReleaseLoads("slipway", reported, jobs, clock)


async def test_gateways_that_drain_or_are_gone_do_not_count() -> None:
    leaving = [gateway(500, draining=True), gateway(500, ready=False), gateway(500, ready=False, gone=True)]
    release = loads(Reported([gateway(7), *leaving]), Slices({}), Clock())
    assert (await release.number(GATEWAY_IN_FLIGHT)).value == 7


async def test_a_gateway_of_a_former_release_reports_no_number() -> None:
    release = loads(Reported([gateway(None)]), Slices({}), Clock())
    with pytest.raises(Unknown, match="gw does not report it"):
        await release.number(GATEWAY_IN_FLIGHT)


async def test_however_many_clients_read_processes_are_read_every_few_seconds() -> None:
    clock, reported = Clock(), Reported([gateway(7)])
    release = loads(reported, Slices({}), clock)
    for _ in range(20):
        number = await release.number(GATEWAY_IN_FLIGHT)
    assert (number.value, number.at, reported.polls) == (7, 100.0, 1)
    clock.seconds += READ_AGAIN_S
    reported.failure = Unavailable("the API server is away")
    for _ in range(3):
        with pytest.raises(Unknown, match="the API server is away"):
            await release.number(GATEWAY_IN_FLIGHT)
    assert reported.polls == 2
    clock.seconds += READ_AGAIN_S
    reported.failure = None
    assert (await release.number(GATEWAY_IN_FLIGHT)).value == 7


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def served(page: bytes, host: str) -> TestServer:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=page)

    application = web.Application()
    application.router.add_get("/metrics", answer)
    server = TestServer(application, host=host)
    await server.start_server()
    return server


def page(in_flight: int, short: float | None) -> bytes:
    metrics = JobsMetrics()
    metrics.in_flight.set(in_flight)
    if short is not None:
        metrics.short.set(short)
    return metrics.page()


async def test_lines_come_from_the_ready_processes(session: aiohttp.ClientSession) -> None:
    """The pages are those that the process writes; one that drains, or has not counted yet, is left out."""
    first, second = await served(page(20, 300), "127.0.0.1"), await served(page(4, None), "127.0.0.2")
    draining = await served(page(99, 999), "127.0.0.3")
    slices = Slices({first.port or 0: True, second.port or 0: True, draining.port or 0: False})
    release = loads(Reported([]), slices, Clock(), session)
    assert (await release.number(JOBS_LINES)).value == 2 * 20 + 300
    assert slices.lists == [("slipway", "kubernetes.io/service-name=jobs")]
    for server in (first, second, draining):
        await server.close()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"slipway_jobs_in_flight 3\n", "does not report slipway_jobs_short_of_places"),
        (b"slipway_jobs_in_flight -3\nslipway_jobs_short_of_places 1\n", "slipway_jobs_in_flight is -3"),
        (b"slipway_jobs_in_flight{", "Malformed"),
        (b"x" * (3 << 20), "does not report"),
    ],
)
async def test_a_page_that_cannot_be_read_is_no_number(session: aiohttp.ClientSession, body: bytes, why: str) -> None:
    server = await served(body, "127.0.0.1")
    with pytest.raises(Unknown, match=why):
        await loads(Reported([]), Slices({server.port or 0: True}), Clock(), session).number(JOBS_LINES)
    await server.close()


async def test_a_process_that_is_away_is_no_number(session: aiohttp.ClientSession) -> None:
    with pytest.raises(Unknown, match="ClientConnectorError"):
        await loads(Reported([]), Slices({unused_port(): True}), Clock(), session).number(JOBS_LINES)


@pytest.fixture
async def client() -> AsyncIterator[TestClient[Any, Any]]:
    clock = Clock()
    sampler = MetricsSampler(Reported([]), None, clock)  # type: ignore[arg-type]
    release = loads(Reported([gateway(7)]), Slices({}), clock, service="")
    now = datetime(2026, 11, 22, 12, tzinfo=UTC)
    async with TestClient(TestServer(Api(sampler, release, lambda: now).application(frozenset))) as client:
        yield client


async def test_an_external_metric_of_the_releases_own_namespace(client: TestClient[Any, Any]) -> None:
    answer = await client.get(f"{EXTERNAL}/slipway/{GATEWAY_IN_FLIGHT}")
    assert (await answer.json())["items"] == [
        {"metricName": GATEWAY_IN_FLIGHT, "metricLabels": {}, "timestamp": "2026-11-22T12:00:00Z", "value": "7"}
    ]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (f"team-a/{GATEWAY_IN_FLIGHT}", "is of the release's own namespace, and has no labels"),
        (f"slipway/{GATEWAY_IN_FLIGHT}?labelSelector=a%3Db", "is of the release's own namespace, and has no labels"),
        (f"slipway/{JOBS_LINES}", "slipway_jobs_lines: this release has no jobs processes (jobs.enabled)"),
    ],
)
async def test_what_the_release_does_not_have_is_not_found(
    client: TestClient[Any, Any], path: str, message: str
) -> None:
    answer = await client.get(f"{EXTERNAL}/{path}")
    assert answer.status == 404 and message in (await answer.json())["message"]
