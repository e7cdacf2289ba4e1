"""Two operators, and one of them ends, dies or is cut off: how soon the other one writes, and that it alone does."""

import asyncio
import contextlib
import random
import signal
import time

import pytest

from slipway_operator.settings import parse
from testkit.until import until_async
from tests.crash.history import Seat, history, play, seated
from tests.crash.scenarios import SCENARIOS
from tests.support.settings import parsed

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

LEASE_S = parsed(parse).settings.lease_s
RELEASED_S, DIED_S = 2.0, LEASE_S + 2.0
SEED = 20261130
KILLS, KILLS_EXTENDED = 4, 50
BETWEEN_S = (0.05, 1.5)  # two kills


@contextlib.asynccontextmanager
async def two_seats(world, *arguments):
    async with history(world) as chat:
        seats = [Seat(world, chat.namespace, f"{chat.namespace}-{letter}", *arguments) for letter in "ab"]
        async with seated(seats[0]), seated(seats[1]):
            yield chat, *seats


async def serving(chat, *seats):
    """(the story, the seat that holds the lease, the other): the first revision serves, and both are ready."""
    story = asyncio.create_task(SCENARIOS["rollout"](chat))
    await chat.sees("the first revision serves", lambda now: now.get("phase") == "Healthy")
    for seat in seats:
        await until_async(lambda seat=seat: is_ready(seat), "both are ready")
    [holder] = [seat for seat in seats if seat.writes()]
    [other] = [seat for seat in seats if seat is not holder]
    assert f"operator {holder.name} holds the lease" in (await other.readiness())[1]
    return story, holder, other


async def is_ready(seat):
    return (await seat.readiness())[0] == 200


async def first_write(seat):
    """Of a ModelDeployment's objects: when its answer came."""

    async def done():
        return of_objects(seat)

    return (await until_async(done, f"{seat.name} writes"))[0].answered_s


def of_objects(seat):
    return [done for done in seat.tap.done if "leases" not in done.kind and done.status < 300]


async def test_after_sigterm_the_other_writes_within_two_seconds(world):
    expected, _ = await play(world, "rollout")
    async with two_seats(world) as (chat, *seats):
        story, holder, other = await serving(chat, *seats)
        holder.starts = False
        started = time.monotonic()
        holder.operator.send(signal.SIGTERM)
        gap = await first_write(other) - started
        await story
        await chat.ends_like(expected)
        alone(*seats, switches=1)
        print(f"SIGTERM: the next write after {gap:.2f} s")
        assert gap <= RELEASED_S
        assert holder.exits == [0]


async def test_after_a_kill_the_other_writes_when_the_lease_has_expired(world):
    expected, _ = await play(world, "rollout")
    async with two_seats(world) as (chat, *seats):
        story, holder, other = await serving(chat, *seats)
        started = time.monotonic()
        await holder.leave()
        gap = await first_write(other) - started
        await story
        await chat.ends_like(expected)
        alone(*seats, switches=1)
        print(f"SIGKILL: the next write after {gap:.2f} s")
        assert gap <= DIED_S


async def test_an_operator_that_is_cut_off_writes_nothing_from_then_on(world):
    expected, _ = await play(world, "rollout")
    async with two_seats(world) as (chat, *seats):
        story, holder, other = await serving(chat, *seats)
        started = time.monotonic()
        holder.tap.cut()
        gap = await first_write(other) - started
        before = len(holder.tap.done)
        holder.tap.is_cut = False
        await until_async(lambda: waits(holder, other), "it sees that the other holds the lease")
        await story
        await chat.ends_like(expected)
        print(f"cut off: the next write after {gap:.2f} s")
        assert gap <= DIED_S
        assert len(holder.tap.done) == before
        alone(*seats, switches=1)


async def waits(seat, holder):
    code, text = await seat.readiness()
    return code == 200 and f"operator {holder.name} holds the lease" in text


@pytest.mark.parametrize("scenario", ["rollout"])
async def test_killed_at_random_moments_the_end_is_the_same(world, scenario):
    await survives(world, scenario, KILLS, random.Random(SEED))


@pytest.mark.extended  # a minute and a half for each
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_killed_fifty_times_the_end_is_the_same(world, scenario):
    await survives(world, scenario, -(-KILLS_EXTENDED // len(SCENARIOS)), random.Random(f"{SEED}{scenario}"))


async def survives(world, scenario, kills, chance):
    """Kill whichever holds the lease, at random moments; a kubelet starts it again, maybe after the other took over."""
    expected, _ = await play(world, scenario)
    async with two_seats(world, "--lease-seconds=3") as (chat, *seats):
        story = asyncio.create_task(SCENARIOS[scenario](chat))
        switches = 0
        for number in range(kills):
            holder = await until_async(lambda: held(seats), "one of them holds the lease")
            await asyncio.sleep(chance.uniform(*BETWEEN_S))
            number_of = signal.SIGTERM if number % 2 else signal.SIGKILL
            if holder.operator:
                holder.operator.send(number_of)
                await holder.operator.ended.wait()
            switches += 1
        await story
        await chat.ends_like(expected)
        changes = alone(*seats, switches=switches + 1)
        print(f"{scenario}: {kills} kills, the writer changed {changes} times")


async def held(seats):
    for seat in seats:
        code, text = await seat.readiness()
        if code == 200 and "holds the lease" not in text:
            return seat
    return None


def alone(*seats, switches):
    """No two operators wrote at once, or in turns: the writer changed `switches` times at most. Returns how often."""
    done = sorted(((one, seat.name) for seat in seats for one in of_objects(seat)), key=lambda pair: pair[0].sent_s)
    last_of = {seat.name: 0.0 for seat in seats}
    changes = 0
    for (one, name), (_, before) in zip(done[1:], done, strict=False):
        last_of[before] = max(
            [last_of[before], *(d.answered_s for d, n in done if n == before and d.sent_s <= one.sent_s)]
        )
        if name != before:
            changes += 1
            assert one.sent_s >= last_of[before], f"{name} writes {one} before {before} is done"
    assert changes <= switches
    return changes
