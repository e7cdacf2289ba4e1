"""When a draft model drafts and how much, and what is known of its cache; without tensors."""

import pytest

from slipway_server.engine.request import PENDING, Grammar, Request, SamplingParams, ScheduledSequence, Sequence
from slipway_server.engine.scheduling.block_hash import BlockHasher
from slipway_server.engine.scheduling.block_manager import BlockManager
from slipway_server.engine.scheduling.draft_cache import DraftCache
from slipway_server.engine.scheduling.drafting import CONTROL_EVERY
from slipway_server.engine.scheduling.model_drafting import (
    FIRST_TRIALS,
    LEAST_REST,
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
            self._passes.observe(tokens, tokens, draft_s * (1 + 0.1 * tokens))
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
    drafting._passes.observe(900, 900, 0.9)  # reading takes its time
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
    assert found == [TRIAL_TOKENS] * FIRST_TRIALS + [0, 0]


def test_where_drafts_lose_trials_take_a_small_share_of_the_time() -> None:
    blocks = manager()
    drafting, one = Measured(DraftCache(blocks), draft_s=0.02), sequence(blocks)
    read_all(drafting, one)
    spent = trials = 0.0
    for _ in range(2000):
        proposed = drafting.propose([one], 99, prefills=False)
        if proposed:
            trials += 1
            drafting.observe_passes([DraftPass(1, 10, 0.02)] * len(proposed["r"]))
            drafting.observe_verified("r", len(proposed["r"]), 0)
            spent += 0.02 * len(proposed["r"])
        drafting.observe_step([ScheduledSequence(one, one.length - 1, one.length, samples=True)], 0.02)
    assert trials > 2 and spent < 0.03 * 2000 * 0.02


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
