"""Connections are there before the first request of a raised weight."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from slipway_gateway.routing.table import RouteTable
from slipway_gateway.settings import GatewaySettings
from slipway_gateway.upstream.session import open_direct, open_session
from slipway_gateway.upstream.warmup import MAX_ENDPOINTS, RENEW_S, Warmup, cold
from testkit.until import until_async

from . import test_process
from .harness import Gateway, echo, gateway, refused_url, table, upstream


def test_endpoints_without_weight_are_cold() -> None:
    shown = table(1, ("new", 0, ["http://n1", "http://n2"]), ("now", 100, ["http://w"]), ("gone", 0, []))
    assert cold(shown) == ["http://n1", "http://n2"]
    # A revision that no split names yet is the next to get weight.
    unlisted = table(2, ("now", 100, ["http://w"]))
    assert cold(RouteTable(unlisted.routes, unlisted.models, shown.endpoints)) == ["http://n1", "http://n2"]
    assert (
        cold(table(1, ("new", 0, [f"http://{n}" for n in range(300)])))
        == sorted(f"http://{n}" for n in range(300))[:MAX_ENDPOINTS]
    )
    assert cold(None) == []


class Counted:
    """Connections that came in, counted by a wire before the server."""

    def __init__(self) -> None:
        self.url = ""
        self.made = 0


@contextlib.asynccontextmanager
async def counted(server_url: str) -> AsyncIterator[Counted]:
    count = Counted()
    host, _, port = server_url.removeprefix("http://").partition(":")

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        count.made += 1
        there = await asyncio.open_connection(host, int(port))
        await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))

    wire = await asyncio.start_server(serve, "127.0.0.1", 0)
    count.url = f"http://127.0.0.1:{wire.sockets[0].getsockname()[1]}"
    try:
        yield count
    finally:
        wire.close()


async def ask(gate: Gateway) -> None:
    async with await gate.post() as answer:
        assert answer.status == 200


async def test_first_requests_of_a_raised_weight_open_no_connection() -> None:
    # The fast lane of the data plane has connections of its own, which are opened by requests.
    async with upstream(echo) as server, counted(server.url) as wire, gateway(plane="off") as gate:
        gate.route(("new", 0, [wire.url]), ("now", 100, [server.url, refused_url()]))
        await Warmup(open_direct(gate.upstreams), 2, lambda: 0.0).renew(cold(gate.balancer.published.current))
        gate.route(("new", 100, [wire.url]), ("now", 0, []))
        await asyncio.gather(ask(gate), ask(gate))
        assert [seen.path for seen in server.seen] == ["/healthz"] * 2 + ["/v1/chat/completions"] * 2
        assert wire.made == 2


async def test_warm_connections_are_renewed_and_bounded() -> None:
    times = iter((0.0, RENEW_S - 0.1, RENEW_S, 2 * RENEW_S, 2 * RENEW_S, 2 * RENEW_S))
    async with upstream(echo) as server, counted(server.url) as wire, open_session(GatewaySettings()) as session:
        warmup = Warmup(open_direct(session), 3, lambda: next(times))
        for touched in (3, 3, 6, 9):
            await warmup.renew([wire.url])
            assert (len(server.seen), wire.made) == (touched, 3)
        # One that went and came back is new; one that does not answer costs nothing but the try.
        await warmup.renew([])
        await warmup.renew([wire.url, refused_url()])
        assert (len(server.seen), wire.made) == (12, 3)


@pytest.mark.integration
async def test_gateway_process_warms_connections(tmp_path: Path) -> None:
    async with upstream(echo) as old, upstream(echo) as new:
        path = test_process.routes(tmp_path / "r.yaml", old.url)
        async with test_process.gateway("--routes", str(path), "--warm-connections=3"):
            split = [
                {"revision": "v2", "weight": 0, "endpoints": [new.url]},
                {"revision": "v1", "weight": 100, "endpoints": [old.url]},
            ]
            path.write_text(yaml.safe_dump({"models": {"chat": {"backends": split}}}))
            await until_async(lambda: [seen.path for seen in new.seen] == ["/healthz"] * 3)
            assert not old.seen


async def test_no_connection_is_warmed_when_disabled() -> None:
    async with gateway() as gate:
        await Warmup(open_direct(gate.upstreams), 0, lambda: 0.0).run(gate.balancer)
