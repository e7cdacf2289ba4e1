"""The client of a real engine process: requests that cannot be sent, and requests in flight at a crash."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from dataclasses import replace

import psutil
import pytest

from slipway_process.model_folder import checkpoint
from slipway_process.serving.restarts import EngineCrashed, EngineError
from slipway_server.engine.client import (
    ENGINE_DIED,
    ENGINE_DIED_BEFORE,
    EngineClient,
    QueueFull,
    QueueLimits,
    RequestRefused,
)
from slipway_server.engine.messages import Ready, Start, Step
from slipway_server.engine.request import FinishReason, Request, RequestOutput, SamplingParams
from tests.conftest import MODELS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300), pytest.mark.attack_class(18)]

FOLDER = MODELS / "tiny-v1"
START = Start(
    model=str(FOLDER), task="generate", dtype="float32", quantization="none", device="cpu", context_tokens=512,
    slots=2, step_tokens=0, step_s=0, kv_tokens=1024,
)  # fmt: skip
QUEUE = QueueLimits(286, 10_000)
PLAIN = SamplingParams(4, temperature=0.0)
LONG = SamplingParams(480, temperature=0.0)


class Life:
    """One engine process, and the steps that its client received."""

    def __init__(self, queue: QueueLimits) -> None:
        self.steps: list[Step] = []
        self.crashes = 0
        self._moved = asyncio.Event()
        self.client = EngineClient(queue, START.slots, self._step)
        self.ready = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self.client.run(START, 1, self.ready.set_result, self._crashed))

    def _crashed(self) -> None:
        assert self.client.ready is None, "no request is admitted any more"
        self.crashes += 1

    def _step(self, step: Step) -> None:
        self.steps.append(step)
        self._moved.set()

    async def until_running(self, count: int) -> None:
        while not self.steps or self.steps[-1].running < count:
            self._moved.clear()
            await self._moved.wait()

    @property
    def process(self) -> psutil.Process:
        assert self.client._process, "it was started"
        return psutil.Process(self.client._process.pid)

    async def ask(self, request: Request) -> list[RequestOutput]:
        return [event async for event in self.client.stream(request)]


@contextlib.asynccontextmanager
async def a_life(queue: QueueLimits = QUEUE) -> AsyncIterator[Life]:
    life = Life(queue)
    try:
        yield life
    finally:
        life.client.stop()
        with contextlib.suppress(EngineError):
            await life.task
        life.client.heartbeat.close()


def request(name: str, params: SamplingParams = PLAIN) -> Request:
    return Request(name, (1, 2, 3), params)


UNSAYABLE = {
    "a top_k of 26 digits": request("bad", replace(PLAIN, top_k=10**25)),
    "min_tokens beyond 64 bits": request("bad", replace(PLAIN, min_tokens=2**64)),
    "a priority beyond 64 bits": replace(request("bad"), priority=-(2**64)),
    "a priority that is a fraction": replace(request("bad"), priority=0.5),  # type: ignore[arg-type]
    "a token that is a text": replace(request("bad"), prompt=(1, "2")),  # type: ignore[arg-type]
    "half a character": replace(request("bad"), tenant="\ud800"),
}


@pytest.mark.finding(2)
async def test_a_request_that_cannot_be_encoded_does_not_affect_others() -> None:
    """Safety 2: the turn's other requests and cancels were lost, and a queue filled with what never ended."""
    async with a_life() as life:
        ready: Ready = await life.ready
        assert ready.vocab_size == checkpoint.read_config(FOLDER)["vocab_size"]
        for bad in UNSAYABLE.values():
            # In one turn of the loop: one before it, one after it.
            before = asyncio.create_task(life.ask(request("before")))
            refused = asyncio.create_task(life.ask(bad))
            after = asyncio.create_task(life.ask(request("after")))
            with pytest.raises(RequestRefused, match="cannot be computed"):
                await refused
            for events in (await before, await after):
                assert [event.finish for event in events][-1] is FinishReason.LENGTH
        for _ in range(288):
            with pytest.raises(RequestRefused):
                await life.ask(UNSAYABLE["a top_k of 26 digits"])
        assert life.client.in_flight == 0
        assert (await life.ask(request("last")))[-1].finish is FinishReason.LENGTH


@pytest.mark.attack_class(8)
@pytest.mark.parametrize("queue", [QueueLimits(6, 10_000), QueueLimits(100, 20)], ids=["requests", "tokens"])
async def test_a_tenant_that_fills_the_queue_leaves_room_for_others(queue: QueueLimits) -> None:
    async with a_life(queue) as life:
        await life.ready
        requests = [replace(request(f"a{number}", LONG), tenant="a") for number in range(12)]
        running = [asyncio.create_task(life.ask(one)) for one in requests]
        await life.until_running(2)
        await asyncio.sleep(0)
        full = [task for task in running if task.done()]
        assert full and all(isinstance(task.exception(), QueueFull) for task in full)
        with pytest.raises(QueueFull, match=r"share of this tenant|tokens are waiting"):
            for number in range(12):  # two of the first ones run by now
                running.append(asyncio.create_task(life.ask(replace(request(f"more{number}", LONG), tenant="a"))))
                await asyncio.sleep(0)
                if running[-1].done():
                    await running[-1]
        other = asyncio.create_task(life.ask(replace(request("b"), tenant="b")))
        assert (await other)[-1].finish is FinishReason.LENGTH
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        assert (await life.ask(replace(request("last"), tenant="a")))[-1].finish is FinishReason.LENGTH, "given back"


async def test_a_model_that_the_engine_refuses_ends_with_its_reason() -> None:
    async with a_life() as life:
        ready: Ready = await life.ready
        nan, beyond = replace(PLAIN, temperature=float("nan")), (ready.vocab_size,)
        (event,) = await life.ask(request("nan", nan))
        assert event.finish is FinishReason.INVALID and "temperature" in (event.error or "")
        (event,) = await life.ask(Request("beyond", beyond, PLAIN))
        assert event.finish is FinishReason.INVALID and "ids below" in (event.error or "")
        assert (await life.ask(request("last")))[-1].finish is FinishReason.LENGTH


async def test_a_crash_distinguishes_running_requests_from_waiting_ones() -> None:
    async with a_life() as life:
        await life.ready
        # Two slots: the third waits, and cannot be the cause.
        requests = [asyncio.create_task(life.ask(request(name, LONG))) for name in ("a", "b", "waits")]
        await life.until_running(2)
        life.process.send_signal(signal.SIGKILL)
        ends = {events[-1].id: (events[-1].finish, events[-1].error) for events in await asyncio.gather(*requests)}
        crashed = (FinishReason.CRASHED, ENGINE_DIED)
        assert ends == {"a": crashed, "b": crashed, "waits": (FinishReason.LOST, ENGINE_DIED_BEFORE)}
        with pytest.raises(EngineError, match="started again"):
            await life.ask(request("late"))
        with pytest.raises(EngineCrashed, match="signal 9"):
            await life.task
        assert life.crashes == 1


async def test_a_request_that_crashes_the_engine_in_its_first_step_was_running() -> None:
    """It is announced before its step runs: else the cause itself would look as if it had waited."""
    async with a_life() as life:
        await life.ready
        life.process.suspend()
        ask = asyncio.create_task(life.ask(Request("first", (1,) * 480, LONG)))
        await asyncio.sleep(0.1)
        seen = asyncio.Event()
        begin = life.client._mark_started
        life.client._mark_started = lambda started: (begin(started), life.process.kill(), seen.set())  # type: ignore[method-assign, assignment]
        life.process.resume()
        await seen.wait()
        events = await ask
        assert events[0].starts and events[-1].finish is FinishReason.CRASHED
        assert all(event.token is None for event in events)
