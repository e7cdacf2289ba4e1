"""A sample of the faults of `make crash`: killed before and after a call, the end is the same."""

import random

import pytest

from tests.crash import campaign
from tests.crash.calls import KILLS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

SEED = 20261121


async def test_killed_and_refused_at_some_kinds_of_calls_the_operator_reaches_the_same_end(world):
    _, outcomes = await survive(world, kinds_per_error=1, kinds_killed=6)
    assert sum(len(outcome.hit) for outcome in outcomes) > 6


@pytest.mark.extended  # five minutes: every kind of call
async def test_killed_and_refused_at_every_kind_of_call_the_operator_reaches_the_same_end(world):
    known, outcomes = await survive(world, kinds_per_error=3)
    for kill in KILLS:
        assert not campaign.uncovered(known, outcomes, kill)


async def survive(world, **kinds):
    """Histories of a sample of calls: all of them have the same end state."""
    known = await campaign.references(world)
    outcomes = await campaign.run(world, known, campaign.sample(known, random.Random(SEED), **kinds), lambda _: None)
    print(f"{sum(len(outcome.hit) for outcome in outcomes)} injection points in {len(outcomes)} histories")
    assert not [outcome.failure for outcome in outcomes if outcome.failure]
    return known, outcomes
