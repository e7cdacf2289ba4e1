"""The arithmetic of limits: rates hold, settlement is exact, refusals cost nothing."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_gateway.quotas.gcra import Bucket, Hold, Rate
from slipway_gateway.quotas.tenant import (
    CONCURRENCY,
    INPUT,
    OUTPUT,
    REQUESTS,
    LimitReached,
    Limits,
    Reservation,
    TenantQuota,
    duration,
)

RATES = st.builds(Rate, st.integers(1, 10_000), st.integers(1, 10_000))


@dataclass
class Event:
    gap_s: float
    reserved: int
    used: int
    settled_after: int  # events


EVENTS = st.lists(
    st.builds(Event, st.floats(0, 30), st.integers(0, 300), st.integers(0, 600), st.integers(0, 6)), max_size=40
)


@dataclass
class Run:
    """Takes what conforms and settles it some events later."""

    bucket: Bucket
    now_s: float = 0.0
    admitted: list[tuple[float, int]] = field(default_factory=list)
    charged: dict[int, tuple[float, int]] = field(default_factory=dict)

    def play(self, events: list[Event]) -> None:
        open_: list[tuple[int, Hold, int]] = []
        for index, event in enumerate(events):
            self.now_s += event.gap_s
            for due, hold, used in [one for one in open_ if one[0] <= index]:
                self.bucket.settle(hold, used, self.now_s)
                open_.remove((due, hold, used))
            if self.bucket.wait_s(event.reserved, self.now_s) == 0:
                hold = self.bucket.take(event.reserved, self.now_s)
                self.admitted.append((self.now_s, min(hold.amount, event.used)))
                open_.append((index + event.settled_after + 1, hold, min(hold.amount, event.used)))


@given(RATES, EVENTS)
def test_in_any_window_at_most_a_full_bucket_and_what_flowed_back_is_used(rate: Rate, events: list[Event]) -> None:
    """For requests that use no more than they reserved: their overshoot is 0."""
    run = Run(Bucket(rate))
    run.play(events)
    for first in range(len(run.admitted)):
        total = 0
        for at_s, used in run.admitted[first:]:
            total += used
            window_s = at_s - run.admitted[first][0]
            assert total <= rate.burst + window_s / rate.interval_s + 1e-3


@given(RATES, EVENTS)
def test_a_bucket_never_has_more_than_if_the_use_had_been_known(rate: Rate, events: list[Event]) -> None:
    run, known = Run(Bucket(rate)), Bucket(rate)
    run.play(events)
    for at_s, used in run.admitted:
        known.take(used, at_s)
    assert run.bucket.full_in_s(run.now_s) >= known.full_in_s(run.now_s) - 1e-3


@given(RATES, st.integers(1, 20_000), st.integers(0, 20_000), st.floats(0, 100))
def test_a_hold_settled_at_once_leaves_what_was_used(rate: Rate, reserved: int, used: int, now_s: float) -> None:
    bucket = Bucket(rate)
    bucket.settle(bucket.take(reserved, now_s), used, now_s)
    assert bucket.full_in_s(now_s) == pytest.approx(min(used, 2 * rate.burst) * rate.interval_s, abs=1e-6)


@pytest.mark.finding("F3")
@given(RATES, st.lists(st.integers(0, 1 << 62), min_size=1, max_size=20), st.floats(0, 100))
def test_one_full_bucket_of_debt_is_the_most(rate: Rate, reports: list[int], now_s: float) -> None:
    """One report of 2^40 tokens locked a tenant out for 41 years."""
    bucket = Bucket(rate)
    for hold, used in [(bucket.take(1, now_s), used) for used in reports]:
        bucket.settle(hold, used, now_s)
    assert bucket.wait_s(1, now_s) <= (rate.burst + 1) * rate.interval_s * 1.001


@pytest.mark.finding("F3")
def test_debt_of_a_larger_limit_is_at_most_a_full_bucket_of_the_new_one() -> None:
    bucket = Bucket(Rate(1_000_000, 1_000_000))
    bucket.settle(bucket.take(1, 0.0), 1 << 40, 0.0)
    bucket.change(Rate(60, 60), 0.0)
    assert bucket.wait_s(1, 0.0) == pytest.approx(61)


@given(RATES, st.integers(0, 500), st.integers(0, 500))
def test_the_second_settlement_does_nothing(rate: Rate, used: int, again: int) -> None:
    bucket = Bucket(rate)
    hold = bucket.take(100, 0.0)
    bucket.settle(hold, used, 1.0)
    before = bucket.tat_s
    bucket.settle(hold, again, 2.0)
    assert bucket.tat_s == before


@given(RATES, st.integers(1, 100_000), st.floats(0, 1e9))
def test_after_the_wait_that_it_names_a_request_is_taken(rate: Rate, amount: int, now_s: float) -> None:
    bucket = Bucket(rate)
    bucket.take(rate.burst, now_s)
    wait_s = bucket.wait_s(amount, now_s)
    assert 0 < wait_s <= rate.burst * rate.interval_s * 1.001
    assert bucket.wait_s(amount, now_s + wait_s + 1e-6) == 0


@given(RATES)
def test_refusals_charge_nothing_and_lock_nobody_out(rate: Rate) -> None:
    quota = TenantQuota(Limits(requests_per_minute=rate.per_minute))
    wait_s = 0.0
    while not isinstance(refusal := quota.reserve({REQUESTS: 1}, 0.0), LimitReached):
        pass
    for _ in range(1000):
        again = quota.reserve({REQUESTS: 1}, 0.0)
        assert isinstance(again, LimitReached)
        assert again.wait_s == refusal.wait_s
        wait_s = again.wait_s
    assert isinstance(quota.reserve({REQUESTS: 1}, wait_s + 1e-6), Reservation)


def test_a_limit_below_the_default_reservation_still_works() -> None:
    quota = TenantQuota(Limits(output_tokens_per_minute=100))
    taken = quota.reserve({OUTPUT: 512}, 0.0)
    assert isinstance(taken, Reservation)
    assert isinstance(quota.reserve({OUTPUT: 512}, 0.0), LimitReached)
    quota.settle(taken, {OUTPUT: 0}, 0.0)
    assert isinstance(quota.reserve({OUTPUT: 512}, 0.0), Reservation)


def test_all_buckets_are_taken_from_or_none() -> None:
    quota = TenantQuota(Limits(requests_per_minute=10, input_tokens_per_minute=100, concurrency=8))
    assert isinstance(quota.reserve({REQUESTS: 1, INPUT: 100}, 0.0), Reservation)
    refusal = quota.reserve({REQUESTS: 1, INPUT: 50}, 0.0)
    assert refusal == LimitReached(INPUT, 30.0)
    assert quota.headers(0.0)["x-ratelimit-remaining-requests"] == "9"
    assert quota.running == 1


def test_of_100_requests_at_once_with_a_limit_of_one_one_is_taken() -> None:
    for limits, name in ((Limits(requests_per_minute=1), REQUESTS), (Limits(concurrency=1), CONCURRENCY)):
        quota = TenantQuota(limits)
        results = [quota.reserve({REQUESTS: 1}, 0.0) for _ in range(100)]
        assert sum(isinstance(one, Reservation) for one in results) == 1
        assert {one.limit for one in results if isinstance(one, LimitReached)} == {name}


def test_a_place_is_given_back_once() -> None:
    quota = TenantQuota(Limits(concurrency=1))
    first = quota.reserve({}, 0.0)
    assert isinstance(first, Reservation)
    quota.settle(first, {}, 0.0)
    quota.settle(first, {}, 0.0)
    assert quota.running == 0


def test_overshoot_is_what_requests_in_flight_used_beyond_their_reservations() -> None:
    """The bound of docs/tenants.md: with C in flight, C times what one of them used beyond its reservation."""
    quota, parallel, reserved, used = TenantQuota(Limits(output_tokens_per_minute=1000)), 10, 100, 190
    taken = [quota.reserve({OUTPUT: reserved}, 0.0) for _ in range(parallel)]
    assert all(isinstance(one, Reservation) for one in taken)
    assert isinstance(quota.reserve({OUTPUT: reserved}, 0.0), LimitReached)
    for one in taken:
        assert isinstance(one, Reservation)
        quota.settle(one, {OUTPUT: used}, 0.0)
    refusal = quota.reserve({OUTPUT: 1}, 0.0)
    # What was used beyond the limit is waited for: later requests pay it back.
    assert isinstance(refusal, LimitReached)
    assert refusal.wait_s == pytest.approx((parallel * (used - reserved) + 1) * 0.06)


@given(st.integers(1, 1000), st.integers(1, 1000), st.integers(0, 1000))
def test_another_limit_keeps_what_is_owed(before: int, after: int, used: int) -> None:
    quota = TenantQuota(Limits(input_tokens_per_minute=before))
    taken = quota.reserve({INPUT: used}, 0.0)
    assert isinstance(taken, Reservation)
    quota.change(Limits(input_tokens_per_minute=after, concurrency=3), 0.0)
    owed = min(used, before)
    assert int(quota.headers(0.0)["x-ratelimit-remaining-tokens"]) == pytest.approx(max(0, after - owed), abs=1)
    quota.settle(taken, {INPUT: 0}, 0.0)
    assert quota.running == 0


def test_headers_are_those_of_openai() -> None:
    quota = TenantQuota(Limits(requests_per_minute=60, input_tokens_per_minute=1000, output_tokens_per_minute=100))
    quota.reserve({REQUESTS: 1, INPUT: 100, OUTPUT: 50}, 0.0)
    assert quota.headers(0.0) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "50",
        "x-ratelimit-reset-tokens": "30s",
    }


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.012, "12ms"), (1.5, "1.5s"), (60, "1m0s"), (360, "6m0s"), (3600, "1h0m0s"), (59.9999, "1m0s")],
)
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text
