"""What an empty webhook adds to a request beside the webhook's own time, and to the CPU time of gateway and client.

python -m bench.guards        (half a minute; QUICK=1: some seconds)
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import aiohttp
from aiohttp import web

from testkit.report import Bar, quantile, report, write
from tests.gateway.guards.webhooks import CHAT, chat, guard, guarded, reach_loopback, replying, streaming
from tests.gateway.harness import Gateway, gateway, table

REQUESTS = 200 if os.environ.get("QUICK") else 2000
LIMIT_MS = 2.0
_TOKENS = ["token "] * 40


async def allow(request: web.Request) -> web.StreamResponse:
    """The empty webhook."""
    await request.read()
    return web.Response(body=b'{"action":"allow"}', content_type="application/json")


async def serve() -> None:
    """Model servers and the webhook, in a process of their own; writes their ports and ends with stdin."""
    ports = []
    for handler in (replying("fine"), streaming(_TOKENS), allow):
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
    """URLs of a model server, one that streams, and a webhook."""
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


async def seconds(send: Callable[[], Any], times: int) -> list[float]:
    """How long each of some requests takes, one after the other."""
    found = []
    for _ in range(times + times // 10):
        began_s = time.perf_counter()
        async with await send() as response:
            await response.read()
            assert response.status == 200
        found.append(time.perf_counter() - began_s)
    return found[-times:]  # without those that open connections


async def measured(gate: Gateway, urls: list[str], client: aiohttp.ClientSession) -> list[dict[str, Any]]:
    whole, streams, hook = urls
    call = b'{"version":1,"texts":[{"path":"messages[0].content","text":"hello"}]}'

    async def direct() -> Any:
        return await client.post(f"{hook}/guard", data=call)

    rows = []
    cases = (("before the model", whole, ["Input"], False), ("after the model", whole, ["Output"], False),
             ("a stream of 40 tokens", streams, ["Output"], True))  # fmt: skip
    for name, url, stages, stream in cases:
        found: dict[str, list[float]] = {"plain": [], "guarded": [], "webhook": []}
        cpu_s = dict.fromkeys(found, 0.0)
        for _ in range(4):  # in turns, so that other work of the machine is in all of them
            for kind, guards in (("plain", []), ("guarded", [guard(hook, stages)])):
                gate.balancer.publish(guarded(guards, ("r1", 100, [url])) if guards else table(1, ("r1", 100, [url])))
                send, began_s = partial(gate.post, chat("hello", stream=stream), CHAT), time.process_time()
                found[kind] += await seconds(send, REQUESTS // 4)
                cpu_s[kind] += time.process_time() - began_s
            found["webhook"] += await seconds(direct, REQUESTS // 4)
        row: dict[str, Any] = {"case": name}
        row["added_cpu_ms"] = round(1000 * (cpu_s["guarded"] - cpu_s["plain"]) / REQUESTS / 1.1, 2)
        for share in (0.5, 0.99):
            plain, with_guard, own = (1000 * quantile(found[kind], share) for kind in ("plain", "guarded", "webhook"))
            at = f"p{share * 100:.0f}"
            row |= {f"plain_{at}_ms": round(plain, 2), f"guarded_{at}_ms": round(with_guard, 2)}
            row |= {f"webhook_{at}_ms": round(own, 2), f"added_{at}_ms": round(with_guard - plain - own, 2)}
        rows.append(row)
    return rows


async def run() -> int:
    async with servers() as urls, gateway() as gate, aiohttp.ClientSession() as client:
        reach_loopback(gate)
        rows = await measured(gate, urls, client)
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    limit = f"<= {LIMIT_MS:g} ms beyond its own time"
    bars = [
        Bar(f"added p99 of an empty webhook {row['case']}", row["added_p99_ms"], limit, row["added_p99_ms"] <= LIMIT_MS)
        for row in rows[:2]
    ]
    for bar in bars:
        print(bar)
    write(report("guards", rows, bars))
    return 0 if all(bar.ok for bar in bars) else 1


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        asyncio.run(serve())
    else:
        sys.exit(asyncio.run(run()))
