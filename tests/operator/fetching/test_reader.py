"""Pods that are read in the background: how often, how many, and what a pod that means harm achieves."""

import asyncio
import gzip
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from slipway_operator.fetching import reader as room
from slipway_operator.fetching.page import LARGEST_BYTES
from slipway_operator.fetching.reader import (
    CONCURRENCY,
    EVERY_S,
    KEPT_S,
    OF_A_NAMESPACE,
    ROUNDS_PER_S,
    DownloadReader,
    new_session,
)
from slipway_operator.model.cluster.observed import Pod, PodDownload
from testkit.until import until_async

CHAT = ("default", "chat")
PAGE = (
    "slipway_fetch_downloaded_bytes 430\nslipway_fetch_size_bytes 1000\n"
    "slipway_fetch_speed_bytes_per_second 25\nslipway_fetch_waiting 0\n"
)
READ = PodDownload(430, 1000, 25, False)
AT = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def pods(*names: str, address: str = "127.0.0.1") -> list[Pod]:
    return [Pod(name, AT, False, address=address, fetching=True) for name in names]


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A pod whose response is `server.page`, or what that returns."""

    async def answer(request: web.Request) -> web.StreamResponse:
        server.requests += 1
        if not callable(server.page):
            return web.Response(text=server.page)
        found: web.StreamResponse = await server.page(request)
        return found

    application = web.Application()
    application.router.add_get("/metrics", answer)
    server: Any = TestServer(application, host="127.0.0.1")
    server.page, server.requests = PAGE, 0
    async with server:
        monkeypatch.setattr(room, "PORT", server.port)
        yield server


@pytest.fixture
async def reader() -> Any:
    async with new_session() as session:
        changed: list[tuple[str, str]] = []
        reader: Any = DownloadReader(session, changed.append, Clock())
        reader.clock, reader.changed = reader._clock, changed
        yield reader
        await reader.close()


async def round_of(reader: Any, *names: str, key: tuple[str, str] = CHAT) -> dict[str, PodDownload | None]:
    """What is known after all reads that the first call begins."""
    reader.clock.now += EVERY_S
    reader.read(key, pods(*names))
    await asyncio.gather(*reader._tasks)
    found: dict[str, PodDownload | None] = reader.read(key, pods(*names))
    return found


async def test_a_reconcile_does_not_wait_and_the_next_one_has_the_answer(reader: Any, server: Any) -> None:
    assert reader.read(CHAT, pods("a", "b")) == {}
    await asyncio.gather(*reader._tasks)
    assert reader.read(CHAT, pods("a", "b")) == {"a": READ, "b": READ}
    assert server.requests == 2


async def test_a_new_answer_wakes_the_reconcile_and_the_same_one_does_not(reader: Any, server: Any) -> None:
    await round_of(reader, "a")
    await round_of(reader, "a")
    assert reader.changed == [CHAT]
    server.page = PAGE.replace("430", "431")
    await round_of(reader, "a")
    assert reader.changed == [CHAT, CHAT]


async def test_an_answer_that_comes_too_late_wakes_nothing(reader: Any, server: Any) -> None:
    reader.read(CHAT, pods("a"))
    reader.forget(CHAT)
    await asyncio.gather(*reader._tasks)
    assert not reader.changed and server.requests == 1


async def test_pods_are_read_once_in_a_while_however_often_it_reconciles(reader: Any, server: Any) -> None:
    await round_of(reader, "a")
    for _ in range(50):
        reader.read(CHAT, pods("a"))
        await asyncio.gather(*reader._tasks)
    assert server.requests == 1
    await round_of(reader, "a")
    assert server.requests == 2


async def test_many_model_deployments_are_read_less_often(reader: Any, server: Any) -> None:
    """Each round may be a write, which wakes all who watch."""
    count, seconds = 500, 50
    keys = [("default", f"chat-{number}") for number in range(count)]
    for key in keys:
        reader.read(key, pods("a"))
    await asyncio.gather(*reader._tasks)
    before = server.requests
    for _ in range(seconds):
        reader.clock.now += 1
        for key in keys:
            reader.read(key, pods("a"))
        await asyncio.gather(*reader._tasks)
    assert count <= server.requests - before <= seconds * ROUNDS_PER_S + count


@pytest.mark.finding("F8")
async def test_downloads_of_a_namespace_slow_down_their_own_alone(reader: Any, server: Any) -> None:
    """500 ModelDeployments of one namespace had each other's read every 25 s, and everybody's."""
    hog = [("hog", f"chat-{number}") for number in range(500)]
    reads = {"hog": 0, "quiet": 0}
    for _ in range(50):
        for key in [*hog, ("quiet", "chat")]:
            reader.read(key, pods("a"))
        running = [task.get_name().split()[-1].partition("/")[0] for task in reader._tasks]
        reads = {namespace: count + running.count(namespace) for namespace, count in reads.items()}
        await asyncio.gather(*reader._tasks)
        reader.clock.now += 1
    assert reads == {"hog": 500, "quiet": 10}


async def test_nothing_is_kept_of_pods_that_do_not_download_any_more(reader: Any, server: Any) -> None:
    await round_of(reader, "a", "b")
    assert reader.read(CHAT, pods("b")).keys() == {"b"}
    assert reader.read(CHAT, pods("b", address="127.0.0.2")) == {}, "another pod of the same name"
    assert reader.read(CHAT, []) == {} and not reader._rounds
    await round_of(reader, "a")
    reader.forget(CHAT)
    assert not reader._rounds


async def test_an_answer_stays_for_a_while_when_a_pod_falls_silent(reader: Any, server: Any) -> None:
    await round_of(reader, "a")
    server.page = "nothing"
    began = reader.clock.now
    while reader.clock.now + EVERY_S - began < KEPT_S:
        assert await round_of(reader, "a") == {"a": READ}
    assert await round_of(reader, "a") == {"a": None}


Page = Callable[[web.Request], Any]


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(PAGE.encode())


async def drop_by_drop(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for byte in PAGE.encode():
        await response.write(bytes([byte]))
        await asyncio.sleep(0.1)
    return response


async def silent(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    raise AssertionError("the reader has left before")


async def bomb(_: web.Request) -> web.StreamResponse:
    return web.Response(body=gzip.compress(PAGE.encode() + b"\n" * 10**7), headers={"Content-Encoding": "gzip"})


async def elsewhere(request: web.Request) -> web.StreamResponse:
    if request.query:
        return web.Response(text=PAGE)
    return web.Response(status=302, headers={"Location": "/metrics?again"})


async def long_header(_: web.Request) -> web.StreamResponse:
    return web.Response(text=PAGE, headers={"X": "x" * 100_000})


async def failing(_: web.Request) -> web.StreamResponse:
    return web.Response(status=500, text=PAGE)


async def long(_: web.Request) -> web.StreamResponse:
    return web.Response(text=PAGE + "\n" * LARGEST_BYTES)


@pytest.mark.parametrize("page", [endless, drop_by_drop, silent, bomb, elsewhere, long_header, failing, long])
async def test_what_a_pod_can_do_is_nothing(
    reader: Any, server: Any, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "TIMEOUT_S", 0.5)
    server.page = page
    began = time.monotonic()
    assert await round_of(reader, "a") == {"a": None}
    assert time.monotonic() - began < 10
    server.page = PAGE
    assert await round_of(reader, "a") == {"a": READ}, "it has no part in what comes later"


async def test_a_refused_connection_and_an_address_that_is_none(
    reader: Any, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "PORT", unused_tcp_port)
    for address in ("127.0.0.1", "::1", "no address", "1.2.3.4.5", "a/b"):
        reader.clock.now += EVERY_S
        reader.read((address, "chat"), pods("a", address=address))
        await asyncio.gather(*reader._tasks)
        assert reader.read((address, "chat"), pods("a", address=address)) == {"a": None}


async def test_pods_that_hang_in_one_namespace_hold_up_no_other(
    reader: Any, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "TIMEOUT_S", 60)
    server.page = silent
    for number in range(2 * CONCURRENCY):
        reader.read(("theirs", f"chat-{number}"), pods("a"))
    await until_async(lambda: server.requests == OF_A_NAMESPACE)
    server.page = PAGE
    reader.read(CHAT, pods("a"))
    async with asyncio.timeout(room.TIMEOUT_S / 2):
        await reader._rounds[CHAT[0]][CHAT].task
    assert reader.read(CHAT, pods("a")) == {"a": READ}


async def test_pods_that_hang_end_with_the_reader(reader: Any, server: Any) -> None:
    server.page = silent
    reader.read(CHAT, pods("a", "b"))
    await asyncio.sleep(0.05)
    async with asyncio.timeout(20):
        await reader.close()
    assert not reader._tasks
