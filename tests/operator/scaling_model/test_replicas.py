"""Which number of pods is decided, by which rule, and that a log of looks gives the same decisions again."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from slipway_operator.scaling_model.capacity_model import Basis, Capacity
from slipway_operator.scaling_model.replicas import (
    Carries,
    Decision,
    Look,
    Memory,
    Policy,
    Rule,
    decide,
    pods_for,
    replay,
    utilization,
)

MEASURED = Capacity(100.0, 95.0, 105.0, Basis.MEASURED)
STABLE = (Carries("a", 1.0, MEASURED),)
POLICY = Policy(1, 20)
LOOK = Look(0.0, 4, 4, 0, 300.0, in_flight=10, latency=0.4, revisions=STABLE)


def over(policy: Policy, seconds: float, look: Look, memory: Memory | None = None, begin: float = 0.0) -> Decision:
    """The last of the decisions on the same look every ten seconds."""
    looks = (replace(look, at=begin + 10.0 * step) for step in range(int(seconds // 10) + 1))
    return list(replay(policy, looks, memory))[-1]


def test_pods_follow_from_arrivals_and_capacity() -> None:
    assert pods_for(800.0, STABLE, 0.8, 100) == 10
    assert decide(POLICY, replace(LOOK, demand=800.0), Memory()).desired == 10
    assert decide(POLICY, replace(LOOK, demand=8e9), Memory()).desired == 20
    assert utilization(LOOK) == 0.75


def test_a_slower_canary_needs_more_pods_of_both_and_its_one_pod_is_enough_for_a_small_share() -> None:
    slow = Capacity(25.0, 20.0, 30.0, Basis.MEASURED)
    half = (Carries("a", 0.5, MEASURED), Carries("b", 0.5, slow))
    assert (
        pods_for(200.0, half, 1.0, 100) == 7
    )  # 8 of 100/s each, half of them slow: 100/s of its 4 by 25/s; 7 rounds up
    little = (Carries("a", 0.95, MEASURED), Carries("b", 0.05, slow))
    assert pods_for(200.0, little, 1.0, 100) == 2


def test_starting_pods_are_credited() -> None:
    """The backlog of a start adds pods once, and not again while they start."""
    late = replace(LOOK, demand=500.0, backlog=3000.0, latency=3.0)
    first = decide(POLICY, late, Memory())
    assert first.rule in (Rule.BACKLOG, Rule.UTILIZATION) and first.desired == 7
    starting = replace(late, replicas=7, starting=3)
    assert over(POLICY, 80.0, starting, first.memory, 10.0).desired == 7


def test_waiting_tokens_count_above_a_share_of_the_capacity() -> None:
    assert decide(POLICY, replace(LOOK, backlog=450.0), Memory()).rule is not Rule.BACKLOG
    behind = decide(POLICY, replace(LOOK, backlog=12_000.0), Memory())
    assert behind.rule is Rule.BACKLOG and behind.desired == 5


def test_utilization_above_80_percent_for_2_minutes() -> None:
    policy = replace(POLICY, above=0.8, above_s=120.0)
    busy = replace(LOOK, demand=380.0)
    assert over(policy, 110.0, busy).desired == 4
    assert over(policy, 120.0, busy).desired == 5
    brief = over(policy, 110.0, busy)
    calm = decide(policy, replace(LOOK, at=120.0), brief.memory)
    assert over(policy, 110.0, busy, calm.memory, 130.0).desired == 4


def test_utilization_below_30_percent_for_10_minutes() -> None:
    policy = replace(POLICY, below=0.3, below_s=600.0, window_s=0.0)
    quiet = replace(LOOK, demand=100.0)
    assert over(policy, 590.0, quiet).desired == 4
    assert over(policy, 600.0, quiet).desired == 2
    assert over(policy, 3600.0, replace(LOOK, demand=150.0)).desired == 4  # 37 %


def test_empty_for_5_minutes() -> None:
    policy = replace(POLICY, window_s=3600.0)
    seen = over(policy, 100.0, LOOK)
    empty = replace(LOOK, demand=0.0, in_flight=0, latency=None)
    assert over(policy, 290.0, empty, seen.memory, 110.0).desired == 4
    last = over(policy, 300.0, empty, seen.memory, 110.0)
    assert (last.desired, last.rule) == (1, Rule.EMPTY)
    assert over(policy, 900.0, replace(empty, in_flight=1), seen.memory, 110.0).desired == 4


def test_fewer_pods_wait_for_the_window_and_the_cooldown() -> None:
    policy = replace(POLICY, window_s=300.0, cooldown_s=500.0)
    high = decide(policy, replace(LOOK, demand=800.0), Memory())
    low = replace(LOOK, demand=100.0)
    assert over(policy, 300.0, low, high.memory, 10.0).desired == 10
    assert over(policy, 480.0, low, high.memory, 10.0).desired == 10
    assert over(policy, 500.0, low, high.memory, 10.0).desired == 2


def test_a_latency_above_the_objective_adds_and_fewer_are_for_half_of_it() -> None:
    unsure = (Carries("a", 1.0, Capacity(100.0, 100.0, 1e9, Basis.AT_LEAST)),)
    slow = replace(LOOK, latency=1.2, demand=200.0, revisions=unsure)
    assert over(POLICY, 20.0, slow).desired == 4
    assert over(POLICY, 30.0, slow).desired == 5
    calm = replace(slow, demand=50.0)
    assert over(POLICY, 1200.0, replace(calm, latency=0.7)).desired == 4
    fewer = over(POLICY, 1200.0, replace(calm, latency=0.4))
    assert 1 <= fewer.desired < 4


def test_pods_that_do_not_cure_a_latency_are_at_most_twice_what_is_needed() -> None:
    memory, pods = Memory(), 4
    for step in range(1000):
        look = replace(LOOK, at=10.0 * step, latency=5.0, demand=300.0, replicas=pods, ready=pods)
        decision = decide(POLICY, look, memory)
        memory, pods = decision.memory, decision.desired
    assert pods == 8


def test_what_is_unknown_changes_nothing_but_schedules_and_bounds() -> None:
    unknown = over(POLICY, 3600.0, replace(LOOK, demand=None))
    assert (unknown.desired, unknown.rule) == (4, Rule.UNKNOWN)
    assert over(POLICY, 3600.0, replace(LOOK, revisions=(Carries("a", 1.0, None),))).desired == 4
    assert decide(POLICY, replace(LOOK, demand=None, floor=6), Memory()).desired == 6


def test_schedules_and_bounds() -> None:
    floor = decide(POLICY, replace(LOOK, floor=9), Memory())
    assert (floor.desired, floor.rule) == (9, Rule.SCHEDULE)
    ceiling = decide(POLICY, replace(LOOK, demand=1600.0, ceiling=5), Memory())
    assert (ceiling.desired, ceiling.rule) == (5, Rule.SCHEDULE)
    lowered = decide(replace(POLICY, max_replicas=2), LOOK, Memory())
    assert (lowered.desired, lowered.rule) == (2, Rule.BOUNDS)


def test_a_forecast_is_never_below_the_reactive_answer() -> None:
    rng = random.Random(1)
    for _ in range(300):
        look = replace(LOOK, demand=rng.uniform(0, 2000), backlog=rng.choice([0.0, 9000.0]))
        reactive = decide(POLICY, look, Memory())
        for forecast in (0.0, rng.uniform(0, 3000)):
            assert decide(POLICY, replace(look, forecast=forecast), Memory()).desired >= reactive.desired
    assert decide(POLICY, replace(LOOK, forecast=1200.0), Memory()).rule is Rule.FORECAST


def _day(rng: random.Random) -> Iterator[Look]:
    for step in range(2000):
        yield Look(
            10.0 * step,
            4,
            rng.randint(0, 8),
            rng.randint(0, 2),
            rng.choice([None, rng.uniform(0, 1500)]) if rng.random() < 0.1 else 400 + 300 * (step % 500) / 500,
            rng.choice([0.0, 0.0, 4000.0]),
            rng.randint(0, 50),
            rng.uniform(0.1, 1.4),
            rng.choice([None, 900.0]),
            revisions=STABLE,
        )


@pytest.mark.parametrize("seed", range(3))
def test_a_log_of_looks_gives_the_same_decisions(seed: int) -> None:
    """So what is written as advice is what would have been published, and a memory that is cut off goes on alike."""
    looks = list(_day(random.Random(seed)))
    first = list(replay(POLICY, looks))
    assert first == list(replay(POLICY, looks))
    assert first[1000:] == list(replay(POLICY, looks[1000:], first[999].memory))
    assert len({decision.desired for decision in first}) > 2


def test_the_memory_is_bounded() -> None:
    wide = Policy(1, 10_000, window_s=3600.0)
    memory = Memory()
    for step in range(400):
        look = replace(LOOK, at=10.0 * step, demand=(400 - step) * 500.0)
        memory = decide(wide, look, memory).memory
    assert len(memory.needs) <= 60
