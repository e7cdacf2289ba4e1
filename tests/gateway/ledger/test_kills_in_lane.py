"""A gateway whose fast lane serves tenants is killed under load: its ledger has what clients counted, to the token."""

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from slipway_gateway.ledger.store import LedgerStore
from testkit.until import until_async
from tests.gateway import tenants
from tests.gateway.harness import upstream
from tests.gateway.spawned import SpawnedGateway
from tests.gateway.test_fast_lane import ANSWER, PATH
from tests.plane.native import needs_plane

pytestmark = [pytest.mark.integration, pytest.mark.extended, pytest.mark.timeout(600), needs_plane]

CLIENTS, KILLS = 8, 10
COUNTS = ("requests", "input_tokens", "output_tokens")


async def serve(request: web.Request) -> web.Response:
    read, written = json.loads(await request.read())["want"]
    return web.json_response(ANSWER | {"usage": {"prompt_tokens": read, "completion_tokens": written}})


@dataclass
class Client:
    """One key. `ended`: responses by the time at which the client had them. `most`: what its servers may have done."""

    key: str
    chance: random.Random
    ended: list[tuple[float, Counter[str]]] = field(default_factory=list)
    most: Counter[str] = field(default_factory=Counter)

    async def run(self, gateway: SpawnedGateway, over: asyncio.Event) -> None:
        async with aiohttp.ClientSession(headers=tenants.bearer(self.key)) as session:
            while not over.is_set():
                want = [self.chance.randrange(1, 60), self.chance.randrange(1, 40)]
                counts = Counter(dict(zip(COUNTS, (1, *want), strict=True)))
                self.most += counts
                try:
                    async with session.post(gateway.url + PATH, json={"model": "chat", "want": want}) as done:
                        assert done.status == 200, await done.text()
                        await done.read()
                    self.ended.append((time.monotonic(), counts))
                except aiohttp.ClientError:
                    await asyncio.sleep(0.05)


async def test_a_gateway_that_is_killed_under_load_loses_and_doubles_nothing_that_was_written(tmp_path: Path) -> None:
    clients = [Client(tenants.make_key(f"client{n:02}"), random.Random(n)) for n in range(CLIENTS)]
    listed = {f"team-{n}": ([client.key], 1) for n, client in enumerate(clients)}
    url, chance = f"sqlite:///{tmp_path}/ledger.db", random.Random(1)
    unsafe: list[tuple[float, float]] = []  # from the beginning of the last write to the kill
    async with upstream(serve) as server:
        gateway = SpawnedGateway(tmp_path, "one", [server.url], listed, {"ledger_url": url, "plane": "required"})
        try:
            for _ in range(KILLS):
                await gateway.start()
                over = asyncio.Event()
                running = [asyncio.create_task(client.run(gateway, over)) for client in clients]
                await until_async(lambda: gateway.flushed_s() > 0)
                await asyncio.sleep(chance.uniform(0.3, 1.2))
                await gateway.kill()
                unsafe.append((gateway.flushed_s(), time.monotonic()))
                over.set()
                await asyncio.gather(*running)
        finally:
            await gateway.kill()
    store, found = LedgerStore(url), dict[str, Counter[str]]()
    for row in store.usage(0, 1 << 30):
        found.setdefault(row["tenant"], Counter()).update({name: row[name] for name in COUNTS})
    store.close()
    for n, client in enumerate(clients):
        safe = Counter[str]()
        for at_s, counts in client.ended:
            # A client has its response a moment before it is charged.
            if not any(begin_s - 0.1 <= at_s <= end_s for begin_s, end_s in unsafe):
                safe += counts
        assert all(safe[name] <= found[f"team-{n}"][name] <= client.most[name] for name in COUNTS), n
    ended = sum(len(client.ended) for client in clients)
    assert ended > 300
    # It is near to what clients have: most of it was written.
    assert sum(one["requests"] for one in found.values()) > 0.5 * ended
