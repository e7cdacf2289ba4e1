"""The step's size: found by measuring, kept within its bounds."""

import random

import pytest

from slipway_server.engine.request import Request, Sampled, SamplingParams
from slipway_server.engine.scheduling.budget import StepTimes, TokenBudget
from slipway_server.engine.scheduling.config import SchedulerConfig
from slipway_server.engine.scheduling.scheduler import Scheduler


def budget_of(least: int, most: int, target_s: float) -> TokenBudget:
    return TokenBudget(least, most, StepTimes(target_s, target_s))


def test_without_a_target_every_step_may_be_full() -> None:
    budget = budget_of(least=8, most=512, target_s=0.0)
    budget.observe(512, 9.0)
    assert budget.tokens() == budget.tokens(decodes=8, requests=8) == 512


@pytest.mark.parametrize(("fixed_s", "each_s"), [(0.02, 0.002), (0.15, 0.0024), (0.0, 0.0001)])
def test_the_budget_converges_to_the_target_time(fixed_s: float, each_s: float) -> None:
    budget, noise = budget_of(least=32, most=2048, target_s=0.4), random.Random(0)
    for step in range(200):
        tokens = budget.tokens() if step % 3 else 32  # now and then only decodes
        budget.observe(tokens, (fixed_s + each_s * tokens) * noise.uniform(0.95, 1.05))
    expected = min(2048.0, (0.4 - fixed_s) / each_s)
    assert budget.tokens() == pytest.approx(expected, rel=0.15)


def test_a_slow_machine_still_moves_and_a_change_is_followed() -> None:
    budget = budget_of(least=40, most=512, target_s=0.4)
    for _ in range(30):
        budget.observe(budget.tokens(), 2.0)
    assert budget.tokens() == 40
    assert budget.tokens(decodes=7, requests=7) == 47, "prompts go on beside answers"
    for _ in range(100):
        tokens = budget.tokens()
        budget.observe(tokens, 0.001 * tokens)
    assert 300 < budget.tokens() <= 512


def test_a_step_is_short_while_few_requests_have_answers_and_longer_for_a_crowd() -> None:
    times = StepTimes(prefill_s=0.4, decode_s=0.2)
    assert times.target_s(decodes=0, requests=3) == 0.4
    assert times.target_s(decodes=1, requests=1) == times.target_s(decodes=5, requests=8) == 0.2
    assert times.target_s(decodes=5, requests=12) == pytest.approx(0.3)
    assert times.target_s(decodes=5, requests=40) == 0.4
    assert StepTimes(prefill_s=0.1, decode_s=0.2).target_s(decodes=1, requests=1) == 0.1


def test_steps_have_less_room_after_one_without_memory_and_recover() -> None:
    budget = budget_of(least=8, most=512, target_s=0.0)
    budget.shrink(100)
    budget.shrink(300)  # of a part of the same step: the smaller one holds
    assert budget.tokens() == 100
    for _ in range(50):
        budget.observe(100, 0.1)
    assert budget.tokens() == 150
    budget.shrink(0)
    assert budget.tokens() == 8, "prompts go on"
    for _ in range(600):
        budget.observe(100, 0.1)
    assert budget.tokens() == 512


# Milliseconds of a step of the 0.6B shape on two cores with AVX512, in bfloat16 and int8: for itself, for each token.
MACHINES = {"bf16": (33.0, 2.2), "int8": (20.0, 0.9)}


def load(machine: str, times: StepTimes, requests: int) -> tuple[float, float]:
    """Tokens per second and the 99th percentile of milliseconds between two tokens: requests, twice as many in all."""
    fixed_ms, each_ms = MACHINES[machine]
    scheduler = Scheduler(SchedulerConfig(32, 512, 32768, prefix_cache=False), hash_key=bytes(32))
    budget, dice, now_ms = TokenBudget(16, 512, times), random.Random(1), 0.0
    last_ms: dict[str, float] = {}
    gaps_ms: list[float] = []
    prompts = iter([tuple(range(dice.randint(32, 512))) for _ in range(2 * requests)])

    def submit() -> None:
        if (prompt := next(prompts, None)) is not None:
            scheduler.submit(Request(str(len(prompt)) + str(dice.random()), prompt, SamplingParams(64)))

    for _ in range(requests):
        submit()
    while scheduler.busy:
        batch = scheduler.schedule(0.0, budget.tokens(scheduler.decodes, scheduler.requests))
        tokens = sum(one.tokens for one in batch)
        step_ms = (fixed_ms + each_ms * tokens) * dice.uniform(0.95, 1.05)
        budget.observe(tokens, step_ms / 1e3)
        now_ms += step_ms
        for event in scheduler.complete(batch, [Sampled(token=5) for one in batch if one.samples]):
            if event.id in last_ms:
                gaps_ms.append(now_ms - last_ms[event.id])
            last_ms[event.id] = now_ms
            if event.finish:
                submit()
    return 2 * requests * 64 / now_ms * 1e3, sorted(gaps_ms)[int(0.99 * len(gaps_ms))]


@pytest.mark.parametrize("machine", MACHINES)
def test_answers_of_eight_requests_do_not_stall_and_a_crowd_loses_no_throughput(machine: str) -> None:
    """The defaults of CPUs, against steps of 0.4 s whatever they hold."""
    long, times = StepTimes(0.4, 0.4), StepTimes(0.4, 0.17)
    (rate, gap_ms), (rate_before, gap_before_ms) = load(machine, times, 8), load(machine, long, 8)
    assert gap_ms < 200 < 400 < gap_before_ms
    assert rate > 0.88 * rate_before
    assert load(machine, times, 32)[0] > 0.97 * load(machine, long, 32)[0]
