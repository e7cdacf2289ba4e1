"""The step's size: found by measuring, kept within its bounds."""

import random

import pytest

from slipway_server.engine.budget import TokenBudget


def test_without_a_target_every_step_may_be_full() -> None:
    budget = TokenBudget(least=8, most=512, target_s=0.0)
    budget.observe(512, 9.0)
    assert budget.tokens() == 512


@pytest.mark.parametrize(("fixed_s", "each_s"), [(0.02, 0.002), (0.15, 0.0024), (0.0, 0.0001)])
def test_the_budget_converges_to_the_target_time(fixed_s: float, each_s: float) -> None:
    budget, noise = TokenBudget(least=32, most=2048, target_s=0.4), random.Random(0)
    for step in range(200):
        tokens = budget.tokens() if step % 3 else 32  # now and then only decodes
        budget.observe(tokens, (fixed_s + each_s * tokens) * noise.uniform(0.95, 1.05))
    expected = min(2048.0, (0.4 - fixed_s) / each_s)
    assert budget.tokens() == pytest.approx(expected, rel=0.15)


def test_a_slow_machine_still_moves_and_a_change_is_followed() -> None:
    budget = TokenBudget(least=40, most=512, target_s=0.4)
    for _ in range(30):
        budget.observe(budget.tokens(), 2.0)
    assert budget.tokens() == 40
    for _ in range(100):
        tokens = budget.tokens()
        budget.observe(tokens, 0.001 * tokens)
    assert 300 < budget.tokens() <= 512
