"""The work queue with a clock of the test's own."""

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_operator.queue import BACKOFF, HEAD_START_S, WorkQueue, work
from slipway_process.supervisor import Supervisor


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def queue(clock):
    return WorkQueue(clock, jitter=lambda: 1.0)


def drain(queue):
    return list(iter(queue.take, None))


def test_a_key_added_many_times_is_handled_once(queue):
    for _ in range(100):
        queue.add("a")
    assert drain(queue) == ["a"]


def test_first_come_first_served(queue):
    for key in "cab":
        queue.add(key)
    assert drain(queue) == ["c", "a", "b"]


def test_a_head_start_goes_before_what_waits_for_less_and_after_what_waits_for_longer(queue, clock):
    queue.add("long")
    clock.now += HEAD_START_S + 1
    for key in "ab":
        queue.add(key)
    queue.add_first("c")
    queue.add_first("b")
    assert queue.oldest_wait_s() == HEAD_START_S + 1
    assert drain(queue) == ["long", "c", "b", "a"]


def test_a_head_start_is_for_once(queue):
    queue.add_first("a")
    queue.take()
    queue.add_first("a")
    queue.done("a")
    queue.add("b")
    assert drain(queue) == ["a", "b"], "it is kept while the key is handled"
    for key in "ab":
        queue.done(key)
    for key in "ba":
        queue.add(key)
    assert drain(queue) == ["b", "a"]


def test_a_head_start_shortens_a_wait(queue, clock):
    queue.add_after("a", 60.0)
    queue.add_first("a")
    assert queue.next_due() == clock.now
    assert drain(queue) == ["a"]


def test_a_key_being_handled_is_not_given_out_again(queue):
    queue.add("a")
    assert queue.take() == "a"
    queue.add("a")
    assert queue.take() is None


def test_a_key_added_while_it_is_handled_runs_exactly_once_more(queue):
    queue.add("a")
    queue.take()
    for _ in range(5):
        queue.add("a")
    queue.done("a")
    assert drain(queue) == ["a"]
    queue.done("a")
    assert queue.take() is None


def test_add_after_waits(queue, clock):
    queue.add_after("a", 5.0)
    clock.now += 4.9
    assert queue.take() is None
    clock.now += 0.2
    assert queue.take() == "a"


def test_the_earlier_moment_counts(queue, clock):
    queue.add_after("a", 5.0)
    queue.add_after("a", 1.0)
    queue.add_after("a", 9.0)
    clock.now += 1.0
    assert queue.take() == "a"
    queue.done("a")
    clock.now += 100.0
    assert queue.take() is None


def test_an_event_beats_the_requeue_of_a_done_key(queue, clock):
    queue.add("a")
    queue.take()
    queue.add("a")
    queue.done("a", again_after_s=60.0)
    assert queue.take() == "a"
    queue.done("a", again_after_s=60.0)
    clock.now += 60.0
    assert queue.take() == "a"


def test_failures_wait_longer_each_time_up_to_a_limit(queue, clock):
    queue.add("a")
    waits = []
    for _ in range(15):
        assert queue.take() == "a"
        queue.failed("a")
        waits.append(queue.next_due() - clock.now)
        clock.now = queue.next_due()
    assert waits[:4] == pytest.approx([0.2, 0.4, 0.8, 1.6])
    assert all(later > earlier - 1e-6 for earlier, later in pairwise(waits))
    assert waits[-1] == pytest.approx(BACKOFF.most_s)
    assert queue.retries == 15


def test_a_failed_key_starts_over_after_a_success(queue, clock):
    queue.add("a")
    for _ in range(5):
        queue.take()
        queue.failed("a")
        clock.now = queue.next_due()
    assert queue.failures("a") == 5
    queue.take()
    queue.done("a", again_after_s=0.0)
    queue.take()
    queue.failed("a")
    assert queue.next_due() - clock.now == pytest.approx(0.2)


def test_an_event_beats_a_backoff(queue, clock):
    queue.add("a")
    queue.take()
    queue.failed("a")
    queue.add("a")
    assert queue.take() == "a"
    assert queue.failures("a") == 1


def test_jitter_halves_at_most():
    clock = Clock()
    queue = WorkQueue(clock, jitter=lambda: 0.0)
    queue.add("a")
    queue.take()
    queue.failed("a")
    assert queue.next_due() - clock.now == pytest.approx(0.1)


def test_memory_is_bounded_by_keys_not_by_events(queue):
    for _ in range(10_000):
        queue.add("a")
        queue.take()
        queue.add("b")
        queue.done("a", again_after_s=300.0)
        queue.take()
        queue.done("b", again_after_s=300.0)
    assert len(queue._heap) < 200


@pytest.fixture
def shared(clock):
    return WorkQueue(clock, jitter=lambda: 1.0, share_of=lambda key: key[0])


@pytest.mark.finding("F8")
@pytest.mark.parametrize("how", ["add", "add_first"])
def test_a_thousand_keys_of_one_share_delay_another_by_one(shared, clock, how):
    """Keys that are always due, as those of a namespace whose objects change all the time."""
    for number in range(1000):
        getattr(shared, how)(("hog", number))
    clock.now += 300.0
    for _ in range(10):
        shared.done(shared.take(), again_after_s=0.0)
    shared.add(("quiet", 0))
    assert [shared.take()[0] for _ in range(3)].count("quiet") == 1


def test_shares_get_turns_and_keys_of_a_share_wait_their_time(shared, clock):
    for number in range(3):
        shared.add(("a", number))
    clock.now += 1.0
    for key in (("b", 0), ("b", 1), ("c", 0)):
        shared.add(key)
    assert drain(shared) == [("a", 0), ("b", 0), ("c", 0), ("a", 1), ("b", 1), ("a", 2)]


def test_who_was_alone_owes_no_turns_to_who_comes_later(shared):
    for number in range(6):
        shared.add(("a", number))
        assert shared.take() == ("a", number)
    for number in range(6, 9):
        shared.add(("a", number))
        shared.add(("b", number))
    assert [share for share, _ in drain(shared)] == ["a", "b", "a", "b", "a", "b"]


def test_a_head_start_goes_before_other_shares_with_the_same_turn(shared):
    """At a cold start each namespace has a turn, and a change by a user is the first of them."""
    for number in range(100):
        shared.add((f"n{number}", 0))
    shared.add_first(("n77", 0))
    assert shared.take() == ("n77", 0)


@pytest.mark.parametrize("hogs", [0, 3])
def test_memory_is_bounded_by_shares_that_have_keys(shared, hogs):
    """Namespaces come and go, beside one that always has keys."""
    for number in range(10_000):
        shared.add((f"n{number}", 0))
        for hog in range(hogs):
            shared.add(("hog", hog))
        for _ in range(1 + bool(hogs)):
            shared.done(shared.take())
    assert len(shared._ready._turns) < 200 and len(shared._ready._order) < 200


def test_memory_is_bounded_by_keys_that_are_due_not_by_head_starts(shared):
    for number in range(100):
        shared.add(("hog", number))
    shared.add(("quiet", 0))
    for _ in range(1000):
        for share in ("hog", "quiet"):
            shared.add_first((share, 0))
            shared.done(shared.take(), again_after_s=0.0)
    assert max(map(len, shared._ready._keys.values())) < 300 and len(shared._ready._order) < 300


def test_depth_and_ages(queue, clock):
    queue.add("a")
    queue.add("b")
    queue.add_after("later", 60.0)
    clock.now += 3.0
    assert (queue.depth(), queue.oldest_wait_s()) == (2, pytest.approx(3.0))
    queue.take()
    clock.now += 2.0
    assert (queue.depth(), queue.longest_run_s()) == (1, pytest.approx(2.0))


def test_an_empty_queue_has_no_ages(queue):
    assert (queue.depth(), queue.oldest_wait_s(), queue.longest_run_s()) == (0, 0.0, 0.0)


steps = st.lists(
    st.tuples(st.sampled_from(["add", "first", "after", "take", "done", "failed", "tick"]), st.integers(0, 4))
)


@given(steps)
def test_no_key_is_lost_nor_handled_twice_at_once(sequence):
    """In any order of calls: a key that was added is handled after it was added."""
    clock = Clock()
    queue = WorkQueue(clock, jitter=lambda: 0.5, share_of=lambda key: key % 2)
    running, owed = [], set()
    for action, key in sequence:
        if action == "add":
            queue.add(key)
            owed.add(key)
        elif action == "first":
            queue.add_first(key)
            owed.add(key)
        elif action == "after":
            queue.add_after(key, 3.0)
            owed.add(key)
        elif action == "take" and (taken := queue.take()) is not None:
            assert taken not in running
            running.append(taken)
            owed.discard(taken)
        elif action in ("done", "failed") and running:
            ended = running.pop(0)
            getattr(queue, action)(ended)
        elif action == "tick":
            clock.now += 1.0
    clock.now += 1000.0
    for key in running:
        queue.done(key)
    assert owed <= set(drain(queue))


async def test_workers_handle_keys_at_the_same_time_but_never_one_twice():
    loop = asyncio.get_running_loop()
    queue = WorkQueue(loop.time)
    gate, both, running, order = asyncio.Event(), asyncio.Event(), set(), []

    async def handle(key, failures):
        assert key not in running
        running.add(key)
        if len(running) == 2:
            both.set()
        await gate.wait()
        running.discard(key)
        order.append(key)
        if len(order) == 3:
            queue.close()
        return None

    workers = [asyncio.create_task(work(queue, handle, lambda key, error: None)) for _ in range(4)]
    for key in ("a", "b", "a"):
        queue.add(key)
    await asyncio.wait_for(both.wait(), 5)
    queue.add("a")
    gate.set()
    await asyncio.wait_for(asyncio.gather(*workers), 5)
    assert sorted(order) == ["a", "a", "b"]


async def test_a_worker_survives_exceptions_and_passes_the_failures_on():
    queue = WorkQueue(asyncio.get_running_loop().time, jitter=lambda: 0.0)
    seen, errors = [], []

    async def handle(key, failures):
        seen.append(failures)
        if failures < 2:
            raise ValueError(failures)
        queue.close()

    queue.add("a")
    await asyncio.wait_for(work(queue, handle, lambda key, error: errors.append((key, str(error)))), 5)
    assert seen == [0, 1, 2]
    assert errors == [("a", "0"), ("a", "1")]


async def test_a_key_whose_worker_was_cancelled_from_within_is_handled_again():
    queue = WorkQueue(asyncio.get_running_loop().time, jitter=lambda: 0.0)
    seen = []

    async def handle(key, failures):
        seen.append(failures)
        if not failures:
            raise asyncio.CancelledError
        queue.close()

    tasks = Supervisor(lambda task: None)
    queue.add("a")
    worker = tasks.start("worker", lambda: work(queue, handle, lambda key, error: None), ends=True)
    await asyncio.wait_for(worker, 5)
    assert seen == [0, 1]


async def test_an_idle_worker_wakes_for_a_new_key_and_for_the_end():
    queue = WorkQueue(asyncio.get_running_loop().time)
    handled = asyncio.Event()

    async def handle(key, failures):
        handled.set()
        return 3600.0

    worker = asyncio.create_task(work(queue, handle, lambda key, error: None))
    await asyncio.sleep(0)
    queue.add("a")
    await asyncio.wait_for(handled.wait(), 5)
    queue.close()
    await asyncio.wait_for(worker, 5)


async def test_a_paused_queue_keeps_what_comes_and_gives_it_out_when_it_goes_on(queue):
    queue.pause()
    queue.add("a")
    waits = asyncio.create_task(queue.wait())
    await asyncio.sleep(0)
    assert (queue.take(), waits.done(), queue.depth()) == (None, False, 1)
    queue.resume()
    await waits
    assert queue.take() == "a"
