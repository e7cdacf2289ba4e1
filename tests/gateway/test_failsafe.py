"""What a gateway does without the operator: it cuts off a failing revision, and gives up stale weights."""

import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from slipway_contracts.route_table import Backend
from slipway_gateway.balancing.failsafe import MAX_COOLDOWN_S, CutOffRule, RouteHealth, fall_back_to_stable
from slipway_gateway.balancing.failsafe_state import FailsafeSettings
from slipway_gateway.balancing.load_balancer import LoadBalancer
from slipway_gateway.routing.table import Route
from slipway_gateway.serving.operator_token import OperatorToken
from slipway_gateway.telemetry.metrics import GatewayMetrics
from tests.support.report import route_reports

from . import test_process
from .harness import echo, gateway, refused_url, table, upstream

SPLIT = (Backend("c", 25), Backend("s", 75))
RULE = CutOffRule(failures=5, after_s=0.0, cooldown_s=60.0)


def watch(backends: tuple[Backend, ...] = SPLIT, rule: CutOffRule = RULE) -> RouteHealth:
    return RouteHealth(rule, backends)


def fail(one: RouteHealth, revision: str, times: int, now_s: float = 0.0) -> None:
    for _ in range(times):
        one.failed(revision, None, now_s)


@pytest.mark.finding(18)
def test_one_client_cuts_nothing_off_while_there_are_others() -> None:
    """safety 18: ten bad requests in a row of one client cut the canary off for all clients."""
    one = watch(rule=CutOffRule(failures=10, after_s=0.0))
    one.began("s", "victim")
    for now_s in range(40):
        one.failed("c", None, float(now_s), "hostile")
    assert one.cut is None
    for now_s in range(40, 45):
        one.failed("c", None, float(now_s), "victim")
    assert one.cut is not None, "two clients see the same"


def test_the_only_client_of_a_route_can_see_a_revision_cut_off() -> None:
    one = watch(rule=CutOffRule(failures=10, after_s=0.0))
    for now_s in range(11):
        one.failed("c", None, float(now_s), "the only one")
    assert one.cut is not None


def test_consecutive_failures_cut_a_revision_off() -> None:
    one = watch()
    fail(one, "c", 4)
    assert one.cut is None and not one.avoids("c", 0)
    fail(one, "c", 1)
    assert one.cut and one.cut.reason == "its last 5 tries failed"
    assert one.avoids("c", 59.9) and not one.avoids("s", 0)


def test_high_failure_share_cuts_a_revision_off() -> None:
    one = watch()
    for _ in range(4):
        fail(one, "c", 4)
        assert one.cut is None
        one.began("c")
    # 16 of 20 is the share; a success between does not hide it.
    assert one.cut is None
    fail(one, "c", 1)
    assert one.cut and one.cut.reason == "16 of its last 20 tries failed"


def test_brief_failures_cut_nothing_off() -> None:
    """A pod that is killed refuses connections until the table drops it."""
    one = watch(rule=CutOffRule(failures=5, after_s=5.0))
    fail(one, "c", 100, now_s=0.0)
    fail(one, "c", 100, now_s=4.9)
    assert one.cut is None
    for _ in range(20):
        one.began("c")
    fail(one, "c", 5, now_s=5.0)
    assert one.cut is None
    fail(one, "c", 1, now_s=9.9)
    assert one.cut is None
    fail(one, "c", 1, now_s=10.0)
    assert one.cut and one.cut.until_s == 70.0


def test_one_dead_pod_of_two_cuts_nothing_off() -> None:
    """The other pod takes each request at the second try."""
    one = watch()
    for _ in range(200):
        fail(one, "c", 1)
        one.began("c")
    assert one.cut is None


def test_answers_that_break_off_count_as_failures() -> None:
    one = watch()
    begun = [one.began("c") for _ in range(5)]
    for each in begun:
        assert one.cut is None
        one.failed("c", each, 0.0)
    assert one.cut


@pytest.mark.parametrize(
    ("backends", "rule"),
    [
        (SPLIT, CutOffRule(failures=0)),
        ((Backend("c", 100),), RULE),
        ((Backend("c", 100), Backend("s", 0)), RULE),
        ((Backend("c", 0), Backend("s", 100)), RULE),
        ((Backend("x", 25), Backend("c", 75)), RULE),
    ],
    ids=["off", "alone", "promoted", "weightless", "stable"],
)
def test_only_a_revision_under_test_beside_another_is_cut_off(backends: tuple[Backend, ...], rule: CutOffRule) -> None:
    one = watch(backends, rule)
    fail(one, "c", 100)
    assert one.cut is None


def test_failures_of_stable_too_cut_nothing_off() -> None:
    one = watch()
    for _ in range(3):
        one.began("s")
    fail(one, "s", 3)
    fail(one, "c", 50)
    assert one.cut is None
    for _ in range(3):
        one.began("s")
    fail(one, "c", 1)
    assert one.cut


def test_successful_trials_end_a_cut_off() -> None:
    one = watch()
    straggler = one.began("c")
    fail(one, "c", 5)
    one.failed("c", straggler, 1.0)
    assert one.cut and one.cut.until_s == 60
    assert not one.avoids("c", 60.0)
    # One a second, however many ask.
    assert one.avoids("c", 60.5) and one.avoids("c", 60.9)
    one.began("c")
    assert not one.avoids("c", 61.0)
    one.began("c")
    assert one.cut
    assert not one.avoids("c", 62.0)
    one.began("c")
    assert one.cut is None and not one.avoids("c", 62.1)
    # What was before is forgotten.
    fail(one, "c", 4)
    assert one.cut is None


def test_a_trial_that_fails_waits_longer() -> None:
    one = watch()
    fail(one, "c", 5)
    now_s, waited = 0.0, []
    for _ in range(6):
        assert one.cut
        waited.append(one.cut.until_s - now_s)
        now_s = one.cut.until_s
        assert not one.avoids("c", now_s)
        fail(one, "c", 2, now_s)
    assert waited == [60, 120, 240, 480, MAX_COOLDOWN_S, MAX_COOLDOWN_S]


@pytest.mark.parametrize(
    ("weights", "replicas", "ready", "after"),
    [
        ((25, 75), 4, 4, (0, 100)),
        ((50, 50), 4, 3, (25, 75)),
        ((50, 50), 4, 1, (50, 50)),
        ((25, 75), 4, 6, (0, 100)),
        ((25, 75), 0, 1, (0, 100)),
        ((25, 75), 4, 0, (25, 75)),
        ((100, 0), 4, 4, (100, 0)),
        ((0, 100), 4, 4, (0, 100)),
    ],
)
def test_weight_goes_back_as_far_as_stable_pods_can_carry(
    weights: tuple[int, int], replicas: int, ready: int, after: tuple[int, int]
) -> None:
    backends = (Backend("c", weights[0]), Backend("s", weights[1]))
    route = fall_back_to_stable(Route("default/chat", "uid", "chat", backends=backends, replicas=replicas), ready)
    assert tuple(backend.weight for backend in route.backends) == after


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def backends(clock: Clock, ttl_s: float = 0.0) -> LoadBalancer:
    return LoadBalancer(GatewayMetrics("test"), FailsafeSettings(RULE, ttl_s), clock)


def picked(one: LoadBalancer) -> str:
    found = one.pick("chat", "key", ())
    assert found
    return found.revision


def gauge(one: LoadBalancer, kind: str) -> float | None:
    labels = {"route": "default/chat", "kind": kind}
    return one.metrics.registry.get_sample_value("slipway_gateway_failsafe", labels)


HERE = (("c", 99, ["http://c"]), ("s", 1, ["http://s"]))


def test_a_new_generation_undoes_a_cut(caplog: pytest.LogCaptureFixture) -> None:
    one = backends(Clock())
    one.publish(table(1, *HERE))
    for _ in range(5):
        endpoint = one.pick("chat", "key", ())
        assert endpoint and endpoint.revision == "c"
        lease = one.start_attempt(endpoint, first=True)
        lease.failed()
        lease.failed()
        lease.release()
    assert picked(one) == "s" and gauge(one, "cut_off") == 1
    report = route_reports(one)["default/chat"]
    assert report["failsafe"] == {"cut_off": "c", "reason": "its last 5 tries failed", "expired": False}
    assert report["revisions"]["c"]["failures"] == 5
    assert "revision c is cut off: its last 5 tries failed" in caplog.text
    # Other endpoints are no new generation; and a bad revision is better than none.
    one.publish(table(1, HERE[0], ("s", 1, [])))
    assert picked(one) == "c"
    one.publish(table(2, *HERE))
    assert picked(one) == "c" and gauge(one, "cut_off") == 0
    assert caplog.messages[-1] == "default/chat: revision c is no longer cut off"
    # A stream of the old generation that breaks now changes nothing.
    lease.failed()


def test_weights_without_renewal_expire(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    one = backends(clock, ttl_s=900)
    one.publish(table(1, *HERE))
    clock.now_s = 900
    assert picked(one) == "c"
    clock.now_s = 901
    # New endpoints, or the same table again, do not renew the weights.
    one.publish(table(1, ("c", 99, ["http://c", "http://d"]), HERE[1]))
    assert picked(one) == "s" and gauge(one, "expired") == 1
    assert route_reports(one)["default/chat"]["failsafe"]["expired"]
    assert "the operator did not renew its weights" in caplog.text
    one.failsafe.renew()
    assert picked(one) == "c"
    clock.now_s = 1900
    assert picked(one) == "s"
    one.publish(table(2, *HERE))
    assert picked(one) == "c" and gauge(one, "expired") == 0


def test_a_route_that_goes_leaves_no_gauge() -> None:
    one = backends(Clock(), ttl_s=1)
    one._clock.now_s = 0.0  # type: ignore[attr-defined]
    one.publish(table(1, *HERE))
    one._clock.now_s = 5.0  # type: ignore[attr-defined]
    assert picked(one) == "s"
    one.publish(table(1))
    one.publish(type(table(1))())
    assert gauge(one, "expired") is None and not one.failsafe._reported


@pytest.mark.finding(19)
@pytest.mark.attack_class(2)
async def test_reading_a_report_renews_no_weights() -> None:
    """Safety 19: any client of the admin port kept weights alive that the operator no longer renewed."""
    async with gateway() as gate:
        gate.route(*HERE)
        before, now_s = gate.balancer.failsafe._renewed_s["default/chat"], time.monotonic() + 1000
        gate.balancer.failsafe._clock = lambda: now_s
        async with gate.client.get(gate.admin_url + "/internal/routes") as answer:
            assert answer.status == 200
        assert gate.balancer.failsafe._renewed_s["default/chat"] == before


@pytest.mark.finding(19)
@pytest.mark.attack_class(2)
def test_only_a_token_of_the_file_authenticates_the_operator(tmp_path: Path) -> None:
    """Safety 19."""
    path = tmp_path / "token"
    token = OperatorToken(str(path))
    assert not token.proves("Bearer "), "a file that is not there proves nothing"
    path.write_text("next-token-0123456789 former-token-0123456789\n")
    assert token.proves("Bearer next-token-0123456789") and token.proves("Bearer former-token-0123456789")
    for wrong in ("", "Bearer", "Bearer ", "next-token-0123456789", "Bearer next-token", "Basic next-token-0123456789"):
        assert not token.proves(wrong)
    path.write_text("short")
    assert not token.proves("Bearer short"), "what can be guessed is no token"
    assert OperatorToken("").proves("")


@pytest.mark.finding(19)
@pytest.mark.attack_class(2)
async def test_a_post_without_the_token_renews_nothing(tmp_path: Path) -> None:
    """Safety 19."""
    (tmp_path / "token").write_text("a-token-of-the-operator")
    async with gateway(operator_token_file=str(tmp_path / "token")) as gate:
        gate.route(*HERE)
        before, now_s = gate.balancer.failsafe._renewed_s["default/chat"], time.monotonic() + 1000
        gate.balancer.failsafe._clock = lambda: now_s
        url = gate.admin_url + "/internal/routes"
        async with gate.client.post(url) as answer:
            assert answer.status == 401 and "--operator-token-file" in await answer.text()
        assert gate.balancer.failsafe._renewed_s["default/chat"] == before
        async with gate.client.post(url, headers={"Authorization": "Bearer a-token-of-the-operator"}) as answer:
            assert answer.status == 200 and "default/chat" in (await answer.json())["routes"]
        assert gate.balancer.failsafe._renewed_s["default/chat"] == now_s


async def test_a_report_to_the_operator_renews() -> None:
    async with gateway() as gate:
        gate.route(*HERE)
        renewed_s, now_s = gate.balancer.failsafe._renewed_s["default/chat"], time.monotonic() + 1000
        gate.balancer.failsafe._clock = lambda: now_s
        async with gate.client.post(gate.admin_url + "/internal/routes") as answer:
            assert answer.status == 200
        assert gate.balancer.failsafe._renewed_s["default/chat"] == now_s > renewed_s


@pytest.mark.integration
async def test_a_canary_that_fails_hard_is_cut_off_by_the_process(tmp_path: Path) -> None:
    """No pod of the canary responds; clients see no error, and soon no request is tried there."""
    async with upstream(echo) as stable, aiohttp.ClientSession() as client:
        split = [
            {"revision": "c", "weight": 50, "endpoints": [refused_url()]},
            {"revision": "s", "weight": 50, "endpoints": [stable.url]},
        ]
        path = tmp_path / "r.yaml"
        path.write_text(yaml.safe_dump({"models": {"chat": {"backends": split}}}))
        async with test_process.gateway("--routes", str(path), "--cut-off-failures=5", "--cut-off-after=0") as process:

            async def report() -> dict[str, Any]:
                async with client.get(process.url("admin") + "/internal/routes") as answer:
                    return (await answer.json())["routes"]["file/chat"]

            async def ask(count: int) -> None:
                for n in range(count):
                    body = {"model": "chat", "user": f"u{n}"}
                    async with client.post(process.url("api") + "/v1/completions", json=body) as answer:
                        assert answer.status == 200

            await ask(40)
            cut = await report()
            assert cut["failsafe"]["cut_off"] == "c" and cut["revisions"]["c"]["failures"] == 5
            await ask(40)
            assert (await report())["revisions"]["c"]["requests"] == 5
            assert process.log_entries("revision c is cut off")
