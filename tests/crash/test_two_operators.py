"""Two operators at once, and one suspended past its lease: one writes, the other waits, and the end is the same."""

import asyncio
import contextlib
import signal

import pytest

from testkit.until import until_async
from tests.crash.calls import Point
from tests.crash.history import Seat, history, play, seated
from tests.crash.scenarios import SCENARIOS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

LEASE = "--lease-seconds=12"  # long enough that a busy machine does not lose it
# In the middle of the writes of a reconcile, and between two reconciles.
STOPS = (Point("APPLY replicasets", 2), Point("UPDATE modeldeployments/status", 6), Point("LIST pods", 4))
MORE_STOPS = (Point("APPLY controllerrevisions", 1), Point("PATCH replicasets", 1), Point("CREATE events", 7))


@contextlib.asynccontextmanager
async def two_seats(world):
    """A ModelDeployment to come, and two operators for it that are no processes of one pod."""
    async with history(world) as chat:
        seats = [Seat(world, chat.namespace, f"{chat.namespace}-{letter}", LEASE) for letter in "ab"]
        yield chat, *seats


async def test_second_operator_waits_and_takes_over_when_the_node_of_the_first_is_lost(world):
    expected, _ = await play(world, "rollout")
    async with two_seats(world) as (chat, *seats), seated(seats[0]), seated(seats[1]):
        story = asyncio.create_task(SCENARIOS["rollout"](chat))
        await chat.sees("the first revision serves", lambda now: now.get("phase") == "Healthy")
        [winner] = [seat for seat in seats if seat.writes()]
        [loser] = [seat for seat in seats if seat is not winner]
        await until_async(lambda: holds(winner), "the winner is ready")
        await until_async(lambda: waits(loser, winner), "the loser stands by, and shows the holder")

        await winner.leave()
        await story
        await chat.ends_like(expected)
        assert loser.writes()
        await until_async(lambda: holds(loser), "the other is ready now")
        assert loser.exits == []


@pytest.mark.parametrize("stops", [STOPS, pytest.param(MORE_STOPS, marks=pytest.mark.extended)], ids=["", "more"])
async def test_operator_that_was_suspended_past_its_lease_writes_nothing(world, stops):
    expected, _ = await play(world, "rollout")
    await asyncio.gather(*(sleeps(world, point, expected) for point in stops))


async def sleeps(world, point, expected):
    """The first operator stops at a call; the second goes on; the first wakes up in the middle of its work."""
    async with two_seats(world) as (chat, first, second), seated(first):

        def stop(kind):
            if first.tap.counts[kind] == point.occurrence and kind == point.kind and first.operator:
                first.operator.send(signal.SIGSTOP)

        first.tap.on_call = stop
        await until_async(lambda: holds(first), "the first holds the lease")
        async with seated(second):
            story = asyncio.create_task(SCENARIOS["rollout"](chat))
            await until_async(lambda: has_written(second), f"the second took over after {point}")
            written = first.writes()
            assert written
            assert first.operator
            first.operator.send(signal.SIGCONT)
            await until_async(lambda: waits(first, second), f"after {point} the first waits for the second")
            await story
            await chat.ends_like(expected)
            assert first.writes() == written, point
            assert first.exits == second.exits == []


async def holds(seat):
    code, text = await seat.readiness()
    return code == 200 and "holds the lease" not in text


async def has_written(seat):
    return bool(seat.writes())


async def waits(seat, holder):
    code, why = await seat.readiness()
    return code == 200 and f"operator {holder.name} holds the lease" in why
