"""A sample of what `make crash` does to all calls: killed before and after each kind of call, the end is the same."""

import random

import pytest

from tests.crash import campaign
from tests.crash.calls import KILLS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

SEED = 20261121
KINDS_PER_ERROR = 3


async def test_killed_and_refused_at_every_kind_of_call_the_operator_reaches_the_same_end(world):
    known = await campaign.references(world)
    cases = list(campaign.sample(known, random.Random(SEED), KINDS_PER_ERROR))
    outcomes = await campaign.run(world, known, cases, lambda outcome: None)
    print(f"{sum(len(outcome.hit) for outcome in outcomes)} injection points in {len(outcomes)} histories")
    assert not [outcome.failure for outcome in outcomes if outcome.failure]
    for kill in KILLS:
        assert not campaign.uncovered(known, outcomes, kill)
