"""Ejection of endpoints that fail: Envoy's outlier detection (safety 25)."""

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_gateway.balancing.outlier import OutlierDetection, OutlierDetector

from .harness import answering, echo, gateway, refused_url, upstream

pytestmark = pytest.mark.finding(25)

URLS = ("http://a", "http://b", "http://c", "http://d")
RULE = OutlierDetection(5, 3, 10.0, 25.0, 50)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def outliers(rule: OutlierDetection = RULE) -> tuple[OutlierDetector, Clock]:
    clock = Clock()
    return OutlierDetector(rule, clock), clock


def test_failures_in_a_row_eject_and_one_success_between_them_does_not() -> None:
    found, _ = outliers()
    assert [found.failed(URLS[0], URLS, gateway=True) for _ in range(2)] == [False, False]
    found.succeeded(URLS[0])
    assert [found.failed(URLS[0], URLS, gateway=True) for _ in range(3)] == [False, False, True]
    assert found.ejected() == {URLS[0]}


def test_other_5xx_have_their_own_count() -> None:
    found, _ = outliers()
    assert [found.failed(URLS[0], URLS, gateway=False) for _ in range(5)] == [False] * 4 + [True]
    off, _ = outliers(OutlierDetection(0, 0))
    assert not any(off.failed(URLS[0], URLS, gateway=True) for _ in range(50))


def test_ejection_time_grows_up_to_its_maximum() -> None:
    found, clock = outliers()
    for lasts in (10.0, 20.0, 25.0, 25.0):
        while not found.failed(URLS[0], URLS, gateway=True):
            pass
        clock.now += lasts - 0.1
        assert found.ejected() == {URLS[0]}
        clock.now += 0.2
        assert not found.ejected()
    # Well again: one step back for each answer.
    for _ in range(4):
        found.succeeded(URLS[0])
    while not found.failed(URLS[0], URLS, gateway=True):
        pass
    clock.now += 10.1
    assert not found.ejected()


@given(st.integers(1, 12), st.integers(0, 100), st.lists(st.integers(0, 11), max_size=120))
def test_ejections_are_bounded_and_leave_one_endpoint(count: int, percent: int, failing: list[int]) -> None:
    urls = tuple(f"http://{n}" for n in range(count))
    found, _ = outliers(OutlierDetection(2, 2, 10.0, 25.0, percent))
    for n in failing:
        found.failed(urls[n % count], urls, gateway=True)
        out = len(found.ejected())
        assert out <= max(1, count * percent // 100) and out < count and (percent or not out)


def test_failures_of_requests_from_before_an_ejection_do_not_prolong_it() -> None:
    found, clock = outliers()
    while not found.failed(URLS[0], URLS, gateway=True):
        pass
    for _ in range(50):
        assert not found.failed(URLS[0], URLS, gateway=True)
    clock.now += 10.1
    assert not found.ejected()
    assert [found.failed(URLS[0], URLS, gateway=True) for _ in range(3)] == [False, False, True]


def test_removed_endpoints_are_forgotten() -> None:
    found, _ = outliers()
    while not found.failed(URLS[0], URLS, gateway=True):
        pass
    found.follow(URLS)
    assert found.ejected()
    found.follow(URLS[1:])
    assert not found.ejected() and not found._endpoints


async def test_an_endpoint_that_cannot_be_reached_is_not_tried_each_time() -> None:
    """Safety 25: such a one costs each request up to 2 s."""
    async with upstream(echo) as server, gateway(sticky_by=()) as gate:
        gate.route(("rev", 100, [server.url, refused_url()]))
        read = gate.metrics.registry.get_sample_value
        for _ in range(200):
            async with await gate.post() as answer:
                assert answer.status == 200
        retries = read("slipway_gateway_retries_total", {"model": "chat", "revision": "rev", "reason": "connect"})
        assert retries == 5
        assert read("slipway_gateway_ejected_endpoints") == 1
        assert read("slipway_gateway_ejections_total", {"model": "chat", "revision": "rev"}) == 1


async def test_the_only_endpoint_is_tried_however_it_fails() -> None:
    async with upstream(answering(500)) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        for _ in range(20):
            async with await gate.post() as answer:
                assert answer.status == 500
        assert len(server.bodies) == 20
        assert gate.metrics.registry.get_sample_value("slipway_gateway_ejected_endpoints") == 0


@pytest.mark.parametrize("status", [400, 429])
async def test_client_errors_eject_no_endpoint(status: int) -> None:
    async with upstream(answering(status)) as one, upstream(answering(status)) as two, gateway() as gate:
        gate.route(("rev", 100, [one.url, two.url]))
        for _ in range(12):
            async with await gate.post() as answer:
                assert answer.status == status
        assert gate.metrics.registry.get_sample_value("slipway_gateway_ejected_endpoints") == 0


async def test_ejected_endpoint_is_used_when_there_is_no_other() -> None:
    async with upstream(answering(503)) as one, upstream(answering(503)) as two, gateway() as gate:
        gate.route(("rev", 100, [one.url, two.url]))
        for _ in range(8):
            async with await gate.post() as answer:
                assert answer.status == 503
        seen = len(one.bodies), len(two.bodies)
        assert gate.metrics.registry.get_sample_value("slipway_gateway_ejected_endpoints") == 1
        async with aiohttp.ClientSession() as client, client.post(gate.url + "/v1/completions", json={"model": "chat"}):
            pass
        assert len(one.bodies) > seen[0] and len(two.bodies) > seen[1]


@pytest.mark.parametrize("attempts", [1, 3])
async def test_retries_are_the_attempts_after_the_first_one(attempts: int) -> None:
    async with upstream(answering(503)) as server, gateway(max_attempts=attempts, hold_timeout_s=60) as gate:
        gate.route(("rev", 100, [server.url]))
        async with await gate.post() as answer:
            assert answer.status == 503
        labels = {"model": "chat", "revision": "rev", "reason": "503"}
        counted = gate.metrics.registry.get_sample_value("slipway_gateway_retries_total", labels) or 0
        assert (len(server.bodies), counted) == (attempts, attempts - 1)
