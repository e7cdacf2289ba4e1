"""Numbers from readings: fresh values, rates and percentiles; and errors without a fresh reading, never zero."""

import math

import pytest

from slipway_operator.metrics_api.exposition import ExposedSample
from slipway_operator.metrics_api.series import (
    OF_DEPLOYMENT,
    PERIOD_S,
    STALE_S,
    Followed,
    PodTarget,
    Series,
    Unknown,
    quantile,
)

INF = math.inf


def of(*pods: str, replicas: int = 2) -> Followed:
    return Followed("u1", tuple(PodTarget(name, "10.0.0.1", "rev1") for name in pods), replicas, True)


def reading(
    waiting: float = 0, running: float = 0, tokens: float = 0, kv: float = 0, ttft: tuple[float, ...] = (0, 0, 0)
) -> ExposedSample:
    """`ttft`: first tokens up to 0.1 s, 1 s and in all."""
    return ExposedSample(waiting, running, tokens, kv, tuple(zip((0.1, 1.0, INF), ttft, strict=True)))


def series(**readings: ExposedSample) -> Series:
    """Pods with a reading at 0 s."""
    made = Series(of(*readings), 0.0)
    for name, item in readings.items():
        made.add_reading(name, item, 0.0)
    return made


def value(made: Series, metric: str, now: float) -> float:
    return made.number(f"slipway_{metric}", now).value


def why(made: Series, metric: str, now: float) -> str:
    with pytest.raises(Unknown) as unknown:
        made.number(f"slipway_{metric}", now)
    return str(unknown.value)


def test_gauges_add_up_over_pods() -> None:
    made = series(a=reading(waiting=3, running=2, kv=0.5), b=reading(waiting=4, running=1, kv=0.25))
    assert value(made, "queue_depth", 1) == 7
    assert value(made, "requests_running", 1) == 3
    assert value(made, "kv_cache_usage", 1) == 0.75
    assert made.of_pod("slipway_queue_depth", "b", 1).value == 4


def test_a_measured_zero_is_a_number() -> None:
    assert value(series(a=reading()), "queue_depth", 1) == 0


@pytest.mark.parametrize("metric", sorted(set(OF_DEPLOYMENT) - {"slipway_desired_replicas"}))
def test_no_reading_yet(metric: str) -> None:
    assert "not polled yet" in why(Series(of("a"), 0.0), metric.removeprefix("slipway_"), 1)


@pytest.mark.parametrize("metric", sorted(set(OF_DEPLOYMENT) - {"slipway_in_flight", "slipway_desired_replicas"}))
def test_without_a_ready_pod_there_is_no_number(metric: str) -> None:
    assert why(Series(of(), 0.0), metric.removeprefix("slipway_"), 1) == "no pod is ready"


@pytest.mark.parametrize("metric", ["queue_depth", "kv_cache_usage", "ttft_p95_seconds"])
def test_stale_reading_is_an_error(metric: str) -> None:
    made = series(a=reading(waiting=3))
    made.add_reading("a", "/metrics answers 503", STALE_S - 1)
    assert value(made, "queue_depth", STALE_S) == 3, "one missed reading is none"
    assert "0 of 1 pods have fresh numbers; pod a: /metrics answers 503" in why(made, metric, STALE_S + 1)


def test_one_silent_pod_counts_like_the_others_and_half_of_them_are_too_many() -> None:
    made = series(a=reading(waiting=2), b=reading(waiting=4), c=reading(waiting=9))
    for name in ("a", "b"):
        made.add_reading(name, reading(waiting=6), STALE_S + 5)
    assert value(made, "queue_depth", STALE_S + 5) == 18
    made = series(a=reading(), b=reading(), c=reading())
    made.add_reading("a", reading(waiting=6), STALE_S + 5)
    assert "1 of 3 pods have fresh numbers" in why(made, "queue_depth", STALE_S + 5)


def test_a_new_pod_is_no_silent_one() -> None:
    """Counted like its busy neighbours, each new pod would raise the desired number of pods."""
    made = series(a=reading(waiting=8))
    made.follow(of("a", "b"), 1.0)
    assert value(made, "queue_depth", 2) == 8


def test_a_pod_that_left_counts_no_more() -> None:
    made = series(a=reading(waiting=8), b=reading(waiting=1))
    made.follow(of("b"), 1.0)
    made.add_reading("a", reading(waiting=8), 2.0)
    assert value(made, "queue_depth", 3) == 1


def test_tokens_per_second_are_a_rate_over_the_window() -> None:
    made = series(a=reading(tokens=1000))
    assert "a rate needs two readings" in why(made, "tokens_per_second", 1)
    for step in range(1, 13):
        made.add_reading("a", reading(tokens=1000 + 500 * step), step * PERIOD_S)
    number = made.number("slipway_tokens_per_second", 120)
    assert (number.value, number.window_s, number.at) == (50, 60, 120)


def test_counter_reset_counts_from_zero() -> None:
    made = series(a=reading(tokens=1000))
    made.add_reading("a", reading(tokens=1200), 10)
    made.add_reading("a", reading(tokens=100), 20)
    assert value(made, "tokens_per_second", 20) == (200 + 100) / 20


def test_a_server_that_generates_nothing_has_rate_zero() -> None:
    made = series(a=reading(tokens=1000))
    made.add_reading("a", reading(tokens=1000), 10)
    assert value(made, "tokens_per_second", 10) == 0


def test_p95_is_of_the_windows_first_tokens_over_all_pods() -> None:
    made = series(a=reading(ttft=(1000, 1000, 1000)), b=reading(ttft=(50, 60, 60)))
    made.add_reading("a", reading(ttft=(1090, 1100, 1100)), 10)
    made.add_reading("b", reading(ttft=(50, 60, 60)), 10)
    # 90 of 100 in the first bucket; the 95th is half way through the second.
    assert value(made, "ttft_p95_seconds", 10) == pytest.approx(0.55)
    assert made.of_pod("slipway_ttft_p95_seconds", "a", 10).value == pytest.approx(0.55)
    assert value(made, "ttft_p95_replica_seconds", 10) == pytest.approx(1.1), "times two replicas"


def test_p95_without_requests_is_zero_only_with_an_empty_queue() -> None:
    idle = series(a=reading(ttft=(5, 5, 5)))
    idle.add_reading("a", reading(ttft=(5, 5, 5)), 10)
    assert value(idle, "ttft_p95_seconds", 10) == 0
    stuck = series(a=reading(ttft=(5, 5, 5)))
    stuck.add_reading("a", reading(waiting=3, running=1, ttft=(5, 5, 5)), 10)
    assert "4 requests are in the pods and none had its first token" in why(stuck, "ttft_p95_seconds", 10)


def test_p95_after_a_restart_covers_requests_since_then() -> None:
    made = series(a=reading(ttft=(100, 100, 100)))
    made.add_reading("a", reading(ttft=(0, 4, 4)), 10)
    assert 0.1 < value(made, "ttft_p95_seconds", 10) <= 1.0


@pytest.mark.parametrize(
    ("share", "buckets", "expected"),
    [
        (0.5, ((1.0, 10), (INF, 10)), 0.5),
        (0.95, ((1.0, 0), (2.0, 10), (INF, 10)), 1.95),
        (0.95, ((1.0, 0), (2.0, 0), (INF, 10)), 2.0),
        (1.0, ((1.0, 3), (2.0, 3), (INF, 3)), 1.0),
    ],
)
def test_quantile_is_promqls(share: float, buckets: tuple[tuple[float, float], ...], expected: float) -> None:
    assert quantile(share, buckets) == pytest.approx(expected)


def test_in_flight_comes_from_the_gateways_and_grows_old() -> None:
    made = series(a=reading())
    made.add_gateways(5, 10)
    made.add_gateways("gateway gw-1 does not answer", 20)
    assert value(made, "in_flight", 30) == 5
    assert why(made, "in_flight", 10 + STALE_S + 1) == "gateway gw-1 does not answer"


def test_copies_and_probes_are_no_demand() -> None:
    targets = (
        PodTarget("a", "10.0.0.1", "s"),
        PodTarget("b", "10.0.0.2", "c"),
        PodTarget("t", "10.0.0.3", "s-baseline"),
    )
    made = Series(Followed("u1", targets, 1, True, copies=("c", "s-baseline")), 0.0)
    for name, waiting in (("a", 1), ("b", 5), ("t", 7)):
        made.add_reading(name, reading(waiting=waiting), 0.0)
    assert value(made, "queue_depth", 1) == 1
    assert made.of_revision("slipway_queue_depth", "c", 1).value == 5, "each revision's own number is known"
    made.follow(Followed("u1", targets, 1, True), 2.0)
    assert value(made, "queue_depth", 3) == 13


def test_memory_is_bounded() -> None:
    made = series(a=reading())
    for second in range(1000):
        made.add_reading("a", reading(tokens=second), float(second))
    assert len(made._pods["a"].readings) <= 8


def test_requests_held_at_gateways_count_while_their_reading_is_fresh() -> None:
    made = series(a=reading(waiting=3))
    made.add_gateways(2, 0.0, held=4)
    assert value(made, "queue_depth", 1) == 7
    assert made.of_pod("slipway_queue_depth", "a", 1).value == 3
    made.add_reading("a", reading(waiting=3), STALE_S)
    assert value(made, "queue_depth", STALE_S + 1) == 3


def test_load_of_a_sleeping_deployment_is_its_held_requests() -> None:
    made = Series(Followed("u1", (), 0, scaled=True, asleep=True), 0.0)
    assert why(made, "queue_depth", 1) == "the gateways were not polled yet"
    made.add_gateways(0, 0.0, held=0)
    assert [value(made, name, 1) for name in ("queue_depth", "tokens_per_second", "ttft_p95_seconds")] == [0, 0, 0]
    made.add_gateways(0, 2.0, held=5)
    assert value(made, "queue_depth", 3) == 5
    assert why(made, "ttft_p95_seconds", 3) == "no pod is ready"
    assert "not polled" in why(made, "queue_depth", 3 + STALE_S)
    awake = Series(Followed("u1", (), 0, scaled=True), 0.0)
    awake.add_gateways(0, 0.0)
    assert why(awake, "queue_depth", 1) == "no pod is ready"
