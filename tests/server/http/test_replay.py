"""Streams that lost their clients: what stays known of them, for how long, within what, and who may have it."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any
from zlib import crc32

import pytest

from slipway_server.engine.request import FinishReason
from slipway_server.http.errors import ApiError, failed, lost
from slipway_server.http.replay import DELTA_BYTES, TAPE_BYTES, Bounds, Replays
from slipway_server.http.resume import Asked, Identity, Resume
from slipway_server.http.service import Delta
from slipway_server.telemetry.metrics import REPLAY_ENDS, Metrics

TOKENS = tuple(range(100, 112))
ASKED = Asked(b"{}", resumable=True, path="/v1/completions")


class Timer:
    def __init__(self, timers: "list[Timer]", ring: Callable[[], None]) -> None:
        self._timers, self.ring = timers, ring
        timers.append(self)

    def cancel(self) -> None:
        if self in self._timers:
            self._timers.remove(self)


class Engine:
    """Says TOKENS, each when it is asked to, and remembers what it computed."""

    def __init__(self) -> None:
        self.computed: list[int] = []
        self.begun: list[tuple[int, ...]] = []
        self.running = 0
        self.failure: Exception | None = None
        self._may = asyncio.Semaphore(0)

    def let(self, tokens: int) -> None:
        for _ in range(tokens):
            self._may.release()

    async def source(self, resumed: tuple[int, ...]) -> AsyncGenerator[Delta, None]:
        assert resumed == TOKENS[: len(resumed)]
        self.begun.append(resumed)
        self.running += 1
        try:
            for count, token in enumerate(TOKENS, 1):
                if count > len(resumed):
                    await self._may.acquire()
                    if self.failure:
                        raise self.failure
                    self.computed.append(token)
                yield Delta(f"<{token}>", count, token, FinishReason.LENGTH if count == len(TOKENS) else None)
        finally:
            self.running -= 1


class World:
    def __init__(self, **bounds: Any) -> None:
        self.engine, self.metrics = Engine(), Metrics("m")
        self.timers: list[Timer] = []
        later: Any = lambda _, ring: Timer(self.timers, ring)  # noqa: E731
        self.replays = Replays(Bounds(**bounds), self.metrics, later)

    def asks(self, ask: Asked = ASKED, identity: Identity | None = None) -> "Connection":
        return Connection(self, ask, identity)

    def value(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    @property
    def held(self) -> float:
        return self.value("slipway_replay_streams")

    def ends(self) -> dict[str, float]:
        counts = {end: self.value("slipway_replay_kept_total", end=end) for end in REPLAY_ENDS}
        return {end: count for end, count in counts.items() if count}

    def came_back(self, source: str) -> float:
        return self.value("slipway_replay_resumes_total", source=source)


class Connection:
    """One client on its way through a stream."""

    def __init__(self, world: World, ask: Asked, identity: Identity | None) -> None:
        self.ask, self.world = ask, world
        self.identity = ask.resume.identity if ask.resume else identity or Identity(1)
        self.progress = ask.progress(self.identity, streamed=True)
        self.told: list[int] = []
        self._deltas = world.replays.answer(
            ask, self.identity, world.engine.source, progress=self.progress, known=ask.resumed
        )

    async def take(self, tokens: int) -> list[int]:
        """So many new ones."""
        fresh: list[int] = []
        while len(fresh) < tokens:
            delta = await anext(self._deltas)
            self.told.append(delta.token)
            assert self.progress
            self.progress.saw(delta.token)
            if self.progress.fresh:
                fresh.append(delta.token)
        return fresh

    async def rest(self) -> list[int]:
        fresh: list[int] = []
        assert self.progress
        async with aclosing(self._deltas) as deltas:
            async for delta in deltas:
                self.progress.saw(delta.token)
                if self.progress.fresh:
                    fresh.append(delta.token)
        self.progress.finish()
        return fresh

    async def leave(self) -> None:
        await self._deltas.aclose()
        await settled()

    def back(self, position: int, tokens: int = 0, **changes: Any) -> Asked:
        """The same request by one that has so many tokens; the gateway brings along what it knows."""
        check = 0
        for token in TOKENS[:position]:
            check = crc32(token.to_bytes(4, "little"), check)
        resume = Resume(self.identity, position, check, TOKENS[:tokens])
        return replace(self.ask, resume=resume, **changes)


async def settled() -> None:
    """What is cancelled has ended: no clock is needed for that."""
    for _ in range(5):
        await asyncio.sleep(0)


async def left_after(world: World, tokens: int, ask: Asked = ASKED, **more: Any) -> Connection:
    one = world.asks(ask, **more)
    world.engine.let(tokens)
    await one.take(tokens)
    await one.leave()
    return one


@pytest.mark.parametrize("position", range(1, 7))
async def test_a_lost_stream_goes_on_from_what_is_known(position: int) -> None:
    world = World()
    one = await left_after(world, 6)
    assert (world.engine.running, world.held) == (0, 1), "its slot is free, and its tokens are there"
    world.engine.let(100)
    assert await world.asks(one.back(position)).rest() == list(TOKENS[position:])
    assert world.engine.begun == [(), TOKENS[:6]], "what was known is prefilled"
    assert world.engine.computed == list(TOKENS), "no token twice"
    assert (world.came_back("stopped"), world.value("slipway_replay_tokens_total")) == (1, 6 - position)
    assert (world.held, world.ends(), world.timers) == (0, {"taken_up": 1}, [])
    assert world.value("slipway_replay_bytes") == 0


async def test_who_said_that_it_comes_back_finds_it_going_on() -> None:
    world, returns = World(), replace(ASKED, returns=True)
    one = await left_after(world, 3, returns)
    assert (world.engine.running, world.held) == (1, 1)
    world.engine.let(4)
    await settled()
    again = world.asks(one.back(2))
    assert await again.take(5) == list(TOKENS[2:7]), "at once, and then as they come"
    world.engine.let(5)
    assert await again.rest() == list(TOKENS[7:])
    assert (world.engine.begun, world.engine.computed) == ([()], list(TOKENS))
    assert (world.came_back("running"), world.ends()) == (1, {"taken_up": 1})


async def test_one_that_ended_meanwhile_comes_whole() -> None:
    world, returns = World(), replace(ASKED, returns=True)
    one = await left_after(world, 3, returns)
    world.engine.let(9)
    await settled()
    assert world.engine.running == 0
    assert await world.asks(one.back(2)).rest() == list(TOKENS[2:])
    assert (world.came_back("ended"), world.engine.computed) == (1, list(TOKENS))
    # Its last events may be lost as well.
    assert await world.asks(one.back(11)).rest() == [TOKENS[11]]


async def test_what_was_told_to_its_end_is_not_kept_for_who_does_not_come_back() -> None:
    world = World()
    world.engine.let(12)
    assert await world.asks().rest() == list(TOKENS)
    assert (world.held, world.timers, world.value("slipway_replay_bytes")) == (0, [], 0)


async def test_after_its_time_a_stream_is_computed_once_more() -> None:
    world, returns = World(), replace(ASKED, returns=True)
    one = await left_after(world, 3, returns)
    (timer,) = world.timers
    timer.ring()
    await settled()
    assert (world.engine.running, world.held, world.ends()) == (0, 0, {"expired": 1})
    world.engine.let(100)
    assert await world.asks(one.back(3)).rest() == list(TOKENS[3:])
    assert world.engine.begun == [(), ()] and world.came_back("repeated") == 1


async def test_tokens_that_the_request_brings_along_are_prefilled() -> None:
    world = World()
    world.engine.let(100)
    assert await world.asks(world.asks().back(4, tokens=6)).rest() == list(TOKENS[4:])
    assert world.engine.begun == [TOKENS[:6]] and world.engine.computed == list(TOKENS[6:])
    assert world.came_back("told") == 1


async def test_where_all_streams_are_too_many_the_oldest_goes() -> None:
    world = World(streams=2)
    ones = [await left_after(world, 2, identity=Identity(seed)) for seed in (1, 2, 3)]
    assert (world.held, world.ends(), len(world.timers)) == (2, {"evicted": 1}, 2)
    world.engine.let(100)
    for one in ones:
        assert await world.asks(one.back(2)).rest() == list(TOKENS[2:])
    assert (world.came_back("repeated"), world.came_back("stopped")) == (1, 2)


async def test_where_all_bytes_are_too_many_the_oldest_goes() -> None:
    each = TAPE_BYTES + 2 * (DELTA_BYTES + 4 * len("<100>"))
    world = World(size_bytes=2 * each + TAPE_BYTES)
    ones = [await left_after(world, 2, identity=Identity(seed)) for seed in (1, 2)]
    assert world.value("slipway_replay_bytes") == 2 * each
    await left_after(world, 1, identity=Identity(3))
    assert (world.held, world.ends()) == (2, {"evicted": 1})
    assert world.value("slipway_replay_bytes") == each + TAPE_BYTES + (each - TAPE_BYTES) / 2
    world.engine.let(100)
    await world.asks(ones[1].back(2)).rest()
    assert world.came_back("stopped") == 1, "the younger one is there"


async def test_one_that_is_too_large_alone_passes_through_and_is_forgotten() -> None:
    world = World(size_bytes=TAPE_BYTES + 3 * DELTA_BYTES)
    one = world.asks(replace(ASKED, returns=True))
    world.engine.let(6)
    assert await one.take(6) == list(TOKENS[:6])
    assert world.value("slipway_replay_bytes") == 0
    await one.leave()
    assert (world.engine.running, world.held, world.ends()) == (0, 0, {})


@pytest.mark.parametrize(
    "changes", [{"body": b'{"prompt": "another"}'}, {"path": "/v1/chat/completions"}, {"tenant": "0" * 32}]
)
async def test_nobody_is_told_what_another_request_asked_for(changes: dict[str, Any]) -> None:
    world = World()
    one = await left_after(world, 6)
    world.engine.let(100)
    other = world.asks(one.back(3, **changes))
    await other.rest()
    assert world.engine.begun == [(), ()] and world.held == 1
    await world.asks(one.back(6)).rest()
    assert world.engine.begun[2] == TOKENS[:6], "the one whose it is finds it there"


async def test_a_stream_that_is_taken_up_elsewhere_leaves_its_connection() -> None:
    """The network may lose a connection without a word: its server learns of it by the next one."""
    world = World()
    one = world.asks()
    world.engine.let(3)
    await one.take(3)
    waiting = asyncio.create_task(one.take(1))
    await settled()
    again = world.asks(one.back(2))
    assert await again.take(1) == [TOKENS[2]]
    with pytest.raises(ApiError) as told:
        await waiting
    assert (told.value.status, told.value.code, told.value.outcome) == (409, "taken_over", "cancelled")
    world.engine.let(9)
    assert await again.rest() == list(TOKENS[3:])
    assert (world.engine.begun, world.ends()) == ([()], {})


async def test_what_another_server_told_more_of_is_not_gone_on_with() -> None:
    world, returns = World(), replace(ASKED, returns=True)
    one = await left_after(world, 3, returns)
    world.engine.let(2)
    again = world.asks(one.back(8, tokens=8))
    assert await again.take(1) == [TOKENS[8]]
    assert world.engine.begun == [(), TOKENS[:8]]
    await settled()
    assert (world.engine.running, world.ends(), world.came_back("told")) == (1, {"stale": 1}, 1)


async def test_a_lost_engine_costs_one_prefill() -> None:
    world, returns = World(), replace(ASKED, returns=True)
    one = await left_after(world, 3, returns)
    world.engine.failure = lost("gone")
    world.engine.let(1)
    await settled()
    assert (world.engine.running, world.held) == (0, 1)
    world.engine.failure = None
    world.engine.let(100)
    assert await world.asks(one.back(1)).rest() == list(TOKENS[1:])
    assert world.engine.begun == [(), TOKENS[:3]] and world.engine.computed == list(TOKENS)


async def test_what_failed_for_good_is_told_and_not_kept() -> None:
    world = World()
    one = world.asks(replace(ASKED, returns=True))
    world.engine.let(2)
    await one.take(2)
    world.engine.failure = failed("no")
    world.engine.let(1)
    with pytest.raises(ApiError, match="no"):
        await one.take(1)
    assert (world.held, world.value("slipway_replay_bytes")) == (0, 0)


async def test_a_resume_that_is_refused_keeps_nothing_busy() -> None:
    world = World()
    ask = world.asks().back(3, returns=True)
    assert ask.resume
    wrong = world.asks(replace(ask, resume=replace(ask.resume, check=1)))
    world.engine.let(100)
    with pytest.raises(ApiError) as refused:
        await wrong.rest()
    assert refused.value.code == "stream_gone"
    await settled()
    assert (world.engine.running, world.held) == (0, 0)


@pytest.mark.parametrize("closed", [True, False], ids=["drained", "switched off"])
async def test_a_server_that_keeps_nothing_frees_all(closed: bool) -> None:
    world = World(window_s=60.0 if closed else 0.0)
    returns = replace(ASKED, returns=True)
    if closed:
        await left_after(world, 3, returns)
        world.replays.close()
        await settled()
        assert world.ends() == {"drained": 1}
    await left_after(world, 3, replace(returns))
    assert (world.engine.running, world.held, world.value("slipway_replay_bytes")) == (0, 0, 0)


async def test_streams_that_nobody_can_come_back_for_are_passed_on() -> None:
    world = World()
    world.engine.let(3)
    answer = world.replays.answer(Asked(b"{}"), Identity(1), world.engine.source, progress=None, known=())
    async with aclosing(answer) as deltas:
        assert [(await anext(deltas)).token for _ in range(3)] == list(TOKENS[:3])
    assert (world.engine.running, world.value("slipway_replay_bytes")) == (0, 0)
