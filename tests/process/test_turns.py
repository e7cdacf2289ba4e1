"""Turns of tenants at few slots."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from slipway_process.serving.turns import FairQueue, QueueRules

TENANTS = st.sampled_from(["", "a", "b", "c"])
RULES = st.builds(QueueRules, slots=st.integers(1, 3), share=st.integers(1, 3), places=st.integers(1, 5))


def filled(rules: QueueRules, *tenants: str) -> FairQueue[str]:
    queue: FairQueue[str] = FairQueue(rules)
    for at, tenant in enumerate(tenants):
        assert queue.push(tenant, f"{tenant}{at}") is None
    return queue


def test_tenants_take_turns() -> None:
    queue = filled(QueueRules(9, 9, 9), "a", "a", "a", "b", "c", "b")
    assert [queue.pop() for _ in range(7)] == ["a0", "b3", "c4", "a1", "b5", "a2", None]


def test_a_tenant_has_its_share_of_the_slots_though_others_are_free() -> None:
    queue = filled(QueueRules(3, 2, 9), "a", "a", "a", "b")
    assert [queue.pop() for _ in range(4)] == ["a0", "b3", "a1", None]
    queue.release("b")
    assert queue.pop() is None, "a has two of three"
    queue.release("a")
    assert queue.pop() == "a2"


def test_the_newest_item_of_the_tenant_with_most_gives_way() -> None:
    queue = filled(QueueRules(1, 1, 3), "a", "a", "a")
    assert queue.push("b", "b") == "a2" and queue.push("a", "more") == "more"
    assert queue.push("b", "b again") == "b again", "none has more than two"
    assert [len(queue), queue.pop()] == [3, "a0"]


@given(RULES, st.lists(st.tuples(st.sampled_from(["push", "pop", "release", "remove"]), TENANTS), max_size=60))
def test_over_any_history_nothing_is_lost_and_no_bound_is_passed(
    rules: QueueRules, history: list[tuple[str, str]]
) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue(rules)
    waiting: list[tuple[str, int]] = []
    running: Counter[str] = Counter()
    for number, (what, tenant) in enumerate(history):
        own = [item for item in waiting if item[0] == tenant]
        if what == "push":
            waiting.append((tenant, number))
            if (refused := queue.push(tenant, waiting[-1])) is not None:
                counts = Counter(name for name, _ in waiting)
                assert counts[refused[0]] == max(counts.values())
                assert refused == [item for item in waiting if item[0] == refused[0]][-1]
                waiting.remove(refused)
        elif what == "pop":
            item = queue.pop()
            may = {name for name, _ in waiting if running[name] < rules.share}
            assert (item is not None) == bool(may and running.total() < rules.slots)
            if item is not None:
                assert item == next(other for other in waiting if other[0] == item[0])
                waiting.remove(item)
                running[item[0]] += 1
        elif what == "release" and running[tenant]:
            queue.release(tenant)
            running[tenant] -= 1
        elif what == "remove" and own:
            queue.remove(tenant, own[-1])
            waiting.remove(own[-1])
        assert len(queue) == len(waiting) <= rules.places
        assert queue.running == running.total() <= rules.slots
        assert max(running.values(), default=0) <= rules.share
