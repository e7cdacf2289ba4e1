"""Turns of namespaces: shares, order, and calls that are cancelled at any moment."""

import asyncio
from contextlib import suppress
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_operator.turns import Turns


class Calls:
    """Calls that hold their turn until they are ended."""

    def __init__(self, turns: Turns) -> None:
        self.turns, self.running, self.began = turns, [], []
        self.tasks: dict[str, tuple[asyncio.Task[None], asyncio.Event]] = {}

    def begin(self, name: str) -> None:
        """Begin a call; the first letter of its name is its namespace."""
        end = asyncio.Event()
        self.tasks[name] = (asyncio.create_task(self._call(name, end)), end)

    async def _call(self, name: str, end: asyncio.Event) -> None:
        async with self.turns.turn(name[0]):
            self.running.append(name)
            self.began.append(name)
            try:
                await end.wait()
            finally:
                self.running.remove(name)

    async def settled(self) -> list[str]:
        for _ in range(5):
            await asyncio.sleep(0)
        return sorted(self.running)

    async def close(self) -> None:
        for task, _ in self.tasks.values():
            task.cancel()
        await asyncio.gather(*(task for task, _ in self.tasks.values()), return_exceptions=True)


async def test_who_takes_all_leaves_half_and_no_more_than_its_limit() -> None:
    for most, expected in ((None, 4), (3, 3)):
        calls = Calls(Turns(8, most))
        for number in range(9):
            calls.begin(f"a{number}")
        assert len(await calls.settled()) == expected
        calls.begin("b")
        assert "b" in await calls.settled()
        await calls.close()


async def test_a_free_turn_goes_to_the_namespaces_in_turns() -> None:
    calls = Calls(Turns(1))
    for name in ("a0", "a1", "a2", "a3", "b0", "b1", "c0"):
        calls.begin(name)
    await calls.settled()
    for _ in range(7):
        calls.tasks[calls.began[-1]][1].set()
        await calls.settled()
    assert calls.began == ["a0", "a1", "b0", "c0", "a2", "b1", "a3"]
    await calls.close()


async def test_a_call_that_waits_behind_a_cancelled_one_gets_its_turn() -> None:
    calls = Calls(Turns(2, 1))
    calls.begin("a0")
    calls.begin("a1")
    await calls.settled()
    calls.tasks["a1"][0].cancel()
    calls.tasks["a0"][1].set()
    calls.begin("a2")
    assert await calls.settled() == ["a2"]
    await calls.close()


async def test_a_turn_that_is_given_to_a_call_while_it_is_cancelled_is_not_lost() -> None:
    turns = Turns(1)
    calls = Calls(turns)
    for name in ("a0", "a1", "b0"):
        calls.begin(name)
    await calls.settled()
    calls.tasks["a0"][1].set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    calls.tasks["a1"][0].cancel()  # its turn was given, and it has not run since
    assert await calls.settled() == ["b0"]
    await calls.close()


@given(st.lists(st.tuples(st.sampled_from(["begin", "end", "cancel", "run"]), st.integers(0, 20)), max_size=60))
def test_no_turn_is_lost_or_given_twice(steps: list[tuple[str, int]]) -> None:
    async def history() -> None:
        turns = Turns(4, 2)
        calls = Calls(turns)
        for count, (action, number) in enumerate(steps):
            chosen = list(calls.tasks)[number % len(calls.tasks)] if calls.tasks else ""
            if action == "begin":
                calls.begin(f"{'abc'[number % 3]}{count}")
            elif action == "end" and chosen:
                calls.tasks[chosen][1].set()
            elif action == "cancel" and chosen:
                calls.tasks[chosen][0].cancel()
            else:
                await asyncio.sleep(0)
            assert len(calls.running) <= 4
        await calls.settled()
        waits = [name for name, (task, _) in calls.tasks.items() if not task.done() and name not in calls.running]
        for name in waits:  # whoever waits has no room in its share
            mine = sum(running[0] == name[0] for running in calls.running)
            assert mine >= min(2, ceil((4 - len(calls.running) + mine) / 2))
        for _, end in calls.tasks.values():
            end.set()
        with suppress(asyncio.CancelledError):
            await asyncio.wait_for(
                asyncio.gather(*(task for task, _ in calls.tasks.values()), return_exceptions=True), 5
            )
        assert all(task.done() for task, _ in calls.tasks.values())
        assert turns._places.free == 4 and not turns._waiting

    asyncio.run(history())


async def test_an_exception_ends_the_turn() -> None:
    turns = Turns(1)
    with pytest.raises(ValueError, match="broken"):
        async with turns.turn("a"):
            raise ValueError("broken")
    async with asyncio.timeout(20), turns.turn("b"):
        pass
