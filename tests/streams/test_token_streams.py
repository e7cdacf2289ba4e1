"""Streams by WebSocket and gRPC, cut at random: the text is that of the undisturbed one, and each is charged once."""

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.grpc_gateway import GrpcGateway, grpc_gateway
from tests.gateway.tenants import PEPPER, make_key, tenant
from tests.server.http.inprocess import InProcess, model_of

from .cut_clients import Client, GrpcClient, Received, WebSocketClient, cuts, go_on
from .scissors import Scissors, scissors

KEY = make_key("aaaaaa")
TOKENS = 40
REQUEST: dict[str, Any] = {"model": "chat", "prompt": "In the beginning", "max_tokens": TOKENS}
# Of an event with its marks, as servers write it.
EVENT_BYTES = 60


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[tuple[list[GrpcGateway], list[Scissors], list[InProcess]]]:
    """Two gateways with one ledger, and two pods behind wires that can be cut."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        pods = [await enter(InProcess(model_of(), replay_s=60)) for _ in range(2)]
        for pod in pods:
            pod.engine.tokens, pod.engine.pause_s = tuple(range(5, 5 + TOKENS)), 0.001
        wires = [await enter(scissors(pod.url)) for pod in pods]
        listed, changes = [tenant("team-a", KEY)], {"ledger_url": f"sqlite:///{folder}/l.db", "resume_timeout_s": 20}
        gates = [await enter(grpc_gateway(listed, PEPPER, **changes)) for _ in range(2)]
        for one in gates:
            one.gate.route(("v1", 100, [wire.url for wire in wires]))
        yield gates, wires, pods


async def charged(gates: list[GrpcGateway]) -> tuple[int, int, int]:
    """Responses, prompt and output tokens that the ledger has."""
    for one in gates:
        await one.gate.ledger.flush()
    ledger = gates[0].gate.ledger
    _, rows = await ledger.usage(ledger.hour - 1, ledger.hour + 1, "team-a")
    return tuple(sum(row[name] for row in rows) for name in ("requests", "input_tokens", "output_tokens"))


def at(made: GrpcGateway, client: Client) -> Any:
    return made.gate.url if isinstance(client, WebSocketClient) else made.channel


@pytest.mark.parametrize("client", [WebSocketClient(KEY), GrpcClient(KEY)], ids=["websocket", "grpc"])
async def test_streams_cut_at_random_have_their_whole_text_and_are_charged_once(client: Client, tmp_path: Path) -> None:
    """Of each stream either the client's connections break, and it comes back to any gateway, or those to pods do."""
    chance = random.Random(7)
    async with world(tmp_path) as (gates, wires, _):
        whole = Received()
        await client.read(at(gates[0], client), REQUEST, whole, 10**9)
        assert len(whole.tokens) == TOKENS and whole.done is not None
        streams = 12
        for number in range(streams):
            start, received = REQUEST | {"id": f"stream-{number}"}, Received()
            breaks_pods = bool(number % 2)
            for wire in wires:
                wire.cuts = [chance.randrange(300, EVENT_BYTES * TOKENS) for _ in range(breaks_pods)]
            for most in [10**9] if breaks_pods else cuts(chance, TOKENS // 2):
                made = gates[0] if breaks_pods else chance.choice(gates)
                if received.done is None:
                    await go_on(client, at(made, client), start, received, most)
            assert (received.tokens, received.done) == (whole.tokens, whole.done)
            for wire in wires:
                wire.cuts = []
        prompt, output, _ = whole.done
        assert await charged(gates) == (streams + 1, (streams + 1) * prompt, (streams + 1) * output)
        assert sum(wire.made for wire in wires) >= streams // 2
