"""The scheduler as a model: budgets hold, nothing leaks, no request starves, every request ends exactly once."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_server.engine.request import (
    FinishReason,
    Logprobs,
    Request,
    RequestOutput,
    Sampled,
    SamplingParams,
    ScheduledSequence,
    Sequence,
)
from slipway_server.engine.scheduling.background import PRIORITY
from slipway_server.engine.scheduling.block_hash import BlockHasher
from slipway_server.engine.scheduling.budget import StepLoad
from slipway_server.engine.scheduling.config import SchedulerConfig
from slipway_server.engine.scheduling.scheduler import AGEING_S, MAX_PROMPT_LOGPROBS, Scheduler

STOP = 7
LOGPROBS = (Logprobs((0,), (-1.0,), 1),) * 64


def limits(slots: int = 4, step_tokens: int = 16, kv_tokens: int = 400, **more: bool) -> SchedulerConfig:
    return SchedulerConfig(slots, step_tokens, kv_tokens, block_tokens=4, **more)


def request(
    name: str, prompt: int = 4, tokens: int = 3, priority: int = 0, *, first: int = 0, tenant: str = ""
) -> Request:
    params = SamplingParams(tokens, stop_token_ids=(STOP,))
    return Request(name, tuple(range(first, first + prompt)), params, priority, tenant=tenant)


def complete(scheduler: Scheduler, batch: list[ScheduledSequence], token: int | None = 1) -> list[RequestOutput]:
    return scheduler.complete(batch, [Sampled(token) for work in batch if work.samples])


def step(scheduler: Scheduler, token: int = 1, now_s: float = 0.0) -> list[str]:
    """Ids of the requests that ended."""
    events = complete(scheduler, scheduler.schedule(now_s), token)
    return [event.id for event in events if event.finish]


def spans(batch: list[ScheduledSequence]) -> list[tuple[str, int, int, bool]]:
    return [(work.sequence.request.id, work.start, work.end, work.samples) for work in batch]


# --- steps ------------------------------------------------------------------------------------------------------------


def test_requests_join_and_leave_between_steps() -> None:
    scheduler = Scheduler(limits(slots=2), hash_key=bytes(32))
    for name in "abc":
        scheduler.submit(request(name))
    step(scheduler)
    assert (list(scheduler.running), scheduler.waiting) == (["a", "b"], 1)
    assert scheduler.cancel("a")
    step(scheduler)
    assert list(scheduler.running) == ["b", "c"]
    assert step(scheduler) == ["b"]
    assert step(scheduler) == ["c"]
    assert not scheduler.busy and not scheduler.cancel("c")


def test_decodes_come_before_prefills_and_long_prompts_are_cut() -> None:
    scheduler = Scheduler(limits(step_tokens=8), hash_key=bytes(32))
    scheduler.submit(request("short", prompt=2, tokens=9))
    step(scheduler)
    scheduler.submit(request("long", prompt=20, first=50))
    seen = []
    for _ in range(4):
        batch = scheduler.schedule()
        assert batch[0].sequence.request.id == "short" and sum(work.tokens for work in batch) <= 8
        seen += spans(batch)[1:]
        complete(scheduler, batch)
    assert seen == [("long", 0, 7, False), ("long", 7, 14, False), ("long", 14, 20, True), ("long", 20, 21, True)]


def test_prefills_share_a_step_shortest_first_and_the_oldest_is_never_stuck() -> None:
    scheduler = Scheduler(limits(step_tokens=16, slots=8, kv_tokens=4000), hash_key=bytes(32))
    scheduler.submit(request("long", prompt=100, tokens=1))
    ended = []
    for number in range(40):
        scheduler.submit(request(f"s{number}", prompt=12, tokens=1, first=200 + 20 * number))
        batch = scheduler.schedule()
        assert 0 < sum(work.tokens for work in batch) <= 16
        assert any(work.sequence.request.id == "long" and work.tokens >= 4 for work in batch) or "long" in ended
        ended += [event.id for event in complete(scheduler, batch) if event.finish]
    assert "s0" in ended[:2] and "long" in ended


def test_a_resumed_answer_is_prefilled_and_continued() -> None:
    scheduler = Scheduler(limits(slots=2, step_tokens=8), hash_key=bytes(32))
    resumed = Request("r", tuple(range(4)), SamplingParams(9, stop_token_ids=(STOP,)), resumed=(11, 12, 13, 14, 15, 16))
    assert (resumed.known_tokens, resumed.kv_tokens) == (10, 12)
    scheduler.submit(resumed)
    seen, tokens = [], []
    while scheduler.busy:
        batch = scheduler.schedule()
        seen += [(w.start, w.end, w.samples, w.sequence.tokens(w.start, w.end)) for w in batch]
        tokens += [event.token for event in complete(scheduler, batch, 20)]
    assert seen == [
        (0, 8, False, [0, 1, 2, 3, 11, 12, 13, 14]),
        (8, 10, True, [15, 16]),
        (10, 11, True, [20]),
        (11, 12, True, [20]),
    ]
    # Six were there: of nine only three are new, and only they are returned.
    assert tokens == [20, 20, 20] and scheduler.kv_usage == 0


def test_encoders_get_whole_prompts_in_order_of_arrival() -> None:
    scheduler = Scheduler(limits(step_tokens=8, kv_tokens=0, chunked=False), hash_key=bytes(32))
    for name, size in (("a", 20), ("b", 3), ("c", 5), ("d", 1)):
        scheduler.submit(Request(name, tuple(range(size))))
    groups = []
    while scheduler.busy:
        batch = scheduler.schedule()
        groups.append([(w.sequence.request.id, w.start, w.end) for w in batch])
        scheduler.complete(batch, [Sampled(embedding=b"vector") for _ in batch])
    assert groups == [[("a", 0, 20)], [("b", 0, 3), ("c", 0, 5)], [("d", 0, 1)]]


def test_a_stop_token_a_limit_and_numbers_that_are_not_finite_end_a_request() -> None:
    scheduler = Scheduler(limits(slots=3), hash_key=bytes(32))
    for number, (name, tokens) in enumerate((("stop", 5), ("length", 1), ("nan", 5))):
        scheduler.submit(request(name, tokens=tokens, first=10 * number))
    batch = scheduler.schedule()
    order = {work.sequence.request.id: work.sequence.block_table for work in batch}
    results = {"stop": Sampled(STOP), "length": Sampled(1), "nan": Sampled()}
    events = scheduler.complete(batch, [results[name] for name in order])
    ends = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "nan": FinishReason.NON_FINITE}
    assert {event.id: event.finish for event in events} == ends
    assert (
        not scheduler.busy
        and len(scheduler.block_manager.take_blocks_to_clear()) == 1
        and not scheduler.block_manager.take_blocks_to_clear()
    )


def test_prompt_log_probabilities_are_returned_once_despite_preemption() -> None:
    scheduler = Scheduler(limits(slots=1, step_tokens=8), hash_key=bytes(32))
    params = SamplingParams(3, prompt_logprobs=0)
    scheduler.submit(Request("first", tuple(range(20)), params, priority=1))
    rows: list[int] = []

    def step() -> None:
        batch = scheduler.schedule()
        results = [
            Sampled(1 if work.samples else None, prompt_logprobs=LOGPROBS[: len(work.prompt_logprob_positions)])
            for work in batch
        ]
        rows.extend(row for work in batch for row in work.prompt_logprob_positions)
        returned = [
            result for work, result in zip(batch, results, strict=True) if work.samples or work.prompt_logprob_positions
        ]
        scheduler.complete(batch, returned)

    step()
    assert rows == list(range(8))
    scheduler.submit(request("urgent", tokens=1, first=90))  # takes the slot
    while scheduler.busy:
        step()
    assert scheduler.preemptions == 1 and rows == list(range(19))
    # Its prompt is cached, but its log probabilities have to be computed.
    scheduler.submit(Request("again", tuple(range(20)), params))
    assert spans(scheduler.schedule()) == [("again", 0, 8, False)]


def test_a_step_limits_the_prompt_tokens_with_log_probabilities() -> None:
    scheduler = Scheduler(limits(slots=4, step_tokens=2000, kv_tokens=8000), hash_key=bytes(32))
    for name in "abc":
        scheduler.submit(Request(name, tuple(range(200)), SamplingParams(1, prompt_logprobs=0)))
    scheduler.submit(request("plain", prompt=900, first=5000))
    batch = scheduler.schedule()
    assert sum(len(work.prompt_logprob_positions) for work in batch) <= MAX_PROMPT_LOGPROBS
    assert ("plain", 0, 900, True) in spans(batch)


def test_a_request_that_can_never_fit_is_refused() -> None:
    scheduler = Scheduler(limits(slots=1, kv_tokens=8), hash_key=bytes(32))
    scheduler.submit(request("just", prompt=6, tokens=3))
    with pytest.raises(ValueError, match="needs 9 of 8"):
        scheduler.submit(request("large", prompt=7))


def test_a_request_past_its_deadline_ends_before_it_runs() -> None:
    scheduler = Scheduler(limits(slots=1), hash_key=bytes(32))
    scheduler.submit(request("slow", tokens=50), 0.0)
    late = Request("late", (1, 2), SamplingParams(5), timeout_s=2.0)
    scheduler.submit(late, 0.0)
    step(scheduler, now_s=1.0)
    assert scheduler.expire(1.9) == []
    assert [(event.id, event.finish) for event in scheduler.expire(2.0)] == [("late", FinishReason.DEADLINE)]
    assert scheduler.waiting == 0 and list(scheduler.running) == ["slow"]


def test_tokens_of_a_sequence_across_prompt_and_output() -> None:
    sequence = Sequence(request("a", prompt=3), output=[10, 11, 12])
    assert [sequence.tokens(a, b) for a, b in ((0, 2), (2, 5), (3, 6), (4, 5))] == [
        [0, 1],
        [2, 10, 11],
        [10, 11, 12],
        [11],
    ]


# --- the prefix cache -------------------------------------------------------------------------------------------------


def first_work(scheduler: Scheduler, request: Request) -> ScheduledSequence:
    scheduler.submit(request)
    batch = scheduler.schedule()
    work = next(work for work in batch if work.sequence.request is request)
    complete(scheduler, batch, STOP)
    return work


def test_a_cached_prefix_is_not_computed_again() -> None:
    scheduler = Scheduler(limits(step_tokens=64), hash_key=bytes(32))
    assert first_work(scheduler, request("a", prompt=14)).start == 0
    assert first_work(scheduler, request("b", prompt=14)).start == 12
    assert first_work(scheduler, request("c", prompt=20)).start == 12
    # All of it is known but the last block is left: something must be sampled from.
    assert first_work(scheduler, request("d", prompt=16)).start == 12
    assert first_work(scheduler, request("e", prompt=12)).start == 8
    assert (scheduler.prefix_queries, scheduler.prefix_hits) == (76, 44)
    assert scheduler.take_started() == {"a": 0, "b": 12, "c": 12, "d": 12, "e": 8}
    # What an answer that goes on finds may be its own.
    first_work(scheduler, replace(request("f", prompt=14), resumed=(1, 2)))
    assert scheduler.take_started() == {"f": 0}


def test_a_prefix_is_shared_with_a_running_sequence() -> None:
    scheduler = Scheduler(limits(step_tokens=64), hash_key=bytes(32))
    scheduler.submit(request("a", prompt=9, tokens=20))
    step(scheduler)
    scheduler.submit(request("b", prompt=9, tokens=20))
    step(scheduler)
    a, b = scheduler.running["a"], scheduler.running["b"]
    assert a.block_table[:2] == b.block_table[:2] and a.block_table[2] != b.block_table[2]
    assert scheduler.cancel("a")
    scheduler.check()
    step(scheduler)
    scheduler.check()


def test_answers_are_cached_too_and_tenants_share_nothing() -> None:
    scheduler = Scheduler(limits(step_tokens=64), hash_key=bytes(32))
    scheduler.submit(request("a", prompt=6, tokens=4))
    while scheduler.busy:
        step(scheduler, 1)
    follow_up = Request("b", (*range(6), 1, 1, 1, 1, 9), SamplingParams(1))
    assert first_work(scheduler, follow_up).start == 8
    assert first_work(scheduler, request("c", prompt=9, tenant="other")).start == 0
    assert Scheduler(limits(prefix_cache=False), hash_key=bytes(32)).limits.prefix_cache is False


def test_blocks_of_a_non_finite_sequence_are_not_reused() -> None:
    scheduler = Scheduler(limits(step_tokens=64), hash_key=bytes(32))
    scheduler.submit(request("a", prompt=9))
    complete(scheduler, scheduler.schedule(), None)
    assert first_work(scheduler, request("b", prompt=9)).start == 0


# --- preemption and priority ------------------------------------------------------------------------------------------


def test_priority_then_arrival() -> None:
    scheduler = Scheduler(limits(slots=1), hash_key=bytes(32))
    for name, priority in (("later", 1), ("first", 0), ("urgent", -1), ("second", 0)):
        scheduler.submit(request(name, tokens=1, priority=priority))
    assert [step(scheduler)[0] for _ in range(4)] == ["urgent", "first", "second", "later"]


def test_a_higher_class_preempts_a_slot_and_the_victim_resumes_from_the_prefix_cache() -> None:
    scheduler = Scheduler(limits(slots=1, step_tokens=64), hash_key=bytes(32))
    scheduler.submit(request("low", prompt=9, tokens=4, priority=1))
    step(scheduler)
    step(scheduler)
    scheduler.submit(request("high", prompt=5, tokens=1, first=50))
    assert step(scheduler) == ["high"]
    assert scheduler.preemptions == 1 and list(scheduler.take_started()) == ["low", "high"]
    batch = scheduler.schedule()
    assert spans(batch) == [("low", 8, 11, True)]
    complete(scheduler, batch)
    assert step(scheduler) == ["low"]
    assert scheduler.take_started() == {}


def test_without_free_blocks_the_least_advanced_is_preempted_and_all_finish() -> None:
    scheduler = Scheduler(limits(slots=3, step_tokens=64, kv_tokens=32, prefix_cache=False), hash_key=bytes(32))
    for number, name in enumerate("abc"):
        scheduler.submit(request(name, prompt=6, tokens=20, first=100 * number))
    ended: list[str] = []
    for _ in range(200):
        ended += step(scheduler)
        scheduler.check()
    assert sorted(ended) == ["a", "b", "c"] and scheduler.preemptions > 0
    assert scheduler.kv_usage == 0


@pytest.mark.finding(13)
def test_a_higher_class_preempts_as_few_lower_ones_as_it_needs() -> None:
    """Safety 13: it had waited behind answers of a lower class, with slots to spare."""
    scheduler = Scheduler(limits(slots=8, step_tokens=64, kv_tokens=40, prefix_cache=False), hash_key=bytes(32))
    for number, name in enumerate("abc"):
        scheduler.submit(request(name, prompt=10, tokens=9, priority=1, first=100 * number))
    step(scheduler)
    assert scheduler.block_manager.num_free_blocks == 1
    scheduler.submit(request("high", prompt=15, tokens=1, first=900))
    assert "high" in step(scheduler) and scheduler.preemptions == 1 and len(scheduler.running) == 2
    scheduler.check()
    while scheduler.busy:
        step(scheduler)


def test_no_sequence_is_preempted_for_a_request_that_does_not_fit_anyway() -> None:
    scheduler = Scheduler(limits(slots=8, step_tokens=64, kv_tokens=40, prefix_cache=False), hash_key=bytes(32))
    scheduler.submit(request("same", prompt=20, tokens=9))
    scheduler.submit(request("low", prompt=10, tokens=9, priority=1, first=100))
    step(scheduler)
    scheduler.submit(request("high", prompt=30, tokens=1, first=900))
    step(scheduler)
    assert set(scheduler.running) == {"same", "low"} and scheduler.preemptions == 0
    # Who is of the same class is not pushed aside either.
    assert scheduler.cancel("low") and not scheduler.cancel("low")
    step(scheduler)
    assert set(scheduler.running) == {"same"}


def test_no_slot_is_taken_for_a_request_whose_blocks_do_not_fit() -> None:
    """Two slots: "low" would lose its own, and "middle" would still wait for the blocks of "high"."""
    scheduler = Scheduler(limits(slots=2, step_tokens=64, kv_tokens=40, prefix_cache=False), hash_key=bytes(32))
    scheduler.submit(request("high", prompt=24, tokens=9))
    scheduler.submit(request("low", prompt=4, tokens=9, priority=5, first=100))
    step(scheduler)
    scheduler.submit(request("middle", prompt=20, tokens=3, priority=1, first=900))
    step(scheduler)
    assert set(scheduler.running) == {"high", "low"} and scheduler.preemptions == 0
    while scheduler.busy:
        step(scheduler)
    scheduler.check()


def test_a_prefix_shared_with_the_victim_is_not_evicted() -> None:
    scheduler = Scheduler(limits(slots=8, step_tokens=64, kv_tokens=32), hash_key=bytes(32))
    scheduler.submit(request("low", prompt=24, tokens=9, priority=1))
    step(scheduler)
    scheduler.submit(request("high", prompt=32, tokens=1))
    batch = scheduler.schedule()
    assert spans(batch) == [("high", 24, 32, True)] and scheduler.preemptions == 1
    complete(scheduler, batch)
    scheduler.check()


@pytest.mark.finding(13)
def test_a_waiting_prompt_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Safety 13: the head of the queue was hashed again in each step."""
    hashed: list[bytes] = []
    compute = BlockHasher._hash
    monkeypatch.setattr(BlockHasher, "_hash", lambda self, *data: hashed.append(b"".join(data)) or compute(self, *data))
    scheduler = Scheduler(limits(slots=2, step_tokens=64, kv_tokens=80), hash_key=bytes(32))
    scheduler.submit(request("runs", prompt=36, tokens=30, first=100))
    step(scheduler)
    scheduler.submit(request("waits", prompt=48, tokens=8))
    for _ in range(10):
        step(scheduler)
    assert scheduler.waiting == 1
    while scheduler.busy:
        step(scheduler)
    assert len(hashed) == len(set(hashed)) == 1 + (36 + 29) // 4 + (48 + 7) // 4


def test_the_lowest_class_is_served_at_last() -> None:
    scheduler = Scheduler(limits(slots=1), hash_key=bytes(32))
    scheduler.submit(request("patient", tokens=1, priority=3), 0.0)
    ended: list[str] = []
    for number in range(200):
        scheduler.submit(request(f"r{number}", tokens=1, first=10), float(number))
        ended += step(scheduler, now_s=float(number))
    assert "patient" in ended and ended.index("patient") <= 3 * AGEING_S + 2


# --- everything at once -----------------------------------------------------------------------------------------------

drawn_requests = st.tuples(
    st.integers(1, 30),
    st.integers(1, 8),
    st.sampled_from((-1, 0, 1, PRIORITY)),
    st.integers(0, 2),
    st.integers(0, 2),
)


@given(
    st.lists(st.one_of(drawn_requests, st.integers(0, 20), st.none()), max_size=60),
    st.integers(1, 5),
    st.integers(1, 12),
    st.booleans(),
    st.booleans(),
)
def test_budgets_hold_and_every_request_ends_once(
    actions: list[tuple[int, int, int, int, int] | int | None],
    slots: int,
    extra_tokens: int,
    chunked: bool,
    prefix_cache: bool,
) -> None:
    """Actions: submit (prompt, tokens, priority, where its text begins, tenant), cancel the n-th, or a step."""
    bounds = limits(slots, slots + extra_tokens, 40, chunked=chunked, prefix_cache=prefix_cache)
    scheduler = Scheduler(bounds, hash_key=bytes(32))
    ended: Counter[str] = Counter()
    submitted = 0
    computed: dict[str, int] = {}

    def checked_step() -> None:
        batch = scheduler.schedule()
        total = sum(work.tokens for work in batch)
        assert total <= bounds.step_tokens or (not chunked and len(batch) == 1)
        assert batch or not scheduler.busy, "work waits and nothing runs"
        assert all(len(work.sequence.block_table) * 4 >= work.end for work in batch if chunked), (
            "a token without a place"
        )
        ended.update(
            event.id
            for event in scheduler.complete(batch, [Sampled(1, b"v") for work in batch if work.samples or not chunked])
            if event.finish
        )
        scheduler.check()

    for action in actions:
        if action is None:
            checked_step()
        elif isinstance(action, int):
            ended.update([f"r{action}"] if scheduler.cancel(f"r{action}") else [])
        else:
            prompt, tokens, priority, first, tenant = action
            name = f"r{submitted}"
            drawn = request(name, prompt, tokens, priority, first=first, tenant=str(tenant))
            scheduler.submit(drawn if chunked else Request(name, drawn.prompt, None, priority))
            computed[name] = 0
            submitted += 1
    for _ in range(3000):
        if not scheduler.busy:
            break
        checked_step()
    started = list(scheduler.take_started())
    assert ended == Counter(f"r{number}" for number in range(submitted))
    assert len(started) == len(set(started))
    assert scheduler.kv_usage == 0


# --- the background ---------------------------------------------------------------------------------------------------


def names(batch: list[ScheduledSequence]) -> set[str]:
    return {work.sequence.request.id for work in batch}


def test_background_computes_in_every_step_while_it_is_alone() -> None:
    scheduler = Scheduler(limits(), hash_key=bytes(32))
    scheduler.submit(request("line", tokens=20, priority=PRIORITY))
    scheduler.submit(request("other", tokens=20, priority=PRIORITY, first=50))
    for _ in range(5):
        batch = scheduler.schedule()
        assert names(batch) == {"line", "other"}
        complete(scheduler, batch)


def test_background_is_in_one_of_eight_steps_that_others_have() -> None:
    scheduler = Scheduler(limits(), hash_key=bytes(32))
    scheduler.submit(request("line", tokens=90, priority=PRIORITY))
    step(scheduler)
    scheduler.submit(request("chat", tokens=33, first=50))
    seen = []
    while "chat" in scheduler.running or not seen:
        batch = scheduler.schedule()
        seen.append(names(batch))
        complete(scheduler, batch)
    assert len(seen) == 33 and all("chat" in each for each in seen)
    assert [number for number, each in enumerate(seen, 1) if "line" in each] == [8, 16, 24, 32]
    assert names(scheduler.schedule()) == {"line"}  # at once when it is alone


@pytest.mark.parametrize("priority", [-1000, -1, 0, 1, 999])
def test_no_other_priority_is_left_out_of_a_step(priority: int) -> None:
    scheduler = Scheduler(limits(), hash_key=bytes(32))
    scheduler.submit(request("late", tokens=9, priority=priority))
    scheduler.submit(request("chat", tokens=9, priority=-1000, first=50))
    for _ in range(8):
        batch = scheduler.schedule()
        assert names(batch) == {"late", "chat"}
        complete(scheduler, batch)


def test_background_computes_where_others_find_no_block() -> None:
    scheduler = Scheduler(limits(slots=2, kv_tokens=40), hash_key=bytes(32))
    scheduler.submit(request("line", prompt=20, tokens=16, priority=PRIORITY))
    step(scheduler)
    scheduler.submit(request("chat", prompt=24, tokens=16, first=50))
    ended: list[str] = []
    for _ in range(200):
        ended += step(scheduler)
        scheduler.check()
        if not scheduler.busy:
            break
    assert sorted(ended) == ["chat", "line"] and ended[0] == "chat"


def test_load_says_what_decodes_and_prompts_attend_to() -> None:
    scheduler = Scheduler(limits(), hash_key=bytes(32))
    assert scheduler.load == StepLoad()
    scheduler.submit(request("answer", prompt=6, tokens=9))
    complete(scheduler, scheduler.schedule())
    scheduler.submit(request("prompt", prompt=40, tokens=9, first=50))
    (_, chunk) = scheduler.schedule(step_tokens=6)
    complete(scheduler, [chunk])
    scheduler.submit(request("waits", prompt=9, tokens=9, first=99))
    assert (chunk.tokens, chunk.pairs) == (5, 1 + 2 + 3 + 4 + 5)
    assert scheduler.load == StepLoad(decodes=1, requests=3, decode_context=7, prefill_context=5)


def test_step_is_short_for_a_request_that_may_arrive_while_the_background_has_a_prompt() -> None:
    scheduler = Scheduler(limits(), hash_key=bytes(32))
    assert scheduler.load.decodes == 0
    scheduler.submit(request("line", prompt=40, tokens=9, priority=PRIORITY))
    complete(scheduler, scheduler.schedule())
    assert scheduler.load.decodes == 1  # in the middle of its prompt
    scheduler.submit(request("chat", prompt=40, tokens=9, first=50))
    complete(scheduler, scheduler.schedule())
    assert scheduler.load.decodes == 0  # a prompt of others is computed as fast as without it
