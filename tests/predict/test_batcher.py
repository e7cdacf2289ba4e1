"""Batches over random histories: work-conserving, in order, never mixed, bounded."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway_predict.batcher import (
    MAX_QUEUE,
    MAX_QUEUE_BYTES,
    MIN_QUEUE,
    Batcher,
    BatchQueueFull,
    BatchRules,
    DeadlineMissed,
    PredictJob,
    QueueMemory,
    RowBatch,
)
from slipway_predict.texts import BATCH_TOKENS, MAX_PADDING, groups


def job(number: int, rows: int = 1, key: str = "a", at_s: float = 0.0, **more: float) -> PredictJob:
    return PredictJob(number, key, rows, at_s, more.get("deadline_s", math.inf), int(more.get("priority", 0)))


def ids(batch: RowBatch | None) -> list[tuple[int, int, int]]:
    return [(part.job.id, part.start, part.stop) for part in batch.parts] if batch else []


def test_an_idle_model_takes_what_waits_at_once() -> None:
    batcher = Batcher(BatchRules(max_size=8))
    batcher.submit(job(1), 5.0)
    assert ids(batcher.take(5.0)) == [(1, 0, 1)]
    assert batcher.take(5.0) is None and batcher.waiting == 0


def test_what_came_meanwhile_is_one_batch() -> None:
    batcher = Batcher(BatchRules(max_size=8))
    for number in range(5):
        batcher.submit(job(number, at_s=number), number)
    assert len(ids(batcher.take(9.0))) == 5


def test_another_key_waits_for_the_next_batch_and_the_oldest_goes_first() -> None:
    batcher = Batcher(BatchRules())
    for number, key in enumerate("abaab"):
        batcher.submit(job(number, key=key, at_s=number), number)
    assert [one[0] for one in ids(batcher.take(9.0))] == [0, 2, 3]
    assert [one[0] for one in ids(batcher.take(9.0))] == [1, 4]


def test_a_more_urgent_class_goes_first() -> None:
    batcher = Batcher(BatchRules())
    batcher.submit(job(1), 0.0)
    batcher.submit(job(2, at_s=1.0, priority=-1), 1.0)
    assert [ids(batcher.take(2.0)), ids(batcher.take(2.0))] == [[(2, 0, 1)], [(1, 0, 1)]]


def test_an_oversize_request_is_cut_in_order_and_goes_behind_the_others_after_each_batch() -> None:
    batcher = Batcher(BatchRules(max_size=4))
    batcher.submit(job(1, 10), 0.0)
    batcher.submit(job(2, 2, at_s=1.0), 1.0)
    assert ids(batcher.take(2.0)) == [(1, 0, 4)]
    assert ids(batcher.take(2.0)) == [(2, 0, 2), (1, 4, 6)]
    assert ids(batcher.take(2.0)) == [(1, 6, 10)]


@pytest.mark.finding("F5")
@pytest.mark.parametrize("key", ["a", "b"])
def test_a_request_waits_for_one_batch_of_the_largest_other_one(key: str) -> None:
    """One of 500,000 rows was computed whole before anything that came later: others waited for seconds."""
    batcher, now_s = Batcher(BatchRules(max_size=4)), 0.0
    batcher.fit.observe(4, 0.001)
    batcher.submit(job(0, 500_000), now_s)
    for number in range(1, 20):
        now_s += 1.0
        batcher.take(now_s)
        batcher.submit(job(number, key=key, at_s=now_s, deadline_s=now_s + 0.01), now_s)  # and it is not called late
        found = [ids(batcher.take(now_s)), ids(batcher.take(now_s))]
        assert any(number in [one[0] for one in batch] for batch in found), found
    assert batcher.waiting == 1 and batcher.waiting_rows == 4


def test_a_request_that_fits_into_a_batch_is_never_cut() -> None:
    batcher = Batcher(BatchRules(max_size=4))
    for number in (1, 2):
        batcher.submit(job(number, 3), 0.0)
    assert [ids(batcher.take(0.0)), ids(batcher.take(0.0))] == [[(1, 0, 3)], [(2, 0, 3)]]


def test_a_request_without_rows_runs_alone() -> None:
    batcher = Batcher(BatchRules())
    for number in (1, 2):
        batcher.submit(job(number, 0, key="same"), 0.0)
    assert [ids(batcher.take(0.0)), ids(batcher.take(0.0))] == [[(1, 0, 0)], [(2, 0, 0)]]


def test_a_delay_waits_for_rows_until_it_is_over_or_the_batch_is_full() -> None:
    batcher = Batcher(BatchRules(max_size=2, max_delay_s=0.005))
    batcher.submit(job(1, at_s=1.0), 1.0)
    assert batcher.take(1.001) is None and batcher.next_s(1.001) == 1.005
    assert ids(batcher.take(1.005)) == [(1, 0, 1)]
    for number in (2, 3):
        batcher.submit(job(number, at_s=2.0), 2.0)
    assert len(ids(batcher.take(2.0))) == 2


def test_a_full_queue_refuses() -> None:
    batcher = Batcher(BatchRules(max_queue=2))
    for number in (1, 2):
        batcher.submit(job(number), 0.0)
    with pytest.raises(BatchQueueFull):
        batcher.submit(job(3), 0.0)


@pytest.mark.attack_class(8)
@pytest.mark.parametrize("rules", [BatchRules(max_queue=8), BatchRules()])
def test_a_tenant_that_fills_the_queue_of_a_model_leaves_a_quarter_to_others(rules: BatchRules) -> None:
    batcher, most = Batcher(rules), rules.max_queue or MIN_QUEUE
    for number in range(most * 3 // 4):
        batcher.submit(of_tenant(number, "a"), 0.0)
    with pytest.raises(BatchQueueFull):
        batcher.submit(of_tenant(999, "a"), 0.0)
    batcher.submit(of_tenant(1000, "b"), 0.0)
    with pytest.raises(BatchQueueFull):
        batcher.submit(of_tenant(1001, "b"), 0.0)
    while batcher.take(0.0):
        pass
    assert batcher.waiting == 0
    batcher.submit(of_tenant(1002, "a"), 0.0)


def test_bytes_that_wait_have_a_share_for_each_tenant() -> None:
    batcher = Batcher(BatchRules(), QueueMemory(100))
    for number in (1, 2, 3):
        batcher.submit(of_tenant(number, "a", size_bytes=25), 0.0)
    with pytest.raises(BatchQueueFull, match="bytes"):
        batcher.submit(of_tenant(4, "a", size_bytes=25), 0.0)
    batcher.submit(of_tenant(5, "b", size_bytes=25), 0.0)


def of_tenant(number: int, tenant: str, size_bytes: int = 0) -> PredictJob:
    made = job(number)
    made.tenant, made.size_bytes = tenant, size_bytes
    return made


def taken(batch_s: float, rows: int = 1) -> int:
    """Requests of so many rows that wait before one is refused; a batch of 64 rows takes `batch_s`."""
    batcher = Batcher(BatchRules())
    for size in (1, 64):
        batcher.fit.observe(size, batch_s * size / 64)
    for number in range(2 * MAX_QUEUE):
        try:
            batcher.submit(job(number, rows), 0.0)
        except BatchQueueFull:
            assert batcher.waiting == number and batcher.waiting_rows == number * rows
            return number
    raise AssertionError("nothing bounds the queue")


def test_without_a_limit_of_its_own_a_queue_is_as_long_as_the_model_is_fast() -> None:
    assert taken(batch_s=0.001) == MAX_QUEUE, "64,000 rows a second"
    assert taken(batch_s=0.1) == pytest.approx(640, abs=64), "640 rows a second"
    assert taken(batch_s=0.032, rows=4) == pytest.approx(500, abs=16), "2,000 rows a second"
    assert taken(batch_s=10.0) == MIN_QUEUE
    batcher = Batcher(BatchRules())
    for number in range(MIN_QUEUE):
        batcher.submit(job(number), 0.0)
    with pytest.raises(BatchQueueFull, match="256 requests wait"):
        batcher.submit(job(MIN_QUEUE), 0.0)


def test_inputs_that_wait_have_a_bound_in_bytes() -> None:
    batcher = Batcher(BatchRules())
    jobs = [job(number) for number in range(3)]
    for one, size_bytes in zip(jobs, (2 * MAX_QUEUE_BYTES, 1, MAX_QUEUE_BYTES), strict=True):
        one.size_bytes = size_bytes
    batcher.submit(jobs[0], 0.0)
    with pytest.raises(BatchQueueFull, match="no room for more"):
        batcher.submit(jobs[1], 0.0)
    batcher.cancel(jobs[0])
    batcher.submit(jobs[2], 0.0)
    with pytest.raises(BatchQueueFull):
        batcher.submit(jobs[1], 0.0)
    assert len(ids(batcher.take(0.0))) == 1
    batcher.submit(jobs[1], 0.0)


def test_queues_of_one_server_share_their_memory() -> None:
    memory = QueueMemory.of_free(1000)
    one, other = Batcher(BatchRules(), memory), Batcher(BatchRules(), memory)
    jobs = [job(number) for number in range(3)]
    for each, size_bytes in zip(jobs, (60, 40, 1), strict=True):
        each.size_bytes = size_bytes
    one.submit(jobs[0], 0.0)
    other.submit(jobs[1], 0.0)
    with pytest.raises(BatchQueueFull, match="100 bytes of inputs wait"):
        other.submit(jobs[2], 0.0)
    one.take(0.0)
    other.submit(jobs[2], 0.0)
    assert memory.used_bytes == 41
    third = Batcher(BatchRules(), memory)
    jobs[0].size_bytes = 1000
    third.submit(jobs[0], 0.0)  # a model with an empty queue takes a request
    assert QueueMemory.of_free(1 << 40).limit_bytes == MAX_QUEUE_BYTES


def test_a_request_that_must_be_late_is_refused_at_once() -> None:
    batcher = Batcher(BatchRules(max_size=10))
    for _ in range(20):
        batcher.fit.observe(10, 0.1)
    for number in range(30):
        batcher.submit(job(number), 0.0)
    with pytest.raises(DeadlineMissed):
        batcher.submit(job(99, deadline_s=0.2), 0.0)
    batcher.submit(job(100, deadline_s=1.0), 0.0)


def test_one_that_is_late_leaves_the_queue() -> None:
    batcher = Batcher(BatchRules())
    batcher.submit(job(1, deadline_s=1.0), 0.0)
    batcher.submit(job(2), 0.0)
    assert batcher.next_s(0.5) == 1.0
    assert [one.id for one in batcher.expire(1.0)] == [1]
    assert ids(batcher.take(1.0)) == [(2, 0, 1)]


def test_one_that_is_cancelled_between_two_parts_is_not_continued() -> None:
    batcher = Batcher(BatchRules(max_size=4))
    cut = job(1, 10)
    batcher.submit(cut, 0.0)
    batcher.take(0.0)
    batcher.cancel(cut)
    assert batcher.take(0.0) is None and batcher.waiting == 0
    batcher.cancel(cut)
    assert batcher.waiting == 0


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(0, 12), st.sampled_from("ab"), st.integers(-1, 1)),
        st.tuples(st.just("take")),
        st.tuples(st.just("cancel"), st.integers(0, 40)),
    ),
    max_size=60,
)


@given(EVENTS, st.integers(1, 5))
@settings(max_examples=300, deadline=None)
def test_over_any_history_each_row_runs_once_in_order_and_nothing_is_mixed(
    events: list[tuple[object, ...]], max_size: int
) -> None:
    batcher, jobs, done = Batcher(BatchRules(max_size=max_size, max_queue=20)), list[PredictJob](), dict[int, int]()
    cancelled: set[int] = set()

    def take(now_s: float) -> bool:
        batch = batcher.take(now_s)
        if batch is None:
            assert batcher.waiting == 0, "an idle model never waits"
            return False
        assert batch.rows <= max_size and len({(part.job.key, part.job.priority) for part in batch.parts}) == 1
        for part in batch.parts:
            assert part.job.id not in cancelled and part.start == done.get(part.job.id, 0)
            done[part.job.id] = part.stop
            assert part.rows == part.job.rows or part.job.rows > max_size or part.job.rows == 0
        return True

    for now_s, event in enumerate(events):
        if event[0] == "submit":
            made = PredictJob(len(jobs), event[2], int(str(event[1])), now_s, priority=int(str(event[3])))
            try:
                batcher.submit(made, now_s)
            except BatchQueueFull:
                continue
            jobs.append(made)
        elif event[0] == "cancel" and jobs:
            one = jobs[int(str(event[1])) % len(jobs)]
            batcher.cancel(one)
            cancelled.add(one.id)
        elif event[0] == "take":
            take(now_s)
        assert batcher.waiting_rows == sum(min(one.left, max_size) for one in jobs if one.queued)
    while take(1000.0):
        pass
    assert all(done.get(one.id, -1) == one.rows for one in jobs if one.id not in cancelled)


def test_a_batch_of_texts_is_bounded_by_the_tokens_of_its_longest_row() -> None:
    batcher = Batcher(BatchRules(max_size=8, max_tokens=100))
    jobs = [PredictJob(number, "a", rows, float(number), row_tokens=tokens)
            for number, (rows, tokens) in enumerate([(2, 10), (1, 40), (10, 50), (1, 500)])]  # fmt: skip
    for one in jobs:
        batcher.submit(one, one.arrived_s)
    batches = []
    while batch := batcher.take(9.0):
        batches.append(ids(batch))
        batcher.finished(batch, 0.1)
    assert batches[0] == [(0, 0, 2)]  # with the next one it would have 3 rows of 40 tokens
    assert batches[1] == [(1, 0, 1), (2, 0, 1)]  # an oversize request is cut
    assert batches[2] == [(3, 0, 1)]  # one row always runs, and the oversize request is behind it
    assert batches[3:] == [[(2, start, min(10, start + 2))] for start in range(1, 11, 2)]


@given(lengths=st.lists(st.integers(1, 3000), max_size=60), even=st.booleans())
def test_rows_of_texts_are_computed_once_with_bounded_padding(lengths: list[int], even: bool) -> None:
    found = groups(lengths, even=even)
    assert sorted(index for group in found for index in group) == list(range(len(lengths)))
    for group in found:
        sizes = [lengths[index] for index in group]
        assert len(group) == 1 or max(sizes) * len(sizes) <= BATCH_TOKENS
        assert min(sizes) >= (max(sizes) if even else max(sizes) * (1 - MAX_PADDING))
