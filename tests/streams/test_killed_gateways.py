"""Streams by WebSocket and gRPC whose gateway or pod is killed, or whose connection breaks: two hundred, or ten."""

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from grpc import aio

from devcluster.ports import reserve_port
from slipway_gateway.ledger.store import LedgerStore
from slipway_gateway.routing.split import tag
from testkit.until import until_async
from tests.gateway.spawned import SpawnedGateway
from tests.gateway.tenants import make_key

from .cut_clients import GONE, Client, GrpcClient, Received, WebSocketClient, go_on
from .scripted_pod import TOKENS, SpawnedPod

KEY = make_key("aaaaaa")
PAUSE_S = 0.005
STREAMS = int(os.environ.get("SLIPWAY_CUT_STREAMS", "100"))  # of each surface
CLIENT, POD, GATEWAY = "client", "pod", "gateway"
KINDS = (CLIENT, CLIENT, CLIENT, POD, GATEWAY)


class World:
    """Two gateways with one ledger, and three pods."""

    def __init__(self, folder: Path) -> None:
        self.ledger_url = f"sqlite:///{folder}/ledger.db"
        self.pods = [SpawnedPod(reserve_port(), PAUSE_S) for _ in range(3)]
        urls, listed = [pod.url for pod in self.pods], {"team-a": ([KEY], 1)}
        self.grpc_ports = [reserve_port(), reserve_port()]
        self.gates = [
            SpawnedGateway(
                folder,
                f"gateway-{number}",
                urls,
                listed,
                {"ledger_url": self.ledger_url, "grpc_port": port, "resume_timeout_s": 30, "hold_timeout_s": 30},
            )
            for number, port in enumerate(self.grpc_ports)
        ]

    async def charged(self) -> tuple[int, int, int]:
        """Requests, input and output tokens that both gateways have written until now."""
        await self.flushed(time.monotonic())
        rows = LedgerStore(self.ledger_url).usage(0, 1 << 30, "team-a")
        requests, inputs, outputs = (
            sum(row[name] for row in rows) for name in ("requests", "input_tokens", "output_tokens")
        )
        return requests, inputs, outputs

    async def flushed(self, since_s: float) -> None:
        """Returns when each gateway has written what it charged before."""
        for gate in self.gates:
            await until_async(lambda gate=gate: gate.flushed_s() > since_s, within_s=30)  # type: ignore[misc]


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    made = World(folder)
    async with AsyncExitStack() as stack:
        processes: list[SpawnedPod | SpawnedGateway] = [*made.pods, *made.gates]
        for process in processes:
            stack.push_async_callback(process.kill)
        await asyncio.gather(*(process.start() for process in processes))
        yield made


class Streamer:
    """One client; `number`: of the gateway that it uses now."""

    def __init__(self, world_: World, client: Client, channels: list[aio.Channel]) -> None:
        self._world, self._client, self._channels = world_, client, channels
        self.number = 0

    async def go_on(self, start: dict[str, Any], received: Received, most: int = 10**9) -> None:
        is_http = isinstance(self._client, WebSocketClient)
        at = self._world.gates[self.number].url if is_http else self._channels[self.number]
        await go_on(self._client, at, start, received, most)

    async def disturbed(self, kind: str, start: dict[str, Any], chance: random.Random) -> Received:
        """Reads a stream of which something breaks behind a random event."""
        received, behind = Received(), chance.randrange(1, len(TOKENS) - 8)
        if kind == CLIENT:
            await self.go_on(start, received, behind)
            self.number = chance.randrange(2)
            await self.go_on(start, received)
            return received
        await self._world.flushed(time.monotonic())
        reading = asyncio.create_task(self.go_on(start, received))
        for _ in range(100_000):
            if len(received.tokens) >= behind or reading.done():
                break
            await asyncio.sleep(PAUSE_S / 2)
        holder = received.event_id.rpartition(".")[2]
        killed: Any = self._world.gates[self.number]
        if kind == POD:
            killed = next(pod for pod in self._world.pods if tag(pod.url) == holder)
        await killed.kill()
        starting = asyncio.create_task(killed.start())
        try:
            await reading
        except GONE:
            assert kind == GATEWAY, "the gateway outlives the pod"
            self.number = 1 - self.number
            await self.go_on(start, received)
        await starting
        return received


async def check(folder: Path, clients: Sequence[Client], kinds: Sequence[str], chance: random.Random) -> None:
    """Streams that are disturbed, of each client in turn: each has the whole text, and all are charged once."""
    async with world(folder) as made:
        channels = [aio.insecure_channel(f"127.0.0.1:{port}") for port in made.grpc_ports]
        streamers, whole = [Streamer(made, client, channels) for client in clients], Received()
        await streamers[0].go_on({"model": "chat", "prompt": "In the beginning", "max_tokens": len(TOKENS)}, whole)
        ends, charged = [whole.done], await made.charged()
        for number, kind in enumerate(kinds):
            # Each prompt is another one: the same bytes that two pods died of would be refused.
            prompt = f"In the beginning {number}"
            start = {"id": f"s-{number}", "model": "chat", "prompt": prompt, "max_tokens": len(TOKENS)}
            received = await streamers[number % len(clients)].disturbed(kind, start, chance)
            assert received.tokens == whole.tokens and received.done is not None
            ends.append(received.done)
            before, charged = charged, await made.charged()
            once = (1, received.done[0], len(TOKENS))
            added = tuple(now - then for now, then in zip(charged, before, strict=True))
            assert all(part <= most for part, most in zip(added, once, strict=True)), (number, kind, added)
        for channel in channels:
            await channel.close()
        charged = await made.charged()
        inputs = sum(done[0] for done in ends if done)
        assert charged == (len(ends), inputs, len(ends) * len(TOKENS))


@pytest.mark.extended
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("client", [WebSocketClient(KEY), GrpcClient(KEY)], ids=["websocket", "grpc"])
async def test_a_hundred_streams_with_killed_gateways_and_pods_are_whole_and_charged_once(
    client: Client, tmp_path: Path
) -> None:
    chance = random.Random(11)
    await check(tmp_path, [client], [chance.choice(KINDS) for _ in range(STREAMS)], chance)


async def test_ten_streams_with_a_killed_gateway_and_pod_are_whole_and_charged_once(tmp_path: Path) -> None:
    """Five of each surface: of one kind a gateway is killed, of the other one a pod."""
    clients: list[Client] = [WebSocketClient(KEY), GrpcClient(KEY)]
    await check(tmp_path, clients, [CLIENT] * 6 + [POD, GATEWAY] + [CLIENT] * 2, random.Random(5))
