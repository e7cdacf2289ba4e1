"""Tenants with weights, and an abuser, at two gateways and two engines: shares of tokens, and time to the first one.

Rounds with and without the abuser alternate, so that what else the machine does is in both. Of SLIPWAY_FAIRNESS_ROUNDS
four are ten minutes at 250 tokens a second.
"""

import asyncio
import base64
import contextlib
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from slipway_operator.manifests.pods import tenant_key
from slipway_operator.model.cluster import keys
from testkit import ROOT
from testkit.report import Bar, quantile, report, write
from testkit.until import until_async
from tests.gateway import tenants
from tests.gateway.spawned import SpawnedGateway
from tests.server.process import ServerProcess

pytestmark = [pytest.mark.integration, pytest.mark.extended, pytest.mark.timeout(1800)]

ROUNDS = int(os.environ.get("SLIPWAY_FAIRNESS_ROUNDS", "4"))
# Of all tenants, in each round: in tokens and not in seconds, so that a slow machine measures as much.
SETTLE, MEASURE = 3_000, 15_000
MODEL = ROOT / "examples" / "models" / "tiny-v1"
DEPLOYMENT = "default/chat"
SLOTS = 4  # of each engine
ABUSER = "abuser"
WEIGHTS = {"one": 1, "two": 2, "four": 4, ABUSER: 1}
# Requests at a time: each tenant always has some that wait, at both engines. The abuser has ten times as many as the
# other tenant of its weight.
AT_ONCE = {"one": 8, "two": 14, "four": 26, ABUSER: 80}
BODY = {"model": "chat", "prompt": "In the beginning", "temperature": 1, "stream": True}
# Of different lengths: slots that all get free at once are all given to one tenant, which then waits the longer.
TOKENS = (8, 24)
MOST_OFF, MOST_SLOWER = 0.05, 1.2


@dataclass
class Measured:
    """Of the rounds of one kind."""

    tokens: Counter[str] = field(default_factory=Counter)
    ttft_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    # What all tenants got until a request got its first token: the same wait, however fast the machine is then.
    ttft_tokens: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    seconds: float = 0.0

    def off(self, names: list[str]) -> dict[str, float]:
        """By how much of its share a tenant has more or less."""
        total, weights = sum(self.tokens[name] for name in names), sum(WEIGHTS[name] for name in names)
        return {name: self.tokens[name] / total / (WEIGHTS[name] / weights) - 1 for name in names}

    def p99(self, name: str) -> tuple[float, float]:
        """Of the time to the first token, in seconds and in tokens of all."""
        return quantile(self.ttft_s[name], 0.99), quantile(self.ttft_tokens[name], 0.99)


@dataclass
class Load:
    """Closed loops of all tenants. `into`: where what happens now is counted; None: nowhere."""

    session: aiohttp.ClientSession
    gateways: list[SpawnedGateway]
    keys: dict[str, str]
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    into: Measured | None = None
    failed: Counter[str] = field(default_factory=Counter)
    total: int = 0  # tokens of all

    @contextlib.asynccontextmanager
    async def running(self, *names: str) -> AsyncIterator[None]:
        loops = [asyncio.create_task(self._loop(name, place)) for name in names for place in range(AT_ONCE[name])]
        try:
            yield
            assert not any(loop.done() for loop in loops)
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)

    async def served(self, tokens: int) -> None:
        """When all tenants together have got so many more."""
        until = self.total + tokens
        await until_async(lambda: self.total >= until, f"{tokens} tokens", 900.0)

    async def _loop(self, name: str, place: int) -> None:
        while True:
            place += 1
            try:
                await self._request(name, self.gateways[place % len(self.gateways)])
            except (aiohttp.ClientError, OSError) as error:
                self.failed[f"{name}: {type(error).__name__}"] += 1
                await asyncio.sleep(0.2)

    async def _request(self, name: str, one: SpawnedGateway) -> None:
        sent_s, sent_at, first = time.monotonic(), self.total, True
        body = BODY | {"max_tokens": self.chance.randint(*TOKENS)}
        headers = tenants.bearer(self.keys[name])
        async with self.session.post(one.url + "/v1/completions", json=body, headers=headers) as answer:
            if answer.status != 200:
                self.failed[f"{name}: {answer.status}"] += 1
                await asyncio.sleep(0.2)
                return
            async for line in answer.content:
                if not line.startswith(b"data: {"):
                    continue
                if self.into is not None:
                    self.into.tokens[name] += 1
                    if first:
                        self.into.ttft_s[name].append(time.monotonic() - sent_s)
                        self.into.ttft_tokens[name].append(self.total - sent_at)
                self.total, first = self.total + 1, False


async def measure(load: Load, into: Measured) -> None:
    await load.served(SETTLE)
    load.into, began_s = into, time.monotonic()
    await load.served(MEASURE)
    load.into, into.seconds = None, into.seconds + time.monotonic() - began_s


def write_keys(folder: Path) -> tuple[str, str]:
    """Files by which gateways sign and servers verify, as the operator makes them."""
    made = (keys.new_key(os.urandom(36), time.time()),)
    release = tenant_key.release_secret("slipway-system", "keys", made)["data"][keys.KEYS]
    namespace = tenant_key.namespace_secret("default", made)["data"][keys.NAMESPACE_KEYS]
    for name, data in (("release", release), ("namespace", namespace)):
        (folder / name).write_bytes(base64.b64decode(data))
    return str(folder / "release"), str(folder / "namespace")


async def test_tenants_have_their_shares_beside_an_abuser(tmp_path: Path) -> None:
    by_name = {name: tenants.make_key(f"tenant{place}") for place, name in enumerate(WEIGHTS)}
    listed = {name: ([key], WEIGHTS[name]) for name, key in by_name.items()}
    release, namespace = write_keys(tmp_path)
    flags = ("--served-model-name=chat", f"--max-num-seqs={SLOTS}", "--prefix-caching=off")
    flags += (f"--tenant-keys-file={namespace}", f"--deployment={DEPLOYMENT}")
    alone, beside = Measured(), Measured()
    with ServerProcess(MODEL, *flags) as first, ServerProcess(MODEL, *flags) as second:
        urls = [one.wait_ready().url for one in (first, second)]
        gateways = [SpawnedGateway(tmp_path, name, urls, listed, {"tenant_keys_file": release}) for name in ("a", "b")]
        try:
            await asyncio.gather(*(one.start() for one in gateways))
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
                load = Load(session, gateways, by_name)
                victims = [name for name in WEIGHTS if name != ABUSER]
                async with load.running(*victims):
                    for _ in range(ROUNDS):
                        await measure(load, alone)
                        async with load.running(ABUSER):
                            await measure(load, beside)
            unproved = [one.metric("slipway_server_unproved_tenants_total") for one in (first, second)]
        finally:
            await asyncio.gather(*(one.kill() for one in gateways))
    assert sum(unproved) == 0 and not load.failed, (unproved, load.failed)
    conclude(alone, beside, victims)


def conclude(alone: Measured, beside: Measured, victims: list[str]) -> None:
    rows: list[dict[str, Any]] = []
    for kind, measured, names in (("alone", alone, victims), ("beside the abuser", beside, [*victims, ABUSER])):
        off = measured.off(names)
        rows += [
            {
                "rounds": kind,
                "tenant": name,
                "weight": WEIGHTS[name],
                "at_once": AT_ONCE[name],
                "tokens": measured.tokens[name],
                "off_its_share": round(off[name], 4),
                "requests": len(measured.ttft_s[name]),
                "ttft_p50_s": round(quantile(measured.ttft_s[name], 0.5), 3),
                "ttft_p99_s": round(measured.p99(name)[0], 3),
                "ttft_p99_tokens": measured.p99(name)[1],
            }
            for name in names
        ]
    most = max(abs(row["off_its_share"]) for row in rows)
    slower = {
        (name, unit): round(beside.p99(name)[place] / alone.p99(name)[place], 3)
        for name in victims
        for place, unit in enumerate(("seconds", "tokens of all"))
    }
    bars = [
        Bar("furthest from its share", most, f"<= {MOST_OFF}", most <= MOST_OFF),
        *(
            Bar(
                f"p99 of time to first token of {name}, times alone, in {unit}",
                value,
                f"<= {MOST_SLOWER}",
                value <= MOST_SLOWER,
            )
            for (name, unit), value in slower.items()
        ),
    ]
    write(report("fairness", rows, bars, seconds=round(alone.seconds + beside.seconds)))
    print(*rows, *bars, sep="\n")
    assert most <= MOST_OFF, rows
    # Seconds depend on what else the machine does. Without fairness the wait would be several times as long.
    assert all(value <= 2 * MOST_SLOWER for (_, unit), value in slower.items() if unit != "seconds"), slower
