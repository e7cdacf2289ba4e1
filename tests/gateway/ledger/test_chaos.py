"""Gateways are killed under load, and the ledger has what clients counted (SLIPWAY_LEDGER_KILLS: how often)."""

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from slipway_gateway.ledger.store import LedgerStore
from testkit import ROOT
from testkit.report import Bar, quantile, report, write
from testkit.until import until_async
from tests.gateway import tenants
from tests.gateway.spawned import SpawnedGateway
from tests.server.process import ServerProcess
from tests.support.postgres import Postgres

from .test_writer import empty

pytestmark = [pytest.mark.integration, pytest.mark.extended, pytest.mark.timeout(1800)]

KILLS = int(os.environ.get("SLIPWAY_LEDGER_KILLS", "30"))
SEED = int(os.environ.get("SEED", "1"))
MODEL = ROOT / "examples" / "models" / "tiny-v2"
CLIENTS = 10
TENANTS = 3
LOSS_S = 1.0  # as docs/tenants.md has it
COUNTS = ("requests", "input_tokens", "output_tokens")
Counts = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Ended:
    """A response, as its client counted it. `whole`: all of it came; else it is what a server may have done at most."""

    at_s: float
    gateway: str
    counts: Counts
    whole: bool = True
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class Kill:
    """`flushed_s`: when the last write began that the database took, else when it was started."""

    gateway: str
    at_s: float
    flushed_s: float


@dataclass
class Part:
    """What one connection brought of a stream. `position`: tokens up to the last event that has some."""

    last_id: str
    position: int = 0
    usage: dict[str, int] = field(default_factory=dict)
    whole: bool = False
    refused: str = ""

    async def read(self, answer: aiohttp.ClientResponse) -> None:
        if answer.status not in (200, 502, 503):  # of these two the next try may be another one
            self.refused = f"{answer.status} {await answer.text()}"
        if answer.status != 200:
            return
        async for line in answer.content:
            if line.startswith(b"id: "):
                self.last_id = line[4:].decode().strip()
            elif line.startswith(b"data: {"):
                event = msgspec.json.decode(line[6:])
                self.usage = event.get("usage") or self.usage
                self.position = int(self.last_id.split(".")[-3]) if event["choices"] else self.position
            elif line.startswith(b"data: [DONE]"):
                # Where only this line was left, the usage came on the connection before.
                assert self.position in (0, self.usage.get("completion_tokens")), "0: only the usage was left"
                self.whole = True


@dataclass
class Client:
    """It sends one request after the other with a key of its own, and takes up what breaks."""

    session: aiohttp.ClientSession
    gateways: list[SpawnedGateway]
    key: str
    chance: random.Random
    ended: list[Ended] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    async def run(self, over: asyncio.Event) -> None:
        while not over.is_set():
            prompt = " ".join(self.chance.choices(["In", "the", "beginning", "and", "it", "came"], k=8))
            body = {"model": "chat", "prompt": prompt, "max_tokens": self.chance.randint(10, 200), "temperature": 1}
            await (self._stream(body) if self.chance.random() < 0.7 else self._whole(body))

    def _gateway(self) -> SpawnedGateway:
        return self.chance.choice(self.gateways)

    def _most(self, body: dict[str, Any]) -> Counts:
        return 1, len(body["prompt"]), body["max_tokens"]

    async def _whole(self, body: dict[str, Any]) -> None:
        one = self._gateway()
        try:
            async with self._post(one, body) as answer:
                found = msgspec.json.decode(await answer.read())
                if answer.status != 200:
                    return self.refused.append(f"{answer.status} {found}")
        except aiohttp.ClientConnectorError:  # nothing was sent
            return await asyncio.sleep(0.1)
        except (aiohttp.ClientError, OSError):
            self.ended.append(Ended(time.monotonic(), one.name, self._most(body), whole=False))
            return await asyncio.sleep(0.1)
        self._count(one, found["usage"], resumed=False)

    async def _stream(self, body: dict[str, Any]) -> None:
        """Until its end, at whatever gateway."""
        body = body | {"stream": True, "stream_options": {"include_usage": True}}
        last_id, resumed = "", False
        usage: dict[str, int] = {}
        async with asyncio.timeout(120):
            while True:
                one, part = self._gateway(), Part(last_id)
                try:
                    async with self._post(one, body, last_id) as answer:
                        await part.read(answer)
                except aiohttp.ClientConnectorError:  # nothing was sent
                    await asyncio.sleep(0.1)
                    continue
                except (aiohttp.ClientError, OSError):
                    pass
                if part.refused:
                    return self.refused.append(part.refused)
                usage = part.usage or usage
                if part.whole:
                    return self._count(one, usage, resumed=resumed)
                last_id = part.last_id
                if last_id:
                    resumed = True
                else:  # nothing came that could be taken up: the next one is another response
                    self.ended.append(Ended(time.monotonic(), one.name, self._most(body), whole=False))
                await asyncio.sleep(0.1)

    def _count(self, one: SpawnedGateway, usage: dict[str, int], *, resumed: bool) -> None:
        counts = (1, usage["prompt_tokens"], usage["completion_tokens"])
        self.ended.append(Ended(time.monotonic(), one.name, counts, resumed=resumed))

    @asynccontextmanager
    async def _post(
        self, one: SpawnedGateway, body: dict[str, Any], last_id: str = ""
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = tenants.bearer(self.key) | ({"Last-Event-ID": last_id} if last_id else {})
        async with self.session.post(one.url + "/v1/completions", json=body, headers=headers) as answer:
            yield answer


async def kill_at_random(gateways: list[SpawnedGateway], chance: random.Random, over: asyncio.Event) -> list[Kill]:
    kills = []
    for _ in range(KILLS):
        await asyncio.sleep(chance.uniform(0.5, 3.0))
        one = chance.choice(gateways)
        await one.kill()
        kills.append(Kill(one.name, time.monotonic(), max(one.flushed_s(), one.started_s)))
        await one.start()
    over.set()
    return kills


def at_risk(ended: Ended, kills: list[Kill]) -> bool:
    """Whether the gateway was killed before it had written this."""
    ends = [kill for kill in kills if kill.gateway == ended.gateway and kill.at_s >= ended.at_s]
    return bool(ends) and ended.at_s > min(ends, key=lambda kill: kill.at_s).flushed_s


def total(found: list[Ended]) -> Counts:
    return tuple(sum(one.counts[place] for one in found) for place in range(3))  # type: ignore[return-value]


async def test_the_ledger_has_what_clients_counted_though_gateways_are_killed(server: Postgres, tmp_path: Path) -> None:
    empty(server.url)
    chance = random.Random(SEED)
    keys = [tenants.make_key(f"client{number:02}") for number in range(CLIENTS)]
    listed = {f"team-{number}": (keys[number::TENANTS], 1) for number in range(TENANTS)}
    with ServerProcess(MODEL, "--served-model-name", "chat").wait_ready() as model:
        gateways = [
            SpawnedGateway(tmp_path, name, [model.url], listed, {"ledger_url": server.url}) for name in ("one", "two")
        ]
        try:
            await asyncio.gather(*(one.start() for one in gateways))
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as session:
                clients = [Client(session, gateways, key, random.Random(SEED + n)) for n, key in enumerate(keys)]
                over, began_s = asyncio.Event(), time.monotonic()
                kills, *_ = await asyncio.gather(
                    kill_at_random(gateways, chance, over), *(client.run(over) for client in clients)
                )
            over_s = time.monotonic()
            await until_async(lambda: all(one.flushed_s() > over_s for one in gateways), "all is written")
        finally:
            await asyncio.gather(*(one.kill() for one in gateways))
    compare(clients, kills, LedgerStore(server.url), over_s - began_s)


def compare(clients: list[Client], kills: list[Kill], store: LedgerStore, seconds: float) -> None:
    try:
        rows = store.usage(0, 1 << 30)
    finally:
        store.close()
    written = {client.key: [0, 0, 0] for client in clients}
    by_id = {client.key.split("_")[1]: client.key for client in clients}
    for row in rows:
        for place, name in enumerate(COUNTS):
            written[by_id[row["key"]]][place] += row[name]
    wrong = []
    for client in clients:
        safe = total([one for one in client.ended if one.whole and not at_risk(one, kills)])
        most = total(client.ended)
        found = written[client.key]
        if not all(low <= value <= high for low, value, high in zip(safe, found, most, strict=True)):
            wrong.append({"safe": safe, "written": found, "most": most})
    everything = [one for client in clients for one in client.ended]
    whole = [one for one in everything if one.whole]
    counted, recorded = total(whole), tuple(map(sum, zip(*written.values(), strict=True)))
    lags = [kill.at_s - kill.flushed_s for kill in kills]
    row = {
        "seconds": round(seconds),
        "kills": len(kills),
        "responses": len(whole),
        "resumed": sum(one.resumed for one in whole),
        "broken": len(everything) - len(whole),
        "refused": sum(len(client.refused) for client in clients),
        "counted": dict(zip(COUNTS, counted, strict=True)),
        "ledger": dict(zip(COUNTS, recorded, strict=True)),
        "missing": dict(zip(COUNTS, map(int.__sub__, counted, recorded), strict=True)),
        "at_risk": dict(zip(COUNTS, total([one for one in whole if at_risk(one, kills)]), strict=True)),
        "unwritten_s": {"median": round(quantile(lags, 0.5), 3), "largest": round(max(lags), 3)},
        "wrong": wrong,
    }
    bars = [
        Bar("clients whose counts the ledger does not have", len(wrong), "0", not wrong),
        Bar("streams taken up at another gateway or again", row["resumed"], ">= 1", row["resumed"] >= 1),
        Bar("longest time unwritten at a kill, s", round(max(lags), 3), f"<= {LOSS_S}", max(lags) <= LOSS_S),
    ]
    write(report("ledger-chaos", [row], bars))
    print(row, *bars, sep="\n")
    assert not wrong and row["resumed"], row
    assert not row["refused"], [text for client in clients for text in client.refused][:5]
