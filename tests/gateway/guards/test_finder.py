"""Patterns and personal data, looked for by processes of their own."""

import asyncio
import time
from typing import Any

import pytest

from slipway_contracts.guards import GuardBuiltin, GuardPii, GuardSpec
from slipway_gateway.guards import finder
from slipway_gateway.guards.protocol import GuardFailed
from slipway_gateway.guards.verdict import BLOCKED, Span
from slipway_gateway.guards.workers import FinderPool
from testkit.until import until_async

from ..harness import gateway, upstream
from .test_guarded_requests import post
from .webhooks import chat, guarded, replying

NO_RE2 = finder.missing(finder.RE2)
NO_PRESIDIO = finder.missing(finder.PRESIDIO)
needs_re2 = pytest.mark.skipif(NO_RE2, reason="google-re2 is not installed")
needs_presidio = pytest.mark.skipif(NO_PRESIDIO, reason="presidio-analyzer is not installed")


async def until_ready(pool: FinderPool, builtin: GuardBuiltin) -> None:
    """Waits until the processes of a pool have loaded what they need."""
    pool.prepare(builtin)
    async with asyncio.timeout(110):
        await asyncio.gather(*pool._loading)


@needs_re2
async def test_patterns_are_found_in_code_points() -> None:
    pool, builtin = FinderPool(1), GuardBuiltin(patterns=("a+b", "ü."))
    try:
        await until_ready(pool, builtin)
        verdict = await pool.verdict(builtin, {"x": "é aaab üx aab", "y": "none"})
        assert verdict.spans == {"x": (Span(2, 6), Span(7, 9), Span(10, 13))}
        blocks = GuardBuiltin(patterns=("ü",), action="Block")
        assert (await pool.verdict(blocks, {"x": "ü"})).action == BLOCKED
    finally:
        await pool.close()


@needs_re2
async def test_time_is_linear_in_the_text_and_the_event_loop_goes_on() -> None:
    pool, builtin = FinderPool(1), GuardBuiltin(patterns=(r"(a+)+$", r"(a|aa)+b"))
    try:
        await until_ready(pool, builtin)
        longest_s, stop = 0.0, asyncio.Event()

        async def tick() -> None:
            nonlocal longest_s
            while not stop.is_set():
                began_s = (
                    time.thread_time()
                )  # what this thread computes: other processes of the machine may run meanwhile
                await asyncio.sleep(0.005)
                longest_s = max(longest_s, time.thread_time() - began_s)

        ticking = asyncio.create_task(tick())
        async with asyncio.timeout(20):
            await pool.verdict(builtin, {"x": "a" * 200_000 + "!"})
        stop.set()
        await ticking
        assert longest_s < 0.5
    finally:
        await pool.close()


@needs_re2
async def test_a_pattern_that_is_none_fails_with_its_beginning() -> None:
    pool, builtin = FinderPool(1), GuardBuiltin(patterns=("(?=a)",))
    try:
        await until_ready(pool, builtin)
        with pytest.raises(GuardFailed, match=r"\(\?=a\) is no expression of RE2"):
            await pool.verdict(builtin, {"x": "a"})
    finally:
        await pool.close()


@needs_presidio
async def test_personal_data_is_found_without_a_download() -> None:
    pool, builtin = FinderPool(1), GuardBuiltin(pii=GuardPii(("EMAIL_ADDRESS", "CREDIT_CARD")))
    try:
        await until_ready(pool, builtin)
        text = "Write to anna@example.com or pay by 4111 1111 1111 1111."
        verdict = await pool.verdict(builtin, {"x": text})
        assert [text[span.start : span.end] for span in verdict.spans["x"]] == [
            "anna@example.com",
            "4111 1111 1111 1111",
        ]
        with pytest.raises(GuardFailed, match="no entity SHOE_SIZE"):
            await pool.verdict(GuardBuiltin(pii=GuardPii(("SHOE_SIZE",))), {"x": text})
    finally:
        await pool.close()


@pytest.mark.skipif(not NO_PRESIDIO, reason="presidio-analyzer is installed")
async def test_without_presidio_the_guard_says_so_and_lets_nothing_pass() -> None:
    pii = GuardSpec(
        "pii", ("Input",), builtin=GuardBuiltin(pii=GuardPii(("EMAIL_ADDRESS",))), timeout_milliseconds=9000
    )
    async with upstream(replying("x")) as server, gateway() as gate:
        pool = gate.edge._forwarding.guards._finders
        assert pii.builtin is not None
        await until_ready(pool, pii.builtin)
        gate.balancer.publish(guarded([pii], ("r1", 100, [server.url])))
        status, refused, _ = await post(gate, chat("hi"))
        assert status == 503 and "presidio-analyzer is not installed" in refused["error"]["message"]
        assert not server.bodies


async def test_a_process_that_takes_too_long_is_replaced() -> None:
    pool, builtin = FinderPool(1), GuardBuiltin(patterns=("a",))
    try:
        await until_ready(pool, builtin)
        process = pool._workers[0].process
        assert process is not None
        process.send_signal(19)  # SIGSTOP: it does not answer
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await pool.verdict(builtin, {"x": "a"})
        await until_ready(pool, builtin)
        assert pool._workers[0].process is not process and process.returncode is not None
    finally:
        await pool.close()


class HeldPool(FinderPool):
    """Its processes load when `goes_on` is set."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def _loaded(self, *args: Any) -> None:
        await self.goes_on.wait()
        await super()._loaded(*args)


async def test_calls_that_take_too_long_leave_a_process_to_other_clients() -> None:
    pool, builtin = HeldPool(2), GuardBuiltin(patterns=("a",))
    try:
        await until_ready(pool, builtin)
        pool.goes_on.clear()
        for _ in range(2):
            (process,) = [one.process for one in pool._workers if one is pool._free._queue[-1]]  # the next one
            assert process is not None
            process.send_signal(19)  # SIGSTOP
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await pool.verdict(builtin, {"x": "a"}, "slow")
        # The second call waited for the client's own place: the other process was stopped, but not ended.
        process.send_signal(18)
        async with asyncio.timeout(30):
            await pool.verdict(builtin, {"x": "a"}, "other")
        pool.goes_on.set()
        await asyncio.gather(*pool._loading)
        assert not [one for one in pool._workers if not one.has_loaded(builtin)] and not pool._shares
    finally:
        await pool.close()


@needs_re2
async def test_a_call_waits_for_a_busy_process_where_the_free_one_was_ended_by_another_client() -> None:
    pool, patterns = FinderPool(2), GuardBuiltin(patterns=("b",))
    try:
        await until_ready(pool, patterns)
        busy, ended = pool._free.get_nowait(), pool._free.get_nowait()
        ended.kill()
        pool._free.put_nowait(ended)
        waiting = asyncio.create_task(pool.verdict(patterns, {"x": "abc"}, "other"))
        await until_async(lambda: pool._free.empty(), "the call has looked at the free process")
        pool._free.put_nowait(busy)
        async with asyncio.timeout(60):
            assert (await waiting).spans == {"x": (Span(1, 2),)}
    finally:
        await pool.close()
