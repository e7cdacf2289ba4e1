"""Requests that end engines, and engines that others end: what is lost, and what is sent where."""

import asyncio
import contextlib
import io
import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from devcluster.ports import reserve_port
from slipway_gateway.balancing.spares import Spares
from slipway_gateway.routing.table import RevisionEndpoints, build
from slipway_plane import NATIVE
from testkit.until import until_async
from tests.support.report import route_reports

from .harness import Gateway, gateway, raw_upstream, table
from .mortal_engine import MortalEngine, ended_at_last

pytestmark = [pytest.mark.attack_class(18), pytest.mark.finding("F1")]

PATH = "/v1/chat/completions"
MODEL = b'", "model": "chat"}'
LONG = {"100 KB": 100_000, "8 MB": (8 << 20) - 300}
PATIENCE_S = 60.0  # more than any test takes


def body(text: str, size_bytes: int = 0) -> bytes:
    """A request whose prompt begins with `text`."""
    start = b'{"prompt": "' + text.encode()
    return start + b"a" * max(0, size_bytes - len(start) - len(MODEL)) + MODEL


@dataclass
class World:
    """A gateway and engines of one revision."""

    gate: Gateway
    engines: list[MortalEngine]

    async def post(self, sent: bytes) -> tuple[int, str]:
        # aiohttp warns of long bodies that are not read from a file.
        async with self.gate.client.post(self.gate.url + PATH, data=io.BytesIO(sent)) as answer:
            assert answer.status == 200 or "Retry-After" not in answer.headers
            read = json.loads(await answer.read())
            return answer.status, (read.get("error") or {}).get("code", "")

    async def keep_connections(self) -> None:
        """Each engine gets a request, so that a connection to it is idle."""
        while not all(engine.seen() for engine in self.engines):
            ended = await asyncio.gather(*(self.post(body(f"hello {n} take 0.05")) for n in range(len(self.engines))))
            assert set(ended) == {(200, "")}

    @property
    def alive(self) -> list[MortalEngine]:
        return [engine for engine in self.engines if engine.lives]

    async def until_dead(self, count: int) -> None:
        await until_async(lambda: len(self.engines) - len(self.alive) == count, f"{count} engines are dead")

    def count(self, name: str) -> float:
        families = self.gate.metrics.registry.collect()
        return sum(sample.value for family in families for sample in family.samples if sample.name == name)


@contextlib.asynccontextmanager
async def world(folder: Path, count: int, *, idle_s: float = 60.0, **settings: float | str) -> AsyncIterator[World]:
    engines = [MortalEngine(folder, f"engine-{n}", reserve_port(), idle_s) for n in range(count)]
    with ended_at_last(*engines):
        for engine in engines:
            await engine.start()
        async with gateway(**({"resume_timeout_s": PATIENCE_S} | settings)) as gate:
            gate.route(("rev", 100, [engine.url for engine in engines]))
            yield World(gate, engines)


# -- long requests


@pytest.mark.parametrize(
    ("size_bytes", "death", "kept"),
    [
        *((size_bytes, "die now", kept) for size_bytes in LONG.values() for kept in (False, True)),
        (LONG["100 KB"], "die later", True),
        (LONG["100 KB"], "die head", False),
    ],
)
async def test_a_long_request_that_kills_an_engine_reaches_one(
    tmp_path: Path, size_bytes: int, death: str, kept: bool
) -> None:
    async with world(tmp_path, 2) as it:
        if kept:
            await it.keep_connections()
        deadly = body(death, size_bytes)
        assert await it.post(deadly) == (503, "engine_crashed")
        await it.until_dead(1)
        (left,) = it.alive
        assert await it.post(deadly) == (422, "request_crashed_engine"), "sent again it reaches none"
        assert left.seen('{"prompt": "die') == 0 and left.lives
        assert await it.post(body("next")) == (200, "")
        assert it.count("slipway_gateway_engine_crashes_total") == 1
        ended = it.gate.outcomes()
        assert (ended["upstream_error"], ended["poison"]) == (1, 1)


async def test_what_a_client_reads_says_what_happened(tmp_path: Path) -> None:
    async with world(tmp_path, 2) as it:
        async with await it.gate.post(body("die now", 100_000)) as answer:
            error = (await answer.json())["error"]
        assert error["message"].startswith("The server of this request stopped while it worked on it, and so long")
        assert error["code"] == "engine_crashed" and "Retry-After" not in answer.headers


# -- short requests


@pytest.mark.parametrize(
    ("death", "kept"), [("die now", False), ("die now", True), ("die later", True), ("die head", False)]
)
async def test_a_short_request_that_kills_engines_reaches_two_of_three(tmp_path: Path, death: str, kept: bool) -> None:
    async with world(tmp_path, 3) as it:
        if kept:
            await it.keep_connections()
        deadly = body(death, 1024)
        assert await it.post(deadly) == (422, "request_crashed_engine")
        await it.until_dead(2)
        (left,) = it.alive
        assert await it.post(deadly) == (422, "request_crashed_engine")
        assert left.seen('{"prompt": "die') == 0 and left.lives
        assert await it.post(body("next")) == (200, "")
        assert it.count("slipway_gateway_engine_crashes_total") == 2


async def test_a_short_request_never_reaches_the_last_engine(tmp_path: Path) -> None:
    """Its client comes back, and so do requests of others meanwhile."""
    async with world(tmp_path, 2, resume_timeout_s=0.5) as it:
        deadly = body("die now", 1024)
        for _ in range(2):
            assert await it.post(deadly) == (503, "engine_crashed")
            assert await it.post(body("next")) == (200, "")
        (left,) = it.alive
        assert left.seen('{"prompt": "die') == 0
        assert it.gate.outcomes() == {"ok": 2, "upstream_error": 2}


async def test_a_short_request_is_tried_again_beside_an_engine_that_came_back(tmp_path: Path) -> None:
    async with world(tmp_path, 2) as it:
        pending = asyncio.create_task(it.post(body("die now", 1024)))
        await it.until_dead(1)
        (dead,) = [engine for engine in it.engines if not engine.lives]
        await dead.start()
        assert await pending == (422, "request_crashed_engine")
        await it.until_dead(1)
        assert await it.post(body("next")) == (200, "")


async def test_two_suspects_at_a_time_leave_an_engine(tmp_path: Path) -> None:
    """While one is on trial, its endpoint is no other suspect's spare."""
    async with world(tmp_path, 3, resume_timeout_s=1.5) as it:
        first = it.engines[0]
        it.gate.route(("rev", 100, [first.url]))
        deadly = [asyncio.create_task(it.post(body(f"{n} die later", 1024))) for n in range(4)]
        await until_async(lambda: first.seen())
        it.gate.route(("rev", 100, [engine.url for engine in it.engines]))
        ended = await asyncio.gather(*deadly)
        assert set(ended) <= {(422, "request_crashed_engine"), (503, "engine_crashed")}
        assert len(it.alive) == 1
        assert await it.post(body("next")) == (200, "")


# -- engines that others end


async def test_short_requests_at_an_engine_that_is_killed_from_outside_are_saved(tmp_path: Path) -> None:
    async with world(tmp_path, 3) as it:
        pending = [asyncio.create_task(it.post(body(f"take 0.3, user {n}"))) for n in range(24)]
        await until_async(lambda: sum(engine.seen() for engine in it.engines) == 24)
        it.engines[0].kill()
        assert set(await asyncio.gather(*pending)) == {(200, "")}
        assert it.gate.outcomes() == {"ok": 24}


async def test_of_two_engines_the_last_gets_what_the_other_was_killed_with_when_that_is_back(tmp_path: Path) -> None:
    async with world(tmp_path, 2) as it:
        pending = [asyncio.create_task(it.post(body(f"take 0.3, user {n}"))) for n in range(16)]
        await until_async(lambda: sum(engine.seen() for engine in it.engines) == 16)
        killed, left = it.engines
        killed.kill()
        await asyncio.sleep(1)  # several looks
        assert sum(engine.seen() for engine in it.engines) == 16
        assert await it.post(body("next")) == (200, "")
        await killed.start()
        assert set(await asyncio.gather(*pending)) == {(200, "")}
        assert it.gate.outcomes() == {"ok": 17} and left.lives


async def test_what_was_answered_before_goes_to_the_last_engine_at_once(tmp_path: Path) -> None:
    async with world(tmp_path, 2) as it:
        popular = body("take 0.3, popular")
        assert await it.post(popular) == (200, "")
        pending = [asyncio.create_task(it.post(popular)) for _ in range(16)]
        await until_async(lambda: sum(engine.seen() for engine in it.engines) == 17)
        it.engines[0].kill()
        assert set(await asyncio.gather(*pending)) == {(200, "")}
        assert it.gate.outcomes() == {"ok": 17}


async def test_an_only_engine_gets_short_requests_again_and_no_long_one(tmp_path: Path) -> None:
    async with world(tmp_path, 1) as it:
        (only,) = it.engines
        pending = [asyncio.create_task(it.post(body(f"take 0.3, user {n}"))) for n in range(4)]
        long = asyncio.create_task(it.post(body("take 0.3, long", 100_000)))
        await until_async(lambda: only.seen() == 5)
        only.kill()
        assert await long == (503, "engine_crashed")
        await only.start()
        assert set(await asyncio.gather(*pending)) == {(200, "")}
        assert only.seen('{"prompt": "take 0.3, long') == 1


@pytest.mark.parametrize("size_bytes", [1024, 100_000])
async def test_a_pod_that_is_not_ready_and_ends_is_a_death_and_one_that_is_deleted_is_none(
    tmp_path: Path, size_bytes: int
) -> None:
    """A request that makes a server stand still until its probes fail: its pod has left the table when it is killed."""
    async with world(tmp_path, 2, resume_timeout_s=0.3) as it:
        hung, left = it.engines
        for there in (True, False):
            it.gate.route(("rev", 100, [hung.url]))
            pending = asyncio.create_task(it.post(body(f"take 0.5, {there}", size_bytes)))
            await until_async(lambda there=there: hung.seen(f'{{"prompt": "take 0.5, {there}'))
            ready = table(9, ("rev", 100, [left.url]))
            pods = [RevisionEndpoints("default/chat", "rev", (left.url,))]
            if there:
                pods.append(RevisionEndpoints("default/chat", "rev", (hung.url,), ready=False))
            it.gate.balancer.publish(build(ready.routes.values(), pods))
            hung.kill()
            assert await pending == ((503, "engine_crashed") if there else (200, ""))
            assert it.count("slipway_gateway_engine_crashes_total") == 1
            await hung.start()


# -- streams


async def stream(it: World, text: str, size_bytes: int = 0) -> bytes:
    async with await it.gate.post(body(text, size_bytes).replace(b"}", b', "stream": true}')) as answer:
        assert answer.status == 200
        return await answer.read()


async def test_a_stream_that_kills_engines_reaches_two_of_three(tmp_path: Path) -> None:
    async with world(tmp_path, 3) as it:
        received = await stream(it, "die 3")
        assert received.count(b"data: {}") == 6 and b"request_crashed_engine" in received
        await it.until_dead(2)
        (left,) = it.alive
        assert left.seen() == 0


async def test_a_long_stream_that_kills_an_engine_reaches_one(tmp_path: Path) -> None:
    async with world(tmp_path, 3) as it:
        received = await stream(it, "die 3", 100_000)
        assert received.count(b"data: {}") == 3 and b'"code":"engine_crashed"' in received
        await it.until_dead(1)
        assert it.gate.outcomes() == {"upstream_error": 1}


async def test_a_stream_that_kills_an_engine_late_never_reaches_the_last(tmp_path: Path) -> None:
    async with world(tmp_path, 2, resume_timeout_s=0.5) as it:
        received = await stream(it, "die 20")
        assert received.count(b"data: {}") == 20 and b"upstream_died" in received
        (left,) = it.alive
        assert left.seen() == 0


@pytest.mark.parametrize("size_bytes", [0, 100_000], ids=["short", "long"])
async def test_streams_outlive_engines_that_are_killed_from_outside(tmp_path: Path, size_bytes: int) -> None:
    """Each is past what may have ended the engine, so its length is no reason, nor that the next one is killed too."""
    async with world(tmp_path, 3) as it:
        pending = [asyncio.create_task(stream(it, f"stream 150, user {n}", size_bytes)) for n in range(6)]
        await until_async(lambda: sum(engine.seen() for engine in it.engines) == 6)
        for engine in it.engines[:2]:
            await asyncio.sleep(1)
            engine.kill()
            await asyncio.sleep(1)
            await engine.start()
        for received in await asyncio.gather(*pending):
            assert received.count(b"data: {}") == 150 and received.endswith(b"data: [DONE]\n\n")
            assert b"error" not in received
        assert it.gate.outcomes() == {"ok": 6}


# -- connections that are idle


@pytest.mark.parametrize("size_bytes", [1024, 100_000], ids=["short", "long"])
async def test_an_engine_that_closes_idle_connections_fails_no_request(tmp_path: Path, size_bytes: int) -> None:
    """Pauses around the time after which it closes them: some requests cross the end of their connection."""
    idle_s = 0.05
    async with world(tmp_path, 2, idle_s=idle_s) as it:

        async def client(number: int) -> None:
            for turn in range(25):
                assert await it.post(body(f"take 0.005, user {number}.{turn}", size_bytes)) == (200, "")
                await asyncio.sleep(idle_s + (turn - 12) * 0.001)

        await asyncio.gather(*map(client, range(16)))
        assert it.gate.outcomes() == {"ok": 400}
        assert it.count("slipway_gateway_engine_crashes_total") == 0
        assert it.count("slipway_gateway_retries_total") == 0, "nor does the judge count any"
        revision = route_reports(it.gate.balancer)["default/chat"]["revisions"]["rev"]
        assert (revision["requests"], revision["failures"]) == (400, 0)
        if size_bytes < 64 << 10:
            assert sum(engine.idle_closes for engine in it.engines) > 0


# -- which endpoints have a spare


def spares_of(*pods: RevisionEndpoints, replicas: int = 0, down: tuple[str, ...] = (), risked: str = "") -> set[str]:
    names = dict.fromkeys(pod.revision for pod in pods)
    weights = [100, *[0] * (len(names) - 1)]
    routes = table(1, *((name, weight, []) for name, weight in zip(names, weights, strict=True))).routes
    route = replace(routes["default/chat"], replicas=replicas)
    spares, made = Spares(), build([route], pods)
    for url in down:
        spares.failed(url)
    return spares.without(made, route, {risked})


def pod(revision: str, url: str, *, ready: bool = True) -> RevisionEndpoints:
    return RevisionEndpoints("default/chat", revision, (url,), ready=ready)


def test_an_endpoint_has_a_spare_if_another_of_its_revision_answers_and_has_no_suspect() -> None:
    a, b, c = (pod("r", url) for url in "abc")
    assert spares_of(a, b) == set()
    assert spares_of(a, b, down=("a",)) == {"b"}
    assert spares_of(a, b, risked="a") == {"b"}
    assert spares_of(a, b, c, down=("a",)) == set()
    assert spares_of(a, b, c, down=("a",), risked="b") == {"c"}
    assert spares_of(a, b, down=("a", "b")) == {"a", "b"}
    assert spares_of(a, pod("r", "b", ready=False)) == {"a"}
    assert spares_of(a, pod("s", "b"), pod("s", "c"), replicas=2) == {"a"}
    assert spares_of(a, pod("r-baseline", "b")) == set(), "it runs the same"


def test_a_revision_of_one_pod_has_no_last_one() -> None:
    a = pod("r", "a")
    assert spares_of(a) == set() == spares_of(a, down=("a",)) == spares_of(a, replicas=1)
    assert spares_of(a, replicas=2) == {"a"}, "its other pod is not there yet"


def test_an_endpoint_that_answers_or_comes_back_is_a_spare_again() -> None:
    route = table(1, ("r", 100, [])).routes["default/chat"]
    both, one = build([route], [pod("r", "a"), pod("r", "b")]), build([route], [pod("r", "b")])
    spares = Spares()
    spares.failed("a")
    spares.follow(both)
    assert spares.without(both, route, ()) == {"b"}
    spares.follow(one)
    spares.follow(both)
    assert spares.without(both, route, ()) == set()
    spares.failed("a")
    spares.answered("a")
    assert spares.without(both, route, ()) == set()


async def test_an_engine_that_refuses_is_no_spare(tmp_path: Path) -> None:
    async with world(tmp_path, 1, resume_timeout_s=0.5) as it, raw_upstream() as resets:
        it.gate.route(("rev", 100, [resets, it.engines[0].url]))
        for n in range(8):
            status, _ = await it.post(body(f"hello {n}"))
            assert status in (200, 422), "the one that resets is tried again, the last one is not"
        assert it.engines[0].seen() == it.gate.outcomes()["ok"]


@pytest.mark.parametrize("plane", ["off", "required"])
async def test_engines_that_are_killed_under_load_lose_no_request_and_none_is_answered_twice(
    tmp_path: Path, plane: str
) -> None:
    """Ten kills; each engine comes back at its port. Both lanes of the gateway, the compiled one where there is one."""
    if plane == "required" and NATIVE is None:
        pytest.skip("the data plane is not built here")
    ended: list[tuple[int, str]] = []
    async with world(tmp_path, 4, plane=plane) as it:
        stop = asyncio.Event()

        async def client(number: int) -> None:
            turn = 0
            while not stop.is_set():
                turn += 1
                ended.append(await it.post(body(f"client {number} turn {turn % 5} take 0.01")))

        clients = [asyncio.create_task(client(number)) for number in range(16)]
        # Bytes that were answered once are not blamed for an engine's end.
        await until_async(lambda: len(ended) > 16 * 10)
        for kill in range(10):
            engine = it.engines[kill % len(it.engines)]
            engine.kill()
            await asyncio.sleep(0.1)
            await engine.start()
            await asyncio.sleep(0.3)
        stop.set()
        await asyncio.gather(*clients)
        assert set(ended) == {(200, "")}, Counter(ended)
        # The lane counts a request when it has written the response, and the client may be faster.
        await until_async(lambda: it.gate.outcomes() == {"ok": len(ended)}, "each one is counted once")
        sent = sum(engine.seen('{"prompt": "client') for engine in it.engines)
        assert len(ended) <= sent <= len(ended) + 10 * 16, "only what a killed engine had is sent again"
        lane = it.count("slipway_gateway_fast_requests_total")
        assert lane > len(ended) / 2 if plane == "required" else lane == 0
