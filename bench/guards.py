"""What an empty webhook adds to a request beside the webhook's own time, and what a guard of JSON adds.

`beyond`: the quantile with the guard, less that without it and that of calls of the webhook alone. `added`: that
of what each request took longer than those two beside it, which has the noise of all three. The load of the machine is
in the report: client, gateway and servers need three cores, and the figures of a busy machine are no promise.

python -m bench.guards        (half a minute; QUICK=1: some seconds)
"""

import asyncio
import contextlib
import gc
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import aiohttp
from aiohttp import web

from slipway_contracts.guards import GuardBuiltin, GuardJson, GuardSpec
from testkit.report import Bar, quantile, report, write
from tests.gateway.guards.webhooks import CHAT, chat, guard, guarded, reach_loopback, replying, streaming
from tests.gateway.harness import Gateway, gateway, table

Send = Callable[[], Any]
REQUESTS = 200 if os.environ.get("QUICK") else 2000
ROUNDS = 4  # the quietest of them counts, so that a burst of other work of the machine does not
LIMIT_MS = 2.0
NOISE_RATIO = 4.0  # of p99 to median without guards, above which a difference of quantiles says nothing
_TOKENS = ["token "] * 40


async def allow(request: web.Request) -> web.StreamResponse:
    """The empty webhook."""
    await request.read()
    return web.Response(body=b'{"action":"allow"}', content_type="application/json")


async def serve() -> None:
    """Model servers and the webhook, in a process of their own; writes their ports and ends with stdin."""
    ports = []
    for handler in (replying("fine"), streaming(_TOKENS), replying('{"a": 1}'), allow):
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ports.append(runner.addresses[0][1])
    print(json.dumps(ports), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


@contextlib.asynccontextmanager
async def servers() -> AsyncIterator[list[str]]:
    """URLs of a model server, one that streams, one with JSON, and a webhook."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.guards", "serve", stdin=pipe, stdout=pipe
    )
    assert process.stdout and process.stdin
    try:
        yield [f"http://127.0.0.1:{port}" for port in json.loads(await process.stdout.readline())]
    finally:
        process.stdin.close()
        await process.wait()


async def one(send: Send) -> float:
    """Seconds of one request."""
    began_s = time.perf_counter()
    async with await send() as response:
        await response.read()
        assert response.status == 200
    return time.perf_counter() - began_s


@dataclass
class Case:
    """What is compared: requests to `url` without guards and with `guards`. `own`: calls the guard without a gateway,
    whose time is not the gateway's; None: the guard is in the gateway."""

    name: str
    url: str
    guards: list[GuardSpec]
    body: dict[str, Any]
    own: Send | None = None
    has_bar: bool = False


@dataclass
class Round:
    """Seconds of requests by kind. `added`: of each guarded request beyond the plain one and the call beside it."""

    plain: list[float] = field(default_factory=list)
    guarded: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    cpu_s: dict[str, float] = field(default_factory=lambda: {"plain": 0.0, "guarded": 0.0})  # of this process
    load: float = 0.0

    @property
    def added(self) -> list[float]:
        own = self.own or [0.0] * len(self.plain)
        return [
            guarded_s - plain_s - own_s for guarded_s, plain_s, own_s in zip(self.guarded, self.plain, own, strict=True)
        ]


async def round_of(gate: Gateway, case: Case, requests: int) -> Round:
    """Requests in turns, one of each kind after the other: whatever else the machine does is in all of them.

    What came first in a process, and what opens connections, is left out.
    """
    tables = {
        "plain": table(1, ("r1", 100, [case.url])),
        "guarded": guarded(case.guards, ("r1", 100, [case.url])),
    }
    send, found, warm = partial(gate.post, case.body, CHAT), Round(), max(5, requests // 10)
    for number in range(requests + warm):
        kept = number >= warm
        for kind, shown in tables.items():
            gate.balancer.publish(shown)
            cpu_s = time.process_time()
            took_s = await one(send)
            if kept:
                found.cpu_s[kind] += time.process_time() - cpu_s
                (found.plain if kind == "plain" else found.guarded).append(took_s)
        if case.own is not None:
            took_s = await one(case.own)
            if kept:
                found.own.append(took_s)
    found.load = os.getloadavg()[0]
    return found


async def measured(gate: Gateway, case: Case) -> dict[str, Any]:
    """The row of a case: of its rounds, that in which requests without guards were the fastest in their p99."""
    gc.disable()  # a collection of this process, which is client and gateway, is no time of the guard
    try:
        rounds = [await round_of(gate, case, REQUESTS // ROUNDS) for _ in range(ROUNDS)]
    finally:
        gc.enable()
    quiet = min(rounds, key=lambda one: quantile(one.plain, 0.99))
    row: dict[str, Any] = {"case": case.name, "requests": len(quiet.plain), "load": round(quiet.load, 1)}
    row["added_cpu_ms"] = round(1000 * (quiet.cpu_s["guarded"] - quiet.cpu_s["plain"]) / len(quiet.plain), 2)
    for share in (0.5, 0.99):
        at = f"p{share * 100:.0f}_ms"
        values = {"plain": quiet.plain, "guarded": quiet.guarded, "webhook": quiet.own}
        row |= {f"{kind}_{at}": round(1000 * quantile(times, share), 2) for kind, times in values.items() if times}
        row[f"added_{at}"] = round(1000 * quantile(quiet.added, share), 2)
        row[f"beyond_{at}"] = round(
            1000 * (quantile(quiet.guarded, share) - quantile(quiet.plain, share) - quantile(quiet.own, share, 0.0)), 2
        )
    row["beyond_p99_ms_of_rounds"] = [
        round(1000 * (quantile(one.guarded, 0.99) - quantile(one.plain, 0.99) - quantile(one.own, 0.99, 0.0)), 2)
        for one in rounds
    ]
    return row


def cases(urls: list[str], client: aiohttp.ClientSession) -> list[Case]:
    whole, streams, valid, hook = urls
    call = b'{"version":1,"texts":[{"path":"messages[0].content","text":"hello"}]}'
    own = partial(client.post, f"{hook}/guard", data=call)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    formats = {
        "json_object": {"type": "json_object"},
        "json_schema": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
    }
    json_guard = GuardSpec("json", ("Output",), builtin=GuardBuiltin(json=GuardJson()), timeout_milliseconds=5000)
    return [
        Case("before the model", whole, [guard(hook, ["Input"])], chat("hello"), own, has_bar=True),
        Case("after the model", whole, [guard(hook, ["Output"])], chat("hello"), own, has_bar=True),
        Case("a stream of 40 tokens", streams, [guard(hook, ["Output"])], chat("hello", stream=True), own),
        *(Case(name, valid, [json_guard], chat("hello", response_format=wish)) for name, wish in formats.items()),
    ]


async def run() -> int:
    began_load = os.getloadavg()[0]
    async with servers() as urls, gateway() as gate, aiohttp.ClientSession() as client:
        reach_loopback(gate)
        finders = gate.edge._forwarding.guards._finders
        finders.prepare(GuardBuiltin(json=GuardJson()))
        while finders._loading:
            await asyncio.gather(*finders._loading)
        compared = cases(urls, client)
        rows = [await measured(gate, case) for case in compared]
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    limit = f"<= {LIMIT_MS:g} ms beyond its own time"
    bars = [
        Bar(
            f"added p99 of an empty webhook {row['case']}",
            row["beyond_p99_ms"],
            limit,
            row["beyond_p99_ms"] <= LIMIT_MS,
        )
        for case, row in zip(compared, rows, strict=True)
        if case.has_bar
    ]
    noise = max(
        row["plain_p99_ms"] / row["plain_p50_ms"] for case, row in zip(compared, rows, strict=True) if case.has_bar
    )
    quiet = "the machine was quiet: p99 to median of requests without guards"
    bars.append(Bar(quiet, round(noise, 1), f"<= {NOISE_RATIO:g}", noise <= NOISE_RATIO))
    for bar in bars:
        print(bar)
    loads = {"load_before": round(began_load, 1), "load_after": round(os.getloadavg()[0], 1)}
    print("load of the machine:", loads)
    write(report("guards", rows, bars, **loads))
    return 0 if all(bar.ok for bar in bars) else 1


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        asyncio.run(serve())
    else:
        sys.exit(asyncio.run(run()))
