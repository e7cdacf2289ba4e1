"""One budget of bytes: all held bytes count, clients have shares, stalled bodies are evicted first (safety 24)."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from aiohttp import StreamReader, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st

from slipway_contracts.route_table import Backend
from slipway_gateway.forwarding import bodies
from slipway_gateway.forwarding.bodies import SlicedBody, make_body
from slipway_gateway.forwarding.resume_memory import ResumeMemory
from slipway_gateway.judging.samples import GENERATIONS, Samples
from slipway_gateway.judging.units import SessionMemory, Units
from slipway_gateway.limits.budget import STALLED, Account, MemoryBudget
from slipway_gateway.limits.container import budget_bytes, memory_limit_bytes
from slipway_gateway.routing.table import Route
from slipway_gateway.settings import GatewaySettings
from slipway_gateway.wire.errors import RequestError
from slipway_process.places import SHARE, TOTAL
from testkit.until import until_async

from .harness import Gateway, Handler, drop, echo, gateway, upstream
from .test_proxy import STREAM

pytestmark = [pytest.mark.attack_class(15), pytest.mark.finding(24)]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def made(limit: int = 100, share: int = 60) -> tuple[MemoryBudget, Clock, Counter[str]]:
    clock, shed = Clock(), Counter[str]()
    return MemoryBudget(limit, share, clock, lambda reason: shed.update([reason])), clock, shed


def test_one_client_cannot_take_all() -> None:
    budget, _, shed = made()
    hostile, victim = budget.open("hostile"), budget.open("victim")
    assert hostile.grow(60) == "" and hostile.grow(1) == SHARE and budget.open("hostile").grow(1) == SHARE
    assert victim.grow(24) == "" and victim.grow(1) == SHARE and victim.grow(17) == SHARE
    hostile.close()
    assert victim.grow(36) == "" and shed == {SHARE: 4}


def test_however_many_clients_take_all_they_can_another_one_has_room() -> None:
    """Two clients that held half each left nothing."""
    for greedy in (1, 2, 3, 9):
        budget, _, _ = made(limit=6000, share=3000)
        accounts = [budget.open(f"client {n}") for n in range(greedy)]
        while "" in {account.grow(1) for account in accounts}:
            pass
        assert abs(accounts[0].held_bytes - 6000 / (greedy + 1)) <= 1
        assert budget.open("another").grow(6000 // (greedy + 1) // 2) == ""


def test_caches_take_no_share_of_a_client() -> None:
    budget, clock, _ = made(limit=2000, share=1000)
    memory = ResumeMemory(1000, 60.0, clock, budget)
    memory.keep(b"a", b"1" * 744, "client")
    assert memory.size_bytes == 1000
    asking = budget.open("client")
    assert asking.grow(1000) == "" and asking.grow(1) == SHARE


def test_caches_are_evicted_first_then_stalled_bodies() -> None:
    budget, clock, shed = made(limit=1000, share=1000)
    memory = ResumeMemory(1000, 60.0, clock, budget)
    memory.keep(b"a", b"1" * 44, "client")
    stalled, moving, asking = budget.open("s"), budget.open("m"), budget.open("a")
    gone: list[str] = []
    for account, name in ((stalled, "s"), (moving, "m")):
        assert account.grow(300) == ""
        account.waits(lambda name=name: gone.append(name))  # type: ignore[misc]
    assert asking.grow(400) == "" and memory.size_bytes == 0 and not gone
    assert asking.grow(100) == TOTAL and not gone, "no account is stalled yet"
    clock.now = 2.0
    moving.moved()
    assert asking.grow(100) == "" and gone == ["s"] and stalled.held_bytes == 0
    assert asking.grow(400) == TOTAL and gone == ["s"] and shed[STALLED] == 1


def act(account: Account, what: str, size: int) -> None:
    acts = {
        "g": lambda: account.grow(size),
        "f": lambda: account.force(size),
        "s": lambda: account.shrink(size),
        "c": account.close,
        "w": lambda: account.waits(lambda: None),
        "m": account.moved,
        "e": account.goes_on,
    }
    acts[what]()


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from("gfscwme"), st.integers(0, 50)), max_size=80))
def test_counted_bytes_are_the_held_bytes(steps: list[tuple[int, str, int]]) -> None:
    budget, clock, _ = made(limit=200, share=90)
    accounts = [budget.open(f"client{n % 3}") for n in range(5)]

    for n, what, size in steps:
        clock.now += 0.5
        act(accounts[n], what, size)
        assert budget.used_bytes == sum(account.held_bytes for account in accounts) >= 0
        for client in {account.client for account in accounts}:
            assert budget.held_by(client) == sum(a.held_bytes for a in accounts if a.client == client)
    for account in accounts:
        account.close()
    assert budget.used_bytes == 0 and not budget._clients and not budget._stopped


@given(st.binary(max_size=300_000), st.binary(max_size=100))
def test_a_body_is_sent_as_it_is_and_not_joined(body: bytes, tokens: bytes) -> None:
    sent: list[bytes] = []

    class Writer:
        async def write(self, chunk: bytes) -> None:
            sent.append(bytes(chunk))

    found = make_body(body, tokens)
    if isinstance(found, SlicedBody):
        asyncio.run(found.write_with_length(Writer(), None))  # type: ignore[arg-type]
        assert found.size == len(body) + len(tokens) and max(map(len, sent)) <= 64 << 10
    assert (b"".join(sent) if sent else found) == body + tokens


async def test_every_byte_is_given_back() -> None:
    async def big(request: web.Request) -> web.StreamResponse:
        await request.read()
        return web.Response(body=b"x" * (1 << 19), content_type="application/json")

    async with upstream(big) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        budget = gate.budget
        body = b'{"model":"chat","x":"%s"}' % (b"y" * 900_000)
        for _ in range(3):
            async with await gate.post(body) as answer:
                assert len(await answer.read()) == 1 << 19
            assert server.bodies.pop() == body
        async with await gate.post(b"{") as answer:
            assert answer.status == 400
        await until_async(lambda: budget.used_bytes == 0)


def halting(*parts: bytes, go_on: asyncio.Event, **headers: str) -> Handler:
    """Sends one part, and the others once it may go on."""

    async def send(request: web.Request) -> web.StreamResponse:
        await request.read()
        answer = web.StreamResponse(headers=headers)
        await answer.prepare(request)
        for part in parts:
            await answer.write(part)
            await go_on.wait()
        return answer

    return send


async def test_whole_answers_are_counted_while_they_come() -> None:
    """Safety 24: 1 MiB each, times all in flight, was outside every budget."""
    half, go_on = b"x" * (1 << 18), asyncio.Event()
    headers = {"Content-Type": "application/json", "Content-Length": str(2 * len(half))}
    async with upstream(halting(half, half, go_on=go_on, **headers)) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        budget = gate.edge.budget
        asking = asyncio.create_task(gate.post())
        try:
            await until_async(lambda: budget.used_bytes >= len(half))
        finally:
            go_on.set()
        async with await asking as answer:
            assert len(await answer.read()) == 2 * len(half)
        await until_async(lambda: budget.used_bytes == 0)


async def test_whole_responses_are_streamed_when_the_budget_is_full() -> None:
    async def big(request: web.Request) -> web.StreamResponse:
        await request.read()
        return web.Response(body=b"x" * (1 << 20), content_type="application/json")

    async with upstream(big) as server, gateway(memory_budget_bytes=400_000) as gate:
        gate.route(("rev", 100, [server.url]))
        async with await gate.post() as answer:
            assert answer.status == 200 and len(await answer.read()) == 1 << 20
        assert gate.outcomes() == {"ok": 1}


async def test_kept_tokens_of_a_stream_are_counted() -> None:
    """Safety 24: the tokens of each stream, up to 128 KiB, were outside every budget."""
    tokens, go_on = b",".join([b"7"] * 20_000), asyncio.Event()
    events = (b": 1.00000001 %s\ndata: {}\n\n" % tokens, b"data: [DONE]\n\n")
    headers = {"Content-Type": "text/event-stream", "X-Slipway-Stream": STREAM}
    async with upstream(halting(*events, go_on=go_on, **headers)) as server, gateway() as gate:
        gate.route(("rev", 100, [server.url]))
        budget = gate.edge.budget
        answer = await gate.post(b'{"model":"chat","stream":true}')
        try:
            await until_async(lambda: budget.used_bytes >= len(tokens))
        finally:
            go_on.set()
        assert (await answer.read()).endswith(b"data: [DONE]\n\n")
        await until_async(lambda: budget.used_bytes == 0)


async def stalled_body(gate: Gateway, size: int, sent: int, host: str = "127.0.0.1") -> asyncio.StreamWriter:
    port = int(gate.url.rsplit(":", 1)[1])
    _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size + b"x" * sent)
    await writer.drain()
    return writer


async def test_stalled_bodies_lock_no_client_out() -> None:
    """Safety 24: some 16 bodies of 16 MiB that never came gave all clients 429 for a minute."""
    async with upstream(echo) as server, gateway(memory_budget_bytes=2 << 20) as gate:
        gate.route(("rev", 100, [server.url]))
        budget = gate.budget
        writers = [await stalled_body(gate, 1 << 20, 120 << 10, f"127.0.0.{n}") for n in range(2, 18)]
        await until_async(lambda: budget.used_bytes > 1_700_000)
        body = b'{"model":"chat","x":"%s"}' % (b"y" * (600 << 10))
        await asyncio.sleep(1.1)
        async with await gate.post(body) as answer:
            assert answer.status == 200
        read = gate.metrics.registry.get_sample_value
        assert (read("slipway_gateway_memory_shed_total", {"reason": "stalled"}) or 0) >= 1
        await until_async(lambda: gate.outcomes().get("refused", 0) >= 1)
        for writer in writers:
            await drop(writer)
        await until_async(lambda: budget.used_bytes == 0)


async def test_only_received_bytes_are_counted() -> None:
    async with gateway(memory_budget_bytes=100_000) as gate:
        gate.route(("rev", 100, []))
        writers = [await stalled_body(gate, 16 << 20, 10) for _ in range(50)]
        await until_async(lambda: gate.edge.running == 50)
        assert gate.budget.used_bytes < 50 * 100
        for writer in writers:
            await drop(writer)


async def test_body_below_the_minimum_rate_gets_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway_gateway.forwarding.bodies.WINDOW_S", 0.2)
    async with gateway(min_body_rate_bytes=5000) as gate:
        gate.route(("rev", 100, []))
        port = int(gate.url.rsplit(":", 1)[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
        for _ in range(10):
            writer.write(b"x")
            await asyncio.sleep(0.05)
        assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        await drop(writer)


async def test_a_slow_body_that_keeps_its_rate_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway_gateway.forwarding.bodies.WINDOW_S", 0.3)

    async def slowly():  # type: ignore[no-untyped-def]
        yield b'{"model":"chat","x":"'
        for _ in range(20):
            await asyncio.sleep(0.04)
            yield b"y" * 5000
        yield b'"}'

    async with upstream(echo) as server, gateway(min_body_rate_bytes=3000) as gate:
        gate.route(("rev", 100, [server.url]))
        async with gate.client.post(gate.url + "/v1/completions", data=slowly()) as answer:
            assert answer.status == 200


async def test_client_over_its_share_gets_429_and_another_is_served() -> None:
    async with upstream(echo) as server, gateway(memory_budget_bytes=200_000, max_client_percentage=50) as gate:
        gate.route(("rev", 100, [server.url]))
        body = b'{"model":"chat","x":"%s"}' % (b"y" * 110_000)
        async with await gate.post(body, headers={"Authorization": "Bearer a"}) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
            assert "share" in (await answer.json())["error"]["message"]
        async with await gate.post(b'{"model":"chat"}', headers={"Authorization": "Bearer a"}) as answer:
            assert answer.status == 200


# -- sessions of the judge


def test_session_memory_is_bounded_across_routes() -> None:
    """Safety 24: 6.3 MB for each route and generation had no total."""
    samples = Samples(500)
    routes = [Route(f"ns/{n}", "u", f"m{n}", backends=(Backend("a", 50), Backend("b", 50))) for n in range(4)]
    for route in routes:
        for n in range(400):
            samples.epoch(route).assign("a", f"session:{n}", f"client {n}", 0.0)
    assert samples._room.taken <= 500
    assert samples._room.taken == sum(len(epoch._units) for epochs in samples._epochs.values() for epoch in epochs)
    samples.keep({})
    assert samples._room.taken == 0


def test_former_generations_release_their_memory() -> None:
    samples = Samples(10_000)
    for generation in range(GENERATIONS + 3):
        route = Route("ns/a", "u", "m", generation=generation, backends=(Backend("a", 100),))
        epoch = samples.epoch(route)
        for n in range(10):
            epoch.assign("a", f"session:{generation}.{n}", "client", 0.0)
    assert samples._room.taken == GENERATIONS * 10


def test_the_largest_session_memory_is_evicted_first() -> None:
    room = SessionMemory(100)
    large, small = (Units({"a": 100}, 0.0, room) for _ in range(2))
    for n in range(10):
        small.assign("a", f"session:s{n}", "client", 0.0)
    for n in range(500):
        large.assign("a", f"session:l{n}", "client", 0.0)
    assert len(small) == 10 and room.taken == len(large) + len(small) <= 100
    assert small.assign("a", "session:s0", "client", 0.0) == (False, True), "it is remembered still"


# -- the container's limit


def test_the_budget_comes_from_the_container(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("4:memory:/a/b\n0::/kubepods/x\n")
    assert memory_limit_bytes(tmp_path, own) is None and memory_limit_bytes(tmp_path, tmp_path / "no") is None
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_limit_bytes(tmp_path, own) is None
    (tmp_path / "memory.max").write_text(f"{1 << 30}\n")
    assert memory_limit_bytes(tmp_path, own) == 1 << 30
    (tmp_path / "kubepods" / "x").mkdir(parents=True)
    (tmp_path / "kubepods" / "x" / "memory.max").write_text(f"{1 << 29}\n")
    assert memory_limit_bytes(tmp_path, own) == 1 << 29
    (tmp_path / "memory" / "a" / "b").mkdir(parents=True)
    (tmp_path / "memory" / "a" / "b" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert memory_limit_bytes(tmp_path, own) == 1 << 29
    assert budget_bytes(0, 1 << 30) == 375809638 and budget_bytes(7, 1 << 30) == 7 and budget_bytes(0, None) == 1 << 28


async def test_a_body_that_ends_while_it_is_evicted_is_refused() -> None:
    """Seen: only the bytes that came after the eviction were read, and the budget did not count them."""
    now = [0.0]
    budget = MemoryBudget(1000, 1000, lambda: now[0])
    loop = asyncio.get_running_loop()
    content = StreamReader(BaseProtocol(loop), 1 << 16, loop=loop)
    content._protocol.transport = asyncio.Transport()
    request = make_mocked_request("POST", "/", payload=content)
    account = budget.open("a")
    content.feed_data(b'{"model":"chat","prompt":"' + b"x" * 400)
    reading = asyncio.create_task(bodies.read(request, account, GatewaySettings()))
    await until_async(lambda: account.held_bytes > 400)
    now[0] = 10.0
    content.feed_data(b'y"}')
    content.feed_eof()
    assert budget.open("b").grow(800) == "", "the room of the one that stalled"
    with pytest.raises(RequestError) as refused:
        await reading
    assert refused.value.status == 429 and budget.used_bytes == 800
