"""The step's size: found by measuring, kept within its bounds."""

import random

import pytest

from slipway_server.engine.request import Request, Sampled, SamplingParams
from slipway_server.engine.scheduling.budget import CPU_TIMES, StepLoad, StepTimes, TokenBudget
from slipway_server.engine.scheduling.config import SchedulerConfig
from slipway_server.engine.scheduling.scheduler import Scheduler
from slipway_server.engine.scheduling.step_fit import StepCost, StepFit


def budget_of(least: int, most: int, target_s: float) -> TokenBudget:
    return TokenBudget(least, most, StepTimes(target_s, target_s))


def test_without_a_target_every_step_may_be_full() -> None:
    budget = budget_of(least=8, most=512, target_s=0.0)
    budget.observe(512, 0, 9.0)
    assert budget.tokens(StepLoad()) == budget.tokens(StepLoad(decodes=8, requests=8)) == 512


@pytest.mark.parametrize(("fixed_s", "each_s"), [(0.02, 0.002), (0.15, 0.0024), (0.0, 0.0001)])
def test_the_budget_converges_to_the_target_time(fixed_s: float, each_s: float) -> None:
    budget, noise = budget_of(least=32, most=2048, target_s=0.4), random.Random(0)
    for step in range(200):
        tokens = budget.tokens(StepLoad()) if step % 3 else 32  # now and then only decodes
        budget.observe(tokens, 0, (fixed_s + each_s * tokens) * noise.uniform(0.95, 1.05))
    expected = min(2048.0, (0.4 - fixed_s) / each_s)
    assert budget.tokens(StepLoad()) == pytest.approx(expected, rel=0.15)


def test_a_slow_machine_still_moves_and_a_change_is_followed() -> None:
    budget = budget_of(least=40, most=512, target_s=0.4)
    for _ in range(30):
        budget.observe(budget.tokens(StepLoad()), 0, 2.0)
    assert budget.tokens(StepLoad()) == 40
    assert budget.tokens(StepLoad(decodes=7, requests=7)) == 47, "prompts go on beside answers"
    for _ in range(100):
        tokens = budget.tokens(StepLoad())
        budget.observe(tokens, 0, 0.001 * tokens)
    assert 300 < budget.tokens(StepLoad()) <= 512


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
    assert budget.tokens(StepLoad()) == 100
    for _ in range(50):
        budget.observe(100, 0, 0.1)
    assert budget.tokens(StepLoad()) == 150
    budget.shrink(0)
    assert budget.tokens(StepLoad()) == 8, "prompts go on"
    for _ in range(600):
        budget.observe(100, 0, 0.1)
    assert budget.tokens(StepLoad()) == 512


@pytest.mark.parametrize("pair_s", [1e-6, 2e-6, 0.0])
def test_a_long_context_leaves_room_for_fewer_tokens(pair_s: float) -> None:
    budget, noise, context = budget_of(least=16, most=4096, target_s=0.2), random.Random(0), 0
    for _ in range(100):
        tokens = budget.tokens(StepLoad(prefill_context=context))
        pairs = tokens * (2 * context + tokens + 1) // 2
        budget.observe(tokens, pairs, (0.02 + 0.001 * tokens + pair_s * pairs) * noise.uniform(0.97, 1.03))
        context = (context + tokens) % 3000
    for context in (0, 300, 2000):
        tokens = budget.tokens(StepLoad(prefill_context=context))
        seconds = 0.02 + 0.001 * tokens + pair_s * tokens * (context + tokens / 2)
        assert seconds == pytest.approx(0.2, rel=0.1), context


def test_decodes_take_their_part_of_the_time() -> None:
    cost = StepCost(fixed=0.02, each=0.001, pair=1e-6)
    assert cost.tokens_within(0.1, 0.0) == pytest.approx(95.4, rel=0.01), "95.4 + 95.4² / 2000 = 100"
    assert cost.tokens_within(0.1, 1000.0) == pytest.approx(49.4, rel=0.01)
    assert cost.tokens_within(-0.1, 1000.0) == 0.0
    budget, dice = budget_of(least=1, most=4096, target_s=0.2), random.Random(2)
    for _ in range(400):
        tokens, pairs = dice.randint(8, 200), dice.randint(1000, 90_000)
        budget.observe(tokens, pairs, 0.02 + 0.001 * tokens + 1e-6 * pairs)
    without, beside = budget.tokens(StepLoad()), budget.tokens(StepLoad(decodes=8, requests=8, decode_context=60_000))
    assert without == pytest.approx(166, abs=3)
    assert beside == pytest.approx(8 + 106, abs=3), "60 ms of attention and 8 of tokens"


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.25])
def test_steps_with_answers_are_on_time_on_a_busy_machine_too(noise: float) -> None:
    """Their size is found for 98 of 100 of them, so that a quiet machine has longer ones."""
    budget, dice, late = budget_of(least=1, most=4096, target_s=0.2), random.Random(3), 0
    load, tokens = StepLoad(decodes=8, requests=8), 0
    for step in range(3000):
        tokens = budget.tokens(load)
        seconds = (0.02 + 0.001 * tokens) * dice.lognormvariate(0.0, noise)
        late += seconds > 0.2 and step >= 500
        budget.observe(tokens, 0, seconds)
    assert 0.005 < late / 2500 < 0.04
    assert tokens > (150 if noise < 0.05 else 60)


def test_long_pauses_shorten_steps_to_half_of_their_target_and_no_further() -> None:
    budget, dice, load = budget_of(least=1, most=4096, target_s=0.2), random.Random(4), StepLoad(decodes=8, requests=8)
    tokens = []
    for _ in range(2000):
        tokens.append(budget.tokens(load))
        budget.observe(tokens[-1], 0, (0.02 + 0.001 * tokens[-1]) * (4.0 if dice.random() < 0.1 else 1.0))
    assert sum(tokens[1000:]) / 1000 > 45


def test_what_cannot_be_told_apart_is_attributed_to_tokens() -> None:
    fit = StepFit()
    assert fit.cost() is None
    for tokens in (10, 20, 30, 40):
        fit.observe(tokens, 100 * tokens, 0.001 * tokens)
    cost = fit.cost()
    assert cost and (cost.each, cost.pair) == (pytest.approx(0.001), 0.0)
    for _ in range(200):
        fit.observe(8, 500, 0.05)
    equal = fit.cost()
    assert equal and (equal.fixed, equal.each) == (pytest.approx(0.0, abs=1e-4), pytest.approx(0.05 / 8, rel=1e-3))


# Milliseconds of a step of the 0.6B shape on two cores with AVX512, in bfloat16 and int8: for itself, for each token,
# for each pair of tokens that attention computes.
MACHINES = {"bf16": (33.0, 2.2, 0.0009), "int8": (20.0, 0.9, 0.0009)}


def load(machine: str, times: StepTimes, requests: int, longest: int = 512) -> tuple[float, float]:
    """Tokens per second and the 99th percentile of milliseconds between two tokens: requests, twice as many in all."""
    fixed_ms, each_ms, pair_ms = MACHINES[machine]
    scheduler = Scheduler(SchedulerConfig(32, 512, 131072, prefix_cache=False), hash_key=bytes(32))
    budget, dice, now_ms = TokenBudget(16, 512, times), random.Random(1), 0.0
    last_ms: dict[str, float] = {}
    gaps_ms: list[float] = []
    prompts = iter([tuple(range(dice.randint(32, longest))) for _ in range(2 * requests)])

    def submit() -> None:
        if (prompt := next(prompts, None)) is not None:
            scheduler.submit(Request(str(len(prompt)) + str(dice.random()), prompt, SamplingParams(64)))

    for _ in range(requests):
        submit()
    while scheduler.busy:
        batch = scheduler.schedule(0.0, budget.tokens(scheduler.load))
        tokens, pairs = sum(one.tokens for one in batch), sum(one.pairs for one in batch)
        step_ms = (fixed_ms + each_ms * tokens + pair_ms * pairs) * dice.uniform(0.95, 1.05)
        budget.observe(tokens, pairs, step_ms / 1e3)
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
    long = StepTimes(0.4, 0.4)
    (rate, gap_ms), (rate_before, gap_before_ms) = load(machine, CPU_TIMES, 8), load(machine, long, 8)
    assert gap_ms < 185 < 300 < gap_before_ms
    assert rate > 0.85 * rate_before
    assert load(machine, CPU_TIMES, 32)[0] > 0.97 * load(machine, long, 32)[0]


@pytest.mark.parametrize("machine", MACHINES)
def test_answers_do_not_stall_beside_long_prompts(machine: str) -> None:
    """There attention takes longer than all else: by tokens alone, a step took up to twice its time."""
    _, gap_ms = load(machine, CPU_TIMES, 8, longest=8000)
    assert gap_ms < 1.15e3 * CPU_TIMES.decode_s
