"""Drafts by prompt lookup: what is drafted, how much of it, and that a rejected draft leaves nothing behind."""

import random
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway_server.engine.request import (
    FinishReason,
    Grammar,
    Request,
    RequestOutput,
    Sampled,
    SamplingParams,
    ScheduledSequence,
    Sequence,
)
from slipway_server.engine.scheduling import prompt_lookup
from slipway_server.engine.scheduling.block_hash import BlockHasher
from slipway_server.engine.scheduling.config import SchedulerConfig
from slipway_server.engine.scheduling.drafting import (
    CONTROL_EVERY,
    FREE,
    Acceptance,
    Candidate,
    Drafting,
    DraftLimits,
    LookupDrafting,
    draft_counts,
    verified,
)
from slipway_server.engine.scheduling.prompt_lookup import CANDIDATES, PromptLookup
from slipway_server.engine.scheduling.scheduler import Scheduler
from slipway_server.engine.scheduling.step_fit import StepCost

LIMITS = DraftLimits(tokens=4, least=2, most=5)
BLOCK = 4

# --- prompt lookup ----------------------------------------------------------------------------------------------------


def looked_up(tokens: Tokens[int], count: int) -> tuple[int, ...]:
    """The draft by definition: after the newest place of the longest end."""
    last, best, place = len(tokens) - 1, LIMITS.least - 1, -1
    for candidate in range(last - 1, -1, -1):
        length = 0
        while length < LIMITS.most and length <= candidate and tokens[candidate - length] == tokens[last - length]:
            length += 1
        if length > best:
            best, place = length, candidate
    return tuple(tokens[place + 1 + at % (last - place)] for at in range(count)) if place >= 0 else ()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=CANDIDATES), st.integers(0, CANDIDATES), st.integers(0, 6))
def test_a_draft_follows_the_longest_end_that_stood_before(tokens: list[int], known: int, count: int) -> None:
    lookup = PromptLookup(tokens[:known], least=LIMITS.least, most=LIMITS.most)
    for token in tokens[known:]:
        lookup.add(token)
    assert len(lookup) == len(tokens)
    assert lookup.draft(count) == (looked_up(tokens, count) if count else ())


def test_memory_and_work_are_bounded_by_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_lookup, "WINDOW", 64)
    chance = random.Random(5)
    tokens = [chance.randrange(6) for _ in range(1000)]
    lookup = PromptLookup(tokens[:300], least=2, most=5)
    for size, token in enumerate(tokens[300:], 301):
        lookup.add(token)
        assert len(lookup) == size and len(lookup._tokens) <= 128 and len(lookup._previous) == len(lookup._tokens)
        draft = lookup.draft(3)
        # What it drafts stood somewhere after the last two tokens, in the window.
        assert not draft or any(
            tokens[at : at + 2] == tokens[size - 2 : size] and tokens[at + 2] == draft[0]
            for at in range(size - 128, size - 2)
        )


def test_what_a_long_response_repeats_is_found_however_short_its_prompt_was() -> None:
    chance = random.Random(6)
    text = [chance.randrange(10_000) for _ in range(3000)]
    lookup = PromptLookup(text[:10], least=2, most=5)
    for token in [*text[10:], *text[:2]]:
        lookup.add(token)
    found = 0
    for token in text[2:300]:
        found += lookup.draft(1) == (token,)
        lookup.add(token)
    assert found == 298
    assert len(lookup._newest) < 4 * len(lookup)


def test_a_text_that_repeats_itself_is_drafted_beyond_its_end() -> None:
    assert PromptLookup([1, 2, 3, 1, 2, 3, 1, 2], least=2, most=5).draft(5) == (3, 1, 2, 3, 1)
    assert PromptLookup([7] * 6, least=2, most=5).draft(3) == (7, 7, 7)
    assert PromptLookup([1, 2, 3, 4], least=2, most=5).draft(3) == ()


# --- how many ---------------------------------------------------------------------------------------------------------


def test_where_rows_are_free_all_promising_tokens_are_verified() -> None:
    candidates = [Candidate(0.9, 4, 10), Candidate(0.3, 4, 10)]
    assert draft_counts(candidates, FREE, 2, 20, 100) == [4, 1]  # 0.3² promises less than LEAST_GAIN
    assert draft_counts(candidates, FREE, 2, 20, 3) == [3, 0]
    assert draft_counts(candidates, FREE, 2, 20, -1) == [0, 0]


def test_where_each_row_takes_its_time_nothing_is_verified() -> None:
    busy = StepCost(0.0, 0.001, 0.0)
    assert draft_counts([Candidate(0.95, 4, 10)], busy, 1, 10, 100) == [0]
    # With many answers the weights' share of a row is small.
    half = StepCost(0.02, 0.002, 0.0)
    assert draft_counts([Candidate(0.8, 4, 10)], half, 1, 10, 100) == [4]
    assert draft_counts([Candidate(0.8, 4, 10)] * 64, half, 64, 640, 1000) == [0] * 64
    # A long context makes a row as slow as a step.
    assert draft_counts([Candidate(0.8, 4, 100_000)], StepCost(0.02, 0.0, 1e-6), 1, 100, 100) == [0]


def test_acceptance_follows_what_is_verified_and_fades() -> None:
    acceptance = Acceptance()
    for _ in range(4):
        acceptance.observe(4, 0)
    assert acceptance.rate < 0.25
    for _ in range(200):
        acceptance.fade()
    assert acceptance.rate > 0.4, "it tries again"
    for _ in range(10):
        acceptance.observe(4, 4)
    assert acceptance.rate > 0.9


def sequence(prompt: Tokens[int], name: str = "r", **params: Any) -> Sequence:
    sampling = SamplingParams(**({"max_tokens": 20} | params))
    made = Sequence(Request(name, tuple(prompt), sampling), slot=0, output=[prompt[1]])
    made.num_computed_tokens = made.length - 1
    return made


REPEATING = [5, 6, 7, 8, 5]  # and 6 follows: 7, 8 and so on are drafted


def test_a_sequence_drafts_what_it_may_still_return() -> None:
    def proposed(**params: Any) -> dict[str, tuple[int, ...]]:
        return LookupDrafting(LIMITS).propose([sequence(REPEATING, **params)], 100, prefills=False)

    assert proposed() == {"r": (7, 8)}, "no more are likely enough before some were accepted"
    assert proposed(max_tokens=3) == {"r": (7,)}, "one token was there, and the last one is sampled"
    assert proposed(max_tokens=2) == {}
    assert proposed(grammar=Grammar("regex", "a+")) == {}, "its mask is there for the next token only"
    everything: dict[str, Any] = {
        "temperature": 1.0,
        "logprobs": 3,
        "frequency_penalty": 1.0,
        "logit_bias": ((5, 1.0),),
    }
    assert proposed(**everything) == {"r": (7, 8)}
    drafting = LookupDrafting(LIMITS)
    item = sequence(REPEATING)
    drafting.propose([item], 100, prefills=False)
    for _ in range(10):
        drafting.observe_verified("r", 2, 2)
    assert drafting.propose([item], 100, prefills=False) == {"r": (7, 8, 5, 6)}


def test_beside_prompts_nothing_is_drafted_before_its_cost_is_known() -> None:
    drafting = LookupDrafting(LIMITS)
    assert drafting.propose([sequence(REPEATING)], 100, prefills=True) == {}
    assert drafting.propose([sequence(REPEATING)], 100, prefills=False)


def test_a_few_drafts_find_out_what_many_would_cost() -> None:
    drafting = LookupDrafting(LIMITS)
    many = [sequence(REPEATING, f"r{number}") for number in range(40)]
    assert sum(map(len, drafting.propose(many, 1000, prefills=False).values())) == 10


def scheduled(item: Sequence, drafts: tuple[int, ...]) -> ScheduledSequence:
    return ScheduledSequence(item, item.length - 1, item.length + len(drafts), samples=True, drafts=drafts)


@pytest.mark.parametrize(("each_s", "drafts"), [(0.0001, True), (0.02, False)])
def test_what_steps_take_decides_on_drafts(each_s: float, *, drafts: bool) -> None:
    drafting = LookupDrafting(LIMITS)
    one = sequence(REPEATING)
    for turn in range(CONTROL_EVERY):
        drafting.observe_step([scheduled(one, (7, 8, 5)[: turn % 4])], 0.02 + each_s * (turn % 4))
    found = [drafting.propose([one], 100, prefills=False) for _ in range(CONTROL_EVERY)]
    assert sum(map(bool, found)) == (CONTROL_EVERY - 1 if drafts else 1), "one step is the other way round"


def test_steps_with_prompts_and_pauses_of_the_machine_change_no_estimate() -> None:
    drafting = LookupDrafting(LIMITS)
    one = sequence(REPEATING)
    for turn in range(100):
        drafting.observe_step([scheduled(one, (7, 8, 5)[: turn % 4])], 0.02)
    before = drafting._fit.measured()
    prompt = Sequence(Request("p", tuple(range(50)), SamplingParams(9)), slot=1)
    drafting.observe_step([scheduled(one, ()), ScheduledSequence(prompt, 0, 30, samples=False)], 9.0)
    assert drafting._fit.measured() == before
    drafting.observe_step([scheduled(one, (7, 8, 5))], 60.0)
    after = drafting._fit.measured()
    assert after is not None and after.seconds(4, 0) < 0.03


# --- verification -----------------------------------------------------------------------------------------------------


def test_a_draft_is_accepted_up_to_the_first_token_that_is_another() -> None:
    rows = [Sampled(7), Sampled(8), Sampled(9), Sampled(4)]
    assert verified((7, 8, 9), rows) == Sampled(7, following=(Sampled(8), Sampled(9), Sampled(4)))
    assert verified((7, 3, 9), rows) == Sampled(7, following=(Sampled(8),))
    assert verified((1, 8, 9), rows) == Sampled(7)


def test_a_rule_that_leaves_no_token_counts_where_it_is_reached() -> None:
    none = Sampled(no_token_allowed=True)
    assert verified((7, 8), [Sampled(7), none, Sampled(3)]) == Sampled(7, following=(none,))
    assert verified((1, 8), [Sampled(7), none, Sampled(3)]) == Sampled(7)
    assert verified((1, 8), [none, Sampled(7), Sampled(3)]) == none


def test_numbers_of_a_draft_that_are_not_finite_spoil_the_whole_row() -> None:
    assert verified((1, 8), [Sampled(7), Sampled(), Sampled(3)]) == Sampled(spoiled=True)


# --- in the scheduler -------------------------------------------------------------------------------------------------


def next_token(tokens: Tokens[int]) -> int:
    """A model: the next token follows from the last two, mostly as before."""
    return (tokens[-1] * 3 + tokens[-2] * 5 + (len(tokens) % 11 == 0)) % 7


def compute(batch: list[ScheduledSequence], spoils: Callable[[ScheduledSequence], bool]) -> list[Sampled]:
    results = []
    for work in batch:
        if not work.samples:
            continue
        known = work.sequence.tokens(0, work.sequence.length)
        rows = [Sampled(next_token([*known, *work.drafts[:at]])) for at in range(len(work.sampled_positions))]
        if work.drafts and spoils(work):
            rows[-1] = Sampled()
        results.append(verified(work.drafts, rows) if work.drafts else rows[0])
    return results


def check_blocks(scheduler: Scheduler) -> None:
    """No sequence holds a block for tokens that it does not have, and each hash is that of verified tokens."""
    scheduler.check()
    hasher = BlockHasher(BLOCK, scope="", key=bytes(32))
    for item in scheduler.running.values():
        assert len(item.block_table) <= scheduler.block_manager.blocks_for(item.length)
        tokens = item.tokens(0, item.length)
        root = hasher.root_hash(item.request.tenant, item.request.adapter)
        hashes = list(hasher.hash_blocks(root, tokens))
        assert item.block_hashes == hashes[: len(item.block_hashes)]
        assert item.num_cached_blocks * BLOCK <= item.num_computed_tokens <= item.length
        for block, block_hash in zip(item.block_table[: item.num_cached_blocks], hashes, strict=False):
            assert scheduler.block_manager._hashes[block] in (block_hash, None)


Actions = list[tuple[int, int, int] | int | None]


def run(
    actions: Actions, blocks: int, slots: int, drafting: Drafting | None, spoils: Callable[[ScheduledSequence], bool]
) -> tuple[dict[str, list[int]], dict[str, FinishReason | None], Scheduler]:
    """(prompt, tokens, start) submits a request, a number cancels that one, None and the end make steps."""
    scheduler = Scheduler(
        SchedulerConfig(slots, slots + 12, blocks * BLOCK, BLOCK), hash_key=bytes(32), drafting=drafting
    )
    answers: dict[str, list[int]] = {}
    ends: dict[str, FinishReason | None] = {}

    def step() -> None:
        batch = scheduler.schedule()
        assert sum(work.tokens for work in batch) <= scheduler.limits.step_tokens
        events: list[RequestOutput] = scheduler.complete(batch, compute(batch, spoils))
        scheduler.block_manager.take_blocks_to_clear()
        check_blocks(scheduler)
        for event in events:
            assert event.id not in ends
            answers[event.id] += [] if event.token is None else [event.token]
            if event.finish:
                ends[event.id] = event.finish

    for action in actions:
        if action is None:
            step()
        elif isinstance(action, int):
            scheduler.cancel(f"r{action}")
        else:
            prompt, tokens, first = action
            name = f"r{len(answers)}"
            request = Request(
                name,
                tuple((first + at * at) % 7 for at in range(prompt)),
                SamplingParams(tokens, stop_token_ids=(6,)),
                tenant=str(first % 2),
            )
            if scheduler.can_ever_run(request):
                answers[name] = []
                scheduler.submit(request)
    while scheduler.busy:
        step()
    assert scheduler.kv_usage == 0
    return answers, ends, scheduler


requests = st.tuples(st.integers(2, 20), st.integers(1, 24), st.integers(0, 6))


@settings(max_examples=150)
@given(
    st.lists(st.one_of(requests, st.none(), st.none()), min_size=1, max_size=24),
    st.integers(9, 24),
    st.integers(1, 4),
    st.integers(0, 3),
)
def test_responses_are_the_same_and_rejected_drafts_leave_no_block(
    actions: Actions, blocks: int, slots: int, spoiled: int
) -> None:
    chance = random.Random(spoiled)
    plain, ends, _ = run(actions, blocks, slots, None, lambda _: False)
    drafting = LookupDrafting(LIMITS)
    drafted, drafted_ends, _ = run(actions, blocks, slots, drafting, lambda _: chance.random() < spoiled / 10)
    assert (drafted, drafted_ends) == (plain, ends)
    assert drafting._drafted == {} and drafting._excluded == set()


@given(st.lists(st.one_of(requests, st.integers(0, 8), st.none(), st.none()), max_size=24), st.integers(9, 16))
def test_cancelled_sequences_give_all_blocks_back(actions: Actions, blocks: int) -> None:
    drafting = LookupDrafting(LIMITS)
    run(actions, blocks, 3, drafting, lambda _: False)
    assert drafting._drafted == {}


def test_drafts_make_fewer_steps_and_are_counted_and_charged_once() -> None:
    drafting = LookupDrafting(LIMITS)
    charged = {}
    for name, chosen in (("plain", None), ("drafted", drafting)):
        answers, _, scheduler = run([(9, 60, 2), None, (9, 60, 2)], 60, 2, chosen, lambda _: False)
        charged[name] = scheduler.fairness.served("0")
        assert sum(map(len, answers.values())) == 52
    assert 10 < drafting.accepted_tokens <= drafting.draft_tokens
    assert charged["plain"] == charged["drafted"]


def test_events_say_which_tokens_were_drafted_and_how_many_in_vain() -> None:
    drafting = LookupDrafting(LIMITS)
    scheduler = Scheduler(SchedulerConfig(1, 16, 80, BLOCK), hash_key=bytes(32), drafting=drafting)
    scheduler.submit(Request("r", (5, 6, 7, 8, 5, 6), SamplingParams(9)))
    scheduler.complete(scheduler.schedule(), [Sampled(7)])
    (work,) = scheduler.schedule()
    assert work.drafts == (8, 5)
    events = scheduler.complete([work], [verified(work.drafts, [Sampled(8), Sampled(1), Sampled(2)])])
    assert [(event.token, event.accepted, event.rejected) for event in events] == [(8, 1, 1), (1, 0, 0)]
    assert (drafting.drafts, drafting.draft_tokens, drafting.accepted_tokens) == (1, 2, 1)


@pytest.mark.parametrize("stop", [(), (5,)])
def test_wherever_a_response_ends_its_events_count_all_that_was_drafted(stop: tuple[int, ...]) -> None:
    scheduler = Scheduler(SchedulerConfig(1, 16, 80, BLOCK), hash_key=bytes(32), drafting=LookupDrafting(LIMITS))
    scheduler.submit(Request("r", (5, 6, 7, 8, 5, 6), SamplingParams(9, stop_token_ids=(8,) if stop else ())))
    scheduler.complete(scheduler.schedule(), [Sampled(7)])
    (work,) = scheduler.schedule()
    assert work.drafts == (8, 5)
    events = scheduler.complete([work], [verified(work.drafts, [Sampled(8), Sampled(5), Sampled(2)])])
    assert len(events) == (1 if stop else 3)
    # A stop string may end the response at any of them.
    for read in range(1, len(events) + 1):
        accepted = sum(event.accepted for event in events[:read])
        assert accepted == min(read, 2)
        assert accepted + sum(event.rejected for event in events[:read]) == 2


def test_drafts_take_no_block_that_another_sequence_needs() -> None:
    drafting = LookupDrafting(LIMITS)
    scheduler = Scheduler(SchedulerConfig(2, 8, 4 * BLOCK, BLOCK), hash_key=bytes(32), drafting=drafting)
    scheduler.submit(Request("r", (5, 6, 7, 5), SamplingParams(6)))
    scheduler.complete(scheduler.schedule(), [Sampled(6)])
    scheduler.submit(Request("long", tuple(range(8)), SamplingParams(1)))
    drafting.observe_step([scheduled(sequence(REPEATING), (1, 2, 3))], 0.02)
    drafting.observe_step([scheduled(sequence(REPEATING), ())], 0.02)
    batch = scheduler.schedule()
    # One block is held, one is for its next tokens, and two are the other one's prompt.
    assert {work.sequence.request.id: work.tokens for work in batch}["long"] > 0
    scheduler.complete(batch, compute(batch, lambda _: False))
    assert scheduler.preemptions == 0
    check_blocks(scheduler)


def test_a_tried_step_without_its_drafts_keeps_the_blocks_in_order() -> None:
    drafting = LookupDrafting(LIMITS)
    scheduler = Scheduler(SchedulerConfig(1, 16, 80, BLOCK), hash_key=bytes(32), drafting=drafting)
    scheduler.submit(Request("r", (5, 6, 7, 5, 6, 7), SamplingParams(9)))
    scheduler.complete(scheduler.schedule(), [Sampled(5)])
    (work,) = scheduler.schedule()
    alone = work.first_half
    assert work.drafts and replace(work, end=work.start + 1, drafts=()) == alone
    scheduler.complete([alone], [Sampled(6)])
    check_blocks(scheduler)
