"""The admin port over a real socket, and the checks behind it."""

from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry, Gauge

from slipway_operator.telemetry import health


async def test_health_pages_list_the_problems():
    registry = CollectorRegistry()
    Gauge("answer", "Of everything.", registry=registry).set(42)
    wrong = ["first", None, "second"]
    application = health.application(
        registry, live=[lambda: None], ready=[lambda problem=problem: problem for problem in wrong]
    )
    async with TestClient(TestServer(application)) as client:
        live, ready, metrics = [await client.get(path) for path in ("/livez", "/readyz", "/metrics")]
        assert (live.status, await live.text()) == (200, "ok\n")
        assert (ready.status, await ready.text()) == (503, "first\nsecond\n")
        assert "answer 42.0" in await metrics.text()


def test_a_late_loop_is_noticed():
    now = [0.0]
    pulse = health.Pulse(lambda: now[0])
    assert pulse.check() is None
    now[0] += 6.0
    assert pulse.check() == "the event loop is 5.5 s late"


def test_a_reconcile_that_hangs_is_noticed():
    assert health.run_check(lambda: 599.0)() is None
    assert health.run_check(lambda: 601.0)() == "a reconcile has been running for 601 s"


async def test_what_the_operator_works_without_is_in_the_text():
    missing = ["failing again and again: pools"]
    application = health.application(CollectorRegistry(), live=[], ready=[], missing=lambda: missing[0])
    async with TestClient(TestServer(application)) as client:
        ready = await client.get("/readyz")
        assert (ready.status, await ready.text()) == (200, "ok\nfailing again and again: pools\n")
        missing[0] = ""
        assert await (await client.get("/readyz")).text() == "ok\n"
