"""When a draft model drafts and how much, and what is known of its cache; without tensors."""

from itertools import pairwise

import pytest

from slipway_server.engine.request import PENDING, Grammar, Request, SamplingParams, ScheduledSequence, Sequence
from slipway_server.engine.scheduling.block_hash import BlockHasher
from slipway_server.engine.scheduling.block_manager import BlockManager
from slipway_server.engine.scheduling.draft_cache import DraftCache
from slipway_server.engine.scheduling.drafting import CONTROL_EVERY
from slipway_server.engine.scheduling.model_drafting import (
    FIRST_TRIALS,
    LEAST_REST,
    LEAST_TRIAL_SHARE,
    LOOK_EVERY,
    MORE_TRIAL_TOKENS,
    TRIAL_SHARE,
    TRIAL_TOKENS,
    DraftPass,
    DraftRow,
    ModelDrafting,
    draft_plan,
    expected_rest,
)
from slipway_server.engine.scheduling.step_fit import StepCost

BLOCK, MOST = 4, 4
VERIFY = StepCost(0.020, 0.001, 0.0)
CHEAP, DEAR = StepCost(0.001, 0.0001, 0.0), StepCost(0.018, 0.001, 0.0)


def manager(blocks: int = 16) -> BlockManager:
    return BlockManager(blocks, BlockHasher(BLOCK, scope="", key=bytes(32)), block_tokens=BLOCK)


def sequence(blocks: BlockManager, prompt: int = 10, name: str = "r", output: int = 1, **params: object) -> Sequence:
    sampling = SamplingParams(**({"max_tokens": 400, "temperature": 0.0} | params))  # type: ignore[arg-type]
    one = Sequence(Request(name, tuple(range(prompt)), sampling), output=list(range(50, 50 + output)))
    blocks.allocate(one, blocks.match_prefix(one))
    blocks.append(one, one.length + MOST)
    one.num_computed_tokens = one.length - 1
    return one


def row(rate: float = 0.8, most: int = 4, lag: int = 1) -> DraftRow:
    return DraftRow(rate, most, 100, lag)


# --- the plan ---------------------------------------------------------------------------------------------------------


def test_the_better_drafts_are_the_more_are_computed() -> None:
    counts = [draft_plan([row(rate, 16)], VERIFY, CHEAP, 1, 100, 99).counts[0] for rate in (0.3, 0.5, 0.8, 0.95)]
    assert counts == sorted(counts) and counts[0] >= 1 and counts[-1] > 10


@pytest.mark.parametrize(
    ("rate", "draft", "decodes"),
    [
        pytest.param(0.2, CHEAP, 1, id="too few are accepted"),
        pytest.param(0.8, DEAR, 1, id="the draft model takes as long as the model"),
    ],
)
def test_nothing_is_computed_where_it_would_lose(rate: float, draft: StepCost, decodes: int) -> None:
    plan = draft_plan([row(rate)], VERIFY, draft, decodes, 100, 99)
    assert plan.counts == [0] and plan.pace == 1.0


def test_with_many_responses_whose_rows_each_take_their_time_nothing_is_computed() -> None:
    bound = StepCost(0.001, 0.002, 0.0)
    assert not any(draft_plan([row(0.7)] * 32, bound, CHEAP, 32, 3200, 999).counts)


def test_rows_share_the_fixed_cost_of_a_pass() -> None:
    draft = StepCost(0.012, 0.0001, 0.0)
    assert draft_plan([row(0.5)], VERIFY, draft, 1, 100, 99).counts == [0]
    assert all(draft_plan([row(0.5)] * 4, VERIFY, StepCost(0.006, 0.0001, 0.0), 4, 400, 99).counts)


def test_rows_stop_at_their_own_ends_and_at_the_room() -> None:
    assert draft_plan([row(0.9, 1), row(0.9, 3)], VERIFY, CHEAP, 2, 200, 99).counts == [1, 3]
    assert sum(draft_plan([row(0.9)] * 3, VERIFY, CHEAP, 3, 300, 5).counts) == 5
    assert draft_plan([], VERIFY, CHEAP, 3, 300, 5).counts == []


# --- decisions --------------------------------------------------------------------------------------------------------


class Measured(ModelDrafting):
    """Knows its costs from the beginning."""

    def __init__(self, cache: DraftCache, draft_s: float = 0.001, context: int = 512) -> None:
        super().__init__(MOST, cache, context)
        for tokens in (1, 9):
            self._fit.observe(tokens, tokens, 0.02)
            self.observe_passes([DraftPass(tokens, tokens, draft_s * (1 + 0.1 * tokens))])
        self._first_trials = 0


def read_all(drafting: ModelDrafting, *sequences: Sequence) -> None:
    for one in sequences:
        drafting.cache.add(one, drafting.cache.computed(one), one.length - 1)


def test_drafts_are_pending_and_their_number_follows_what_was_accepted() -> None:
    blocks = manager()
    drafting, one = Measured(DraftCache(blocks)), sequence(blocks)
    read_all(drafting, one)
    before = drafting.propose([one], 99, prefills=False)["r"]
    for _ in range(6):
        drafting.observe_verified("r", 4, 4)
    after = drafting.propose([one], 99, prefills=False)["r"]
    assert set(before) == {PENDING} and len(before) < len(after) == MOST
    for _ in range(120):
        drafting.observe_verified("r", 4, 0)
    assert drafting.propose([one], 99, prefills=False) == {}


def test_a_new_response_begins_with_what_others_had() -> None:
    blocks = manager()
    drafting = Measured(DraftCache(blocks))
    for _ in range(50):
        drafting.observe_verified("gone", 4, 0)
    one = sequence(blocks)
    read_all(drafting, one)
    assert drafting.propose([one], 99, prefills=False) == {}


def test_a_long_prompt_is_read_once_that_pays_for_the_rest_of_the_response() -> None:
    blocks = manager(300)
    drafting = Measured(DraftCache(blocks), 0.004, 2000)
    new, old = sequence(blocks, 900, "new"), sequence(blocks, 100, "old", output=100)
    drafting.observe_passes([DraftPass(900, 900, 0.9)])  # reading takes its time
    assert drafting.propose([new], 99, prefills=False) == {}
    assert "old" in drafting.propose([old], 99, prefills=False)
    assert (expected_rest(new), expected_rest(old)) == (LEAST_REST, 100)
    read_all(drafting, new)
    assert "new" in drafting.propose([new], 99, prefills=False), "it has been read"


def test_one_step_of_many_goes_without_drafts() -> None:
    blocks = manager()
    drafting, one = Measured(DraftCache(blocks)), sequence(blocks)
    read_all(drafting, one)
    found = [drafting.propose([one], 99, prefills=False) for _ in range(CONTROL_EVERY)]
    assert found.count({}) == 1


def test_before_costs_are_known_there_are_a_few_trials_and_none_beside_prompts() -> None:
    blocks = manager()
    drafting, one = ModelDrafting(MOST, DraftCache(blocks), 512), sequence(blocks)
    assert drafting.propose([one], 99, prefills=True) == {}
    found = [len(drafting.propose([one], 99, prefills=False).get("r", ())) for _ in range(FIRST_TRIALS + 2)]
    assert found == [MORE_TRIAL_TOKENS] * FIRST_TRIALS + [0, 0]


def a_step(drafting: ModelDrafting, one: Sequence, right: int, pass_s: float = 0.002) -> int:
    """A step of 20 ms beside the passes. `right`: of the drafted tokens, the first. Returns how many were drafted."""
    count = len(drafting.propose([one], 99, prefills=False).get("r", ()))
    if count:
        drafting.observe_passes([DraftPass(1, 10, pass_s)] * count)
        read_all(drafting, one)
        drafting.observe_verified("r", count, min(right, count))
    drafts = (PENDING,) * count
    drafting.observe_step([ScheduledSequence(one, one.length - 1, one.length + count, True, drafts)], 0.02)
    return count


def disagreeing(blocks: BlockManager) -> tuple[ModelDrafting, Sequence]:
    """After so many drafts in vain that none is expected to be accepted."""
    drafting, one = Measured(DraftCache(blocks), 0.002), sequence(blocks)
    read_all(drafting, one)
    for _ in range(50):
        drafting.observe_verified("r", 1, 0)
    return drafting, one


def test_each_trial_in_vain_doubles_the_distance_to_the_next_one() -> None:
    drafting, one = disagreeing(manager())
    counts = [a_step(drafting, one, 0) for _ in range(2000)]
    trials = [at for at, count in enumerate(counts) if count]
    distances = [after - before for before, after in pairwise(trials)]
    assert len(trials) > 4 and {count for count in counts if count} == {TRIAL_TOKENS}
    # The share does not become smaller than the least one.
    assert distances[0] < distances[1] < distances[2] and max(distances) < 2 * min(distances[3:])
    last = sum(counts[trials[3] :]) * 0.002
    assert last < 1.5 * LEAST_TRIAL_SHARE * 0.02 * (2000 - trials[3])


def test_a_trial_with_an_accepted_token_is_followed_at_once_until_drafts_pay() -> None:
    drafting, one = disagreeing(manager())
    while not any(a_step(drafting, one, 0) for _ in range(2000)):
        pass
    found = 0
    while not found:
        found = a_step(drafting, one, 9)
    following = [a_step(drafting, one, 9) for _ in range(8)]
    assert found == TRIAL_TOKENS and min(following[:2]) >= MORE_TRIAL_TOKENS and all(following)
    assert drafting._trial_share == TRIAL_SHARE and drafting._goes_on == ""


def test_a_draft_model_that_agrees_and_takes_too_long_gets_a_small_share_of_the_time() -> None:
    blocks = manager()
    drafting, one = Measured(DraftCache(blocks), draft_s=0.02), sequence(blocks)
    read_all(drafting, one)
    counts = [a_step(drafting, one, 9, pass_s=0.02) for _ in range(2000)]
    assert sum(map(bool, counts)) > 2 and sum(counts) * 0.02 < 1.1 * TRIAL_SHARE * 2000 * 0.02


def test_sequences_that_may_not_draft_are_not_looked_up_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    drafting, one = disagreeing(manager())
    looked: list[Sequence] = []
    computed = drafting.cache.computed
    monkeypatch.setattr(drafting.cache, "computed", lambda item: looked.append(item) or computed(item))
    counts = [a_step(drafting, one, 0) for _ in range(500)]
    assert len(looked) <= 3 * sum(map(bool, counts)) + 500 / LOOK_EVERY


def test_a_long_prompt_is_not_read_for_a_trial() -> None:
    blocks = manager(300)
    drafting = Measured(DraftCache(blocks), 0.002, 2000)
    drafting._pool.tried = 50.0
    drafting.observe_passes([DraftPass(900, 900, 1.8)])
    one = sequence(blocks, 900)
    assert not any(a_step(drafting, one, 0) for _ in range(300)), "0.1 s were saved, and reading takes 1.8 s"
    assert drafting.cache.computed(one) == 0


def test_what_steps_with_drafts_cost_is_known_long_after_the_last_one() -> None:
    blocks = manager()
    drafting, one = Measured(DraftCache(blocks)), sequence(blocks)
    for tokens in (1, 4) * 8:
        drafts = (PENDING,) * (tokens - 1)
        step = ScheduledSequence(one, one.length - 1, one.length - 1 + tokens, True, drafts)
        drafting.observe_step([step], 0.02 + 0.001 * tokens)
    before = drafting._step_cost()
    for _ in range(2000):  # on a machine that is half as fast by now
        drafting.observe_step([ScheduledSequence(one, one.length - 1, one.length, samples=True)], 0.042)
    after = drafting._step_cost()
    assert drafting._fit.measured() is None and before is not None and after is not None
    assert after.seconds(1, one.length) == pytest.approx(0.042, rel=0.01)
    assert after.each / after.fixed == pytest.approx(before.each / before.fixed) and before.each > 0


@pytest.mark.parametrize(
    "params",
    [
        pytest.param({"max_tokens": 2}, id="no room for one"),
        pytest.param({"grammar": Grammar("regex", "a+")}, id="a grammar"),
    ],
)
def test_some_responses_have_no_drafts(params: dict[str, object]) -> None:
    blocks = manager()
    drafting, one = Measured(DraftCache(blocks)), sequence(blocks, **params)
    read_all(drafting, one)
    assert drafting.propose([one], 99, prefills=False) == {}


def test_nothing_is_drafted_beyond_what_the_draft_model_was_made_for() -> None:
    blocks = manager()
    one = sequence(blocks)
    for context, most in ((one.length, 0), (one.length + 2, 2)):
        drafting = Measured(DraftCache(blocks), context=context)
        drafting._pool.tried = drafting._pool.accepted = 50.0
        read_all(drafting, one)
        assert len(drafting.propose([one], 99, prefills=False).get("r", ())) == most


def test_of_what_has_ended_or_did_harm_nothing_is_kept() -> None:
    blocks = manager()
    drafting, one = Measured(DraftCache(blocks)), sequence(blocks)
    read_all(drafting, one)
    drafting.propose([one], 99, prefills=False)
    drafting.exclude("r")
    assert drafting.propose([one], 99, prefills=False) == {}
    drafting.forget("r")
    assert (drafting._acceptance, drafting._excluded, drafting.cache._ahead) == ({}, set(), {})


# --- the cache --------------------------------------------------------------------------------------------------------


def test_of_drafts_that_were_written_those_count_that_the_sequence_has() -> None:
    blocks = manager()
    cache, one = DraftCache(blocks), sequence(blocks)
    assert cache.computed(one) == 0
    cache.add(one, 0, one.length)
    assert cache.computed(one) == one.length - 1, "the last token's logits are needed"
    cache.add_ahead(one, (70, 71, 72))
    start = one.length
    one.output += [70, 71, 99]  # two are accepted, and another token follows
    assert cache.computed(one) == start + 2 == one.length - 1
    one.output += [72]
    assert cache.computed(one) == start + 2, "what was written after a rejected one is not there"


def test_drafts_count_only_for_what_was_written_last() -> None:
    blocks = manager()
    cache, one = DraftCache(blocks), sequence(blocks)
    cache.add(one, 0, one.length)
    cache.add_ahead(one, (70, 71))
    start = one.length
    one.output += [1]
    cache.add(one, cache.computed(one), one.length)
    one.output += [2]
    assert cache.computed(one) == start + 1


def test_a_block_that_was_taken_again_is_empty() -> None:
    blocks = manager()
    cache, one = DraftCache(blocks), sequence(blocks)
    cache.add(one, 0, one.length)
    cache.add_ahead(one, (70, 71, 72))
    start = one.length
    blocks.trim(one, start)
    other = Sequence(Request("other", (1, 2, 3), SamplingParams(9)))
    blocks.allocate(other, [])
    blocks.append(other, BLOCK)  # gets what the drafts were written to
    one.output += [70, 71, 72]
    blocks.append(one, one.length)
    assert cache.computed(one) <= -(-start // BLOCK) * BLOCK


def test_a_cached_prefix_is_there_for_the_draft_model_as_far_as_it_was_read() -> None:
    blocks = manager()
    cache, one = DraftCache(blocks), sequence(blocks)
    blocks.cache_full_blocks(one)
    cache.add(one, 0, 6)
    blocks.free(one)
    again = sequence(blocks)
    assert again.num_cached_blocks == 2 and cache.computed(again) == 6
    cache.drop(again)
    assert cache.computed(again) == 0
