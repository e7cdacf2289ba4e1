"""The scheduler as a model: budgets hold, nothing leaks, every request ends exactly once."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_server.engine.request import FinishReason, Request, SamplingParams, Sequence
from slipway_server.engine.scheduler import Limits, Scheduler

STOP = 7


def request(name: str, prompt: int = 4, tokens: int = 3, priority: int = 0) -> Request:
    return Request(name, tuple(range(prompt)), SamplingParams(tokens, stop_token_ids=(STOP,)), priority)


def step(scheduler: Scheduler, token: int = 1) -> list[str]:
    """Ids of the requests that ended."""
    batch = scheduler.schedule()
    events = scheduler.complete(batch, [token for work in batch if work.samples])
    return [event.id for event in events if event.finish]


def test_requests_join_and_leave_between_steps() -> None:
    scheduler = Scheduler(Limits(slots=2, step_tokens=16, kv_tokens=100))
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
    scheduler = Scheduler(Limits(slots=4, step_tokens=8, kv_tokens=100))
    scheduler.submit(request("short", prompt=2, tokens=9))
    step(scheduler)
    scheduler.submit(request("long", prompt=20))
    spans = []
    for _ in range(4):
        batch = scheduler.schedule()
        assert batch[0].sequence.request.id == "short" and sum(w.end - w.start for w in batch) <= 8
        spans += [(w.start, w.end, w.samples) for w in batch[1:]]
        scheduler.complete(batch, [1 for w in batch if w.samples])
    assert spans == [(0, 7, False), (7, 14, False), (14, 20, True), (20, 21, True)]


def test_a_resumed_answer_is_prefilled_and_goes_on_where_it_was() -> None:
    scheduler = Scheduler(Limits(slots=2, step_tokens=8, kv_tokens=100))
    resumed = Request("r", tuple(range(4)), SamplingParams(9, stop_token_ids=(STOP,)), resumed=(11, 12, 13, 14, 15, 16))
    assert (resumed.known_tokens, resumed.kv_tokens) == (10, 13)
    scheduler.submit(resumed)
    spans, tokens = [], []
    while scheduler.busy:
        batch = scheduler.schedule()
        spans += [(w.start, w.end, w.samples, w.sequence.tokens(w.start, w.end)) for w in batch]
        tokens += [e.token for e in scheduler.complete(batch, [20 for w in batch if w.samples])]
    assert spans == [
        (0, 8, False, [0, 1, 2, 3, 11, 12, 13, 14]),
        (8, 10, True, [15, 16]),
        (10, 11, True, [20]),
        (11, 12, True, [20]),
    ]
    # Six were there: of nine only three are new, and only they are told.
    assert tokens == [20, 20, 20] and scheduler.kv_tokens_reserved == 0


def test_encoders_get_whole_prompts() -> None:
    scheduler = Scheduler(Limits(slots=4, step_tokens=8, kv_tokens=1, chunked=False))
    for name, size in (("a", 20), ("b", 3), ("c", 5), ("d", 1)):
        scheduler.submit(Request(name, tuple(range(size))))
    groups = []
    while scheduler.busy:
        batch = scheduler.schedule()
        groups.append([(w.sequence.request.id, w.start, w.end) for w in batch])
        scheduler.complete(batch, [b"vector" for _ in batch])
    assert groups == [[("a", 0, 20)], [("b", 0, 3), ("c", 0, 5)], [("d", 0, 1)]]


def test_a_stop_token_a_limit_and_numbers_that_are_not_finite_end_a_request() -> None:
    scheduler = Scheduler(Limits(slots=3, step_tokens=16, kv_tokens=100))
    for name, tokens in (("stop", 5), ("length", 1), ("nan", 5)):
        scheduler.submit(request(name, tokens=tokens))
    events = scheduler.complete(scheduler.schedule(), [STOP, 1, None])
    assert {e.id: e.finish for e in events} == {
        "stop": FinishReason.STOP,
        "length": FinishReason.LENGTH,
        "nan": FinishReason.ERROR,
    }
    assert not scheduler.busy


def test_priority_then_arrival() -> None:
    scheduler = Scheduler(Limits(slots=1, step_tokens=16, kv_tokens=100))
    for name, priority in (("later", 1), ("first", 0), ("urgent", -1), ("second", 0)):
        scheduler.submit(request(name, tokens=1, priority=priority))
    assert [step(scheduler)[0] for _ in range(4)] == ["urgent", "first", "second", "later"]


def test_what_can_never_fit_is_refused() -> None:
    scheduler = Scheduler(Limits(slots=1, step_tokens=16, kv_tokens=10))
    with pytest.raises(ValueError, match="needs 11 of 10"):
        scheduler.submit(request("large", prompt=8))


def test_tokens_of_a_sequence_across_prompt_and_output() -> None:
    sequence = Sequence(request("a", prompt=3), slot=0, output=[10, 11, 12])
    assert [sequence.tokens(a, b) for a, b in ((0, 2), (2, 5), (3, 6), (4, 5))] == [
        [0, 1],
        [2, 10, 11],
        [10, 11, 12],
        [11],
    ]


requests = st.tuples(st.integers(1, 30), st.integers(1, 8), st.integers(-1, 1))


@given(
    st.lists(st.one_of(requests, st.integers(0, 20), st.none()), max_size=60),
    st.integers(1, 5),
    st.integers(1, 12),
    st.booleans(),
)
def test_budgets_hold_and_every_request_ends_once(
    actions: list[tuple[int, int, int] | int | None], slots: int, extra_tokens: int, chunked: bool
) -> None:
    """Actions: submit (prompt, tokens, priority), cancel the n-th, or a step."""
    limits = Limits(slots, slots + extra_tokens, kv_tokens=60, chunked=chunked)
    scheduler = Scheduler(limits)
    ended: Counter[str] = Counter()
    submitted = 0
    released: list[int] = []

    def checked_step() -> None:
        batch = scheduler.schedule()
        total = sum(w.end - w.start for w in batch)
        assert total <= limits.step_tokens or (not chunked and len([w for w in batch if w.end - w.start > 1]) == 1)
        assert batch or not scheduler.busy, "work waits and nothing runs"
        assert len({s.slot for s in scheduler.running.values()}) == len(scheduler.running) <= slots
        assert scheduler.kv_tokens_reserved == sum(s.request.kv_tokens for s in scheduler.running.values()) <= 60
        ended.update(e.id for e in scheduler.complete(batch, [1 for w in batch if w.samples]) if e.finish)
        released.extend(scheduler.take_released())

    for action in actions:
        if action is None:
            checked_step()
        elif isinstance(action, int):
            ended.update([f"r{action}"] if scheduler.cancel(f"r{action}") else [])
        else:
            prompt, tokens, priority = action
            scheduler.submit(request(f"r{submitted}", prompt, tokens, priority))
            submitted += 1
    for _ in range(2000):
        if not scheduler.busy:
            break
        checked_step()
    started = scheduler.take_started()
    released.extend(scheduler.take_released())
    assert ended == Counter(f"r{n}" for n in range(submitted))
    assert len(started) == len(set(started)) == len(released)
    assert scheduler.kv_tokens_reserved == 0 and sorted(scheduler._free_slots) == list(range(slots))
