"""Replay buffers: what they keep of a stream without a client, for how long, within which limits, for which clients."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any
from zlib import crc32

import pytest

from slipway_process.serving.errors import HttpError, failed, lost
from slipway_server.engine.request import FinishReason
from slipway_server.http.responses.delta import Delta
from slipway_server.http.responses.replay import BUFFER_BYTES, DELTA_BYTES, ReplayLimits, ReplayStore
from slipway_server.http.responses.resume import Identity, IncomingRequest, Resume
from slipway_server.metrics import REPLAY_ENDS, ServerMetrics

TOKENS = tuple(range(100, 112))
REQUEST = IncomingRequest(b"{}", resumable=True, path="/v1/completions")


class Timer:
    def __init__(self, timers: "list[Timer]", ring: Callable[[], None]) -> None:
        self._timers, self.ring = timers, ring
        timers.append(self)

    def cancel(self) -> None:
        if self in self._timers:
            self._timers.remove(self)


class Engine:
    """Generates TOKENS, each one when the test allows it, and records what it computed."""

    def __init__(self) -> None:
        self.computed: list[int] = []
        self.begun: list[tuple[int, ...]] = []
        self.running = 0
        self.failure: Exception | None = None
        self._allowed = asyncio.Semaphore(0)

    def allow(self, tokens: int) -> None:
        for _ in range(tokens):
            self._allowed.release()

    async def source(self, resumed: tuple[int, ...]) -> AsyncGenerator[Delta, None]:
        assert resumed == TOKENS[: len(resumed)]
        self.begun.append(resumed)
        self.running += 1
        try:
            for count, token in enumerate(TOKENS, 1):
                if count > len(resumed):
                    await self._allowed.acquire()
                    if self.failure:
                        raise self.failure
                    self.computed.append(token)
                yield Delta(f"<{token}>", count, token, FinishReason.LENGTH if count == len(TOKENS) else None)
        finally:
            self.running -= 1


class World:
    def __init__(self, **limits: Any) -> None:
        self.engine, self.metrics = Engine(), ServerMetrics("m")
        self.timers: list[Timer] = []
        later: Any = lambda _, ring: Timer(self.timers, ring)  # noqa: E731
        self.replays = ReplayStore(ReplayLimits(**limits), self.metrics, later)

    def connect(self, request: IncomingRequest = REQUEST, identity: Identity | None = None) -> "Connection":
        return Connection(self, request, identity)

    def value(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    @property
    def num_detached(self) -> float:
        return self.value("slipway_replay_streams")

    def ends(self) -> dict[str, float]:
        counts = {end: self.value("slipway_replay_kept_total", end=end) for end in REPLAY_ENDS}
        return {end: count for end, count in counts.items() if count}

    def resumes(self, source: str) -> float:
        return self.value("slipway_replay_resumes_total", source=source)


class Connection:
    """A client's connection."""

    def __init__(self, world: World, request: IncomingRequest, identity: Identity | None) -> None:
        self.request, self.world = request, world
        self.identity = request.resume.identity if request.resume else identity or Identity(1)
        self.progress = request.track_progress(self.identity, streamed=True)
        self.received: list[int] = []
        self._deltas = world.replays.answer(
            request, self.identity, world.engine.source, progress=self.progress, known=request.resumed_tokens
        )

    async def take(self, tokens: int) -> list[int]:
        """The next tokens that are new to the client."""
        fresh: list[int] = []
        while len(fresh) < tokens:
            delta = await anext(self._deltas)
            self.received.append(delta.token)
            assert self.progress
            self.progress.add_token(delta.token)
            if self.progress.is_new:
                fresh.append(delta.token)
        return fresh

    async def rest(self) -> list[int]:
        fresh: list[int] = []
        assert self.progress
        async with aclosing(self._deltas) as deltas:
            async for delta in deltas:
                self.progress.add_token(delta.token)
                if self.progress.is_new:
                    fresh.append(delta.token)
        self.progress.finish()
        return fresh

    async def leave(self) -> None:
        await self._deltas.aclose()
        await settled()

    def resume(self, position: int, tokens: int = 0, **changes: Any) -> IncomingRequest:
        """The same request of a client that has `position` tokens; the gateway sends the tokens that it knows."""
        check = 0
        for token in TOKENS[:position]:
            check = crc32(token.to_bytes(4, "little"), check)
        resume = Resume(self.identity, position, check, TOKENS[:tokens])
        return replace(self.request, resume=resume, **changes)


async def settled() -> None:
    """Lets cancelled tasks end."""
    for _ in range(5):
        await asyncio.sleep(0)


async def detached_after(world: World, tokens: int, request: IncomingRequest = REQUEST, **more: Any) -> Connection:
    one = world.connect(request, **more)
    world.engine.allow(tokens)
    await one.take(tokens)
    await one.leave()
    return one


@pytest.mark.parametrize("position", range(1, 7))
async def test_a_resumed_stream_continues_from_the_buffer(position: int) -> None:
    world = World()
    one = await detached_after(world, 6)
    assert (world.engine.running, world.num_detached) == (0, 1), "its slot is free, and its tokens are kept"
    world.engine.allow(100)
    assert await world.connect(one.resume(position)).rest() == list(TOKENS[position:])
    assert world.engine.begun == [(), TOKENS[:6]], "known tokens are prefilled"
    assert world.engine.computed == list(TOKENS), "no token is computed twice"
    assert (world.resumes("stopped"), world.value("slipway_replay_tokens_total")) == (1, 6 - position)
    assert (world.num_detached, world.ends(), world.timers) == (0, {"taken_up": 1}, [])
    assert world.value("slipway_replay_bytes") == 0


async def test_a_stream_whose_client_returns_keeps_running_without_it() -> None:
    world, returns = World(), replace(REQUEST, returns=True)
    one = await detached_after(world, 3, returns)
    assert (world.engine.running, world.num_detached) == (1, 1)
    world.engine.allow(4)
    await settled()
    again = world.connect(one.resume(2))
    assert await again.take(5) == list(TOKENS[2:7]), "at once, and then as they come"
    world.engine.allow(5)
    assert await again.rest() == list(TOKENS[7:])
    assert (world.engine.begun, world.engine.computed) == ([()], list(TOKENS))
    assert (world.resumes("running"), world.ends()) == (1, {"taken_up": 1})


async def test_a_stream_that_finished_without_its_client_is_replayed_whole() -> None:
    world, returns = World(), replace(REQUEST, returns=True)
    one = await detached_after(world, 3, returns)
    world.engine.allow(9)
    await settled()
    assert world.engine.running == 0
    assert await world.connect(one.resume(2)).rest() == list(TOKENS[2:])
    assert (world.resumes("ended"), world.engine.computed) == (1, list(TOKENS))
    # Its last events may be lost, too.
    assert await world.connect(one.resume(11)).rest() == [TOKENS[11]]


async def test_a_complete_stream_is_not_kept_when_its_client_does_not_return() -> None:
    world = World()
    world.engine.allow(12)
    assert await world.connect().rest() == list(TOKENS)
    assert (world.num_detached, world.timers, world.value("slipway_replay_bytes")) == (0, [], 0)


async def test_a_stream_is_computed_again_after_its_buffer_expired() -> None:
    world, returns = World(), replace(REQUEST, returns=True)
    one = await detached_after(world, 3, returns)
    (timer,) = world.timers
    timer.ring()
    await settled()
    assert (world.engine.running, world.num_detached, world.ends()) == (0, 0, {"expired": 1})
    world.engine.allow(100)
    assert await world.connect(one.resume(3)).rest() == list(TOKENS[3:])
    assert world.engine.begun == [(), ()] and world.resumes("repeated") == 1


async def test_tokens_in_the_request_are_prefilled() -> None:
    world = World()
    world.engine.allow(100)
    assert await world.connect(world.connect().resume(4, tokens=6)).rest() == list(TOKENS[4:])
    assert world.engine.begun == [TOKENS[:6]] and world.engine.computed == list(TOKENS[6:])
    assert world.resumes("told") == 1


async def test_the_oldest_buffer_is_evicted_when_there_are_too_many_streams() -> None:
    world = World(streams=2)
    ones = [await detached_after(world, 2, identity=Identity(seed)) for seed in (1, 2, 3)]
    assert (world.num_detached, world.ends(), len(world.timers)) == (2, {"evicted": 1}, 2)
    world.engine.allow(100)
    for one in ones:
        assert await world.connect(one.resume(2)).rest() == list(TOKENS[2:])
    assert (world.resumes("repeated"), world.resumes("stopped")) == (1, 2)


async def test_the_oldest_buffer_is_evicted_when_there_are_too_many_bytes() -> None:
    each = BUFFER_BYTES + 2 * (DELTA_BYTES + 4 * len("<100>"))
    world = World(size_bytes=2 * each + BUFFER_BYTES)
    ones = [await detached_after(world, 2, identity=Identity(seed)) for seed in (1, 2)]
    assert world.value("slipway_replay_bytes") == 2 * each
    await detached_after(world, 1, identity=Identity(3))
    assert (world.num_detached, world.ends()) == (2, {"evicted": 1})
    assert world.value("slipway_replay_bytes") == each + BUFFER_BYTES + (each - BUFFER_BYTES) / 2
    world.engine.allow(100)
    await world.connect(ones[1].resume(2)).rest()
    assert world.resumes("stopped") == 1, "the newer buffer is still there"


@pytest.mark.attack_class(8)
@pytest.mark.parametrize("limits", [{"streams": 4}, {"size_bytes": 5 * (BUFFER_BYTES + 2 * DELTA_BYTES)}])
async def test_streams_of_one_tenant_evict_none_of_another(limits: dict[str, int]) -> None:
    world = World(**limits)
    one = await detached_after(world, 2, replace(REQUEST, tenant="b"), identity=Identity(1))
    for seed in range(2, 12):
        await detached_after(world, 2, replace(REQUEST, tenant="a"), identity=Identity(seed))
    assert world.ends()["evicted"] > 5
    world.engine.allow(100)
    assert await world.connect(one.resume(2)).rest() == list(TOKENS[2:])
    assert world.resumes("stopped") == 1


async def test_a_stream_that_exceeds_the_byte_limit_alone_is_sent_and_not_kept() -> None:
    world = World(size_bytes=BUFFER_BYTES + 3 * DELTA_BYTES)
    one = world.connect(replace(REQUEST, returns=True))
    world.engine.allow(6)
    assert await one.take(6) == list(TOKENS[:6])
    assert world.value("slipway_replay_bytes") == 0
    await one.leave()
    assert (world.engine.running, world.num_detached, world.ends()) == (0, 0, {})


@pytest.mark.parametrize(
    "changes", [{"body": b'{"prompt": "another"}'}, {"path": "/v1/chat/completions"}, {"tenant": "0" * 32}]
)
async def test_a_different_request_does_not_get_the_buffer(changes: dict[str, Any]) -> None:
    world = World()
    one = await detached_after(world, 6)
    world.engine.allow(100)
    other = world.connect(one.resume(3, **changes))
    await other.rest()
    assert world.engine.begun == [(), ()] and world.num_detached == 1
    await world.connect(one.resume(6)).rest()
    assert world.engine.begun[2] == TOKENS[:6], "the original request still gets it"


async def test_a_resume_ends_the_older_connection_of_the_stream() -> None:
    """A connection may break unnoticed: the server learns of it when the client resumes."""
    world = World()
    one = world.connect()
    world.engine.allow(3)
    await one.take(3)
    waiting = asyncio.create_task(one.take(1))
    await settled()
    again = world.connect(one.resume(2))
    assert await again.take(1) == [TOKENS[2]]
    with pytest.raises(HttpError) as error:
        await waiting
    assert (error.value.status, error.value.code, error.value.outcome) == (409, "taken_over", "cancelled")
    world.engine.allow(9)
    assert await again.rest() == list(TOKENS[3:])
    assert (world.engine.begun, world.ends()) == ([()], {})


async def test_a_buffer_is_discarded_when_another_server_sent_more() -> None:
    world, returns = World(), replace(REQUEST, returns=True)
    one = await detached_after(world, 3, returns)
    world.engine.allow(2)
    again = world.connect(one.resume(8, tokens=8))
    assert await again.take(1) == [TOKENS[8]]
    assert world.engine.begun == [(), TOKENS[:8]]
    await settled()
    assert (world.engine.running, world.ends(), world.resumes("told")) == (1, {"stale": 1}, 1)


async def test_a_stream_resumes_after_an_engine_failure_with_one_prefill() -> None:
    world, returns = World(), replace(REQUEST, returns=True)
    one = await detached_after(world, 3, returns)
    world.engine.failure = lost("gone")
    world.engine.allow(1)
    await settled()
    assert (world.engine.running, world.num_detached) == (0, 1)
    world.engine.failure = None
    world.engine.allow(100)
    assert await world.connect(one.resume(1)).rest() == list(TOKENS[1:])
    assert world.engine.begun == [(), TOKENS[:3]] and world.engine.computed == list(TOKENS)


async def test_a_permanent_failure_reaches_the_client_and_the_buffer_is_not_kept() -> None:
    world = World()
    one = world.connect(replace(REQUEST, returns=True))
    world.engine.allow(2)
    await one.take(2)
    world.engine.failure = failed("no")
    world.engine.allow(1)
    with pytest.raises(HttpError, match="no"):
        await one.take(1)
    assert (world.num_detached, world.value("slipway_replay_bytes")) == (0, 0)


async def test_a_refused_resume_frees_slot_and_buffer() -> None:
    world = World()
    request = world.connect().resume(3, returns=True)
    assert request.resume
    wrong = world.connect(replace(request, resume=replace(request.resume, check=1)))
    world.engine.allow(100)
    with pytest.raises(HttpError) as refused:
        await wrong.rest()
    assert refused.value.code == "stream_gone"
    await settled()
    assert (world.engine.running, world.num_detached) == (0, 0)


@pytest.mark.parametrize("closed", [True, False], ids=["drained", "disabled"])
async def test_no_buffer_is_kept_during_drain_or_with_replay_disabled(closed: bool) -> None:
    world = World(window_s=60.0 if closed else 0.0)
    returns = replace(REQUEST, returns=True)
    if closed:
        await detached_after(world, 3, returns)
        world.replays.close()
        await settled()
        assert world.ends() == {"drained": 1}
    await detached_after(world, 3, replace(returns))
    assert (world.engine.running, world.num_detached, world.value("slipway_replay_bytes")) == (0, 0, 0)


async def test_a_stream_that_cannot_be_resumed_is_not_buffered() -> None:
    world = World()
    world.engine.allow(3)
    answer = world.replays.answer(IncomingRequest(b"{}"), Identity(1), world.engine.source, progress=None, known=())
    async with aclosing(answer) as deltas:
        assert [(await anext(deltas)).token for _ in range(3)] == list(TOKENS[:3])
    assert (world.engine.running, world.value("slipway_replay_bytes")) == (0, 0)
