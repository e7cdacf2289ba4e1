"""What the gateway costs: latency added to a direct call, and streams at a time in one process.

    python -m bench.gateway            (QUICK=1 for a short run)

Upstream, gateway and load are three processes on this machine; direct and routed requests alternate, so that noise
hits both. The gateway's own CPU time per request is the number to trust on a machine that has other work to do.
Prints a table, writes build/reports/gateway.json, exits 1 when a bar does not hold.
"""

import asyncio
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from testkit.report import Bar, report, write
from testkit.world import proc

ROOT = Path(__file__).resolve().parents[1]
QUICK = bool(os.environ.get("QUICK"))
RATES = (100, 500)
SECONDS = 3 if QUICK else 15
STREAMS = 500 if QUICK else 2000
BODY = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}'
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"word"}}]}\n\n'


# -- the upstream process


async def answer(request: web.Request) -> web.StreamResponse:
    """`?events=N&gap=S`: a stream of N events."""
    await request.read()
    out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await out.prepare(request)
    for _ in range(int(request.query.get("events", 3))):
        await out.write(EVENT)
        await asyncio.sleep(float(request.query.get("gap", 0)))
    await out.write(b"data: [DONE]\n\n")
    return out


async def serve_upstream() -> None:
    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


# -- the run


@contextlib.contextmanager
def processes() -> Iterator[tuple[str, str, int]]:
    """URLs of the upstream and of the gateway, and the gateway's process id."""
    with tempfile.TemporaryDirectory() as folder:
        first = subprocess.Popen(
            [sys.executable, "-m", "bench.gateway", "upstream"], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert first.stdout
        upstream = f"http://127.0.0.1:{first.stdout.readline().strip()}"
        routes = Path(folder) / "routes.json"
        routes.write_text(json.dumps({"models": {"m": {"backends": [{"endpoints": [upstream]}]}}}))
        ports = ["--host=127.0.0.1", "--port=0", "--admin-host=127.0.0.1", "--admin-port=0", "--drain-delay=0"]
        command = [sys.executable, "-m", "slipway_gateway", "--routes", str(routes), *ports]
        log = Path(folder) / "gateway.log"
        # A file, not a pipe: no task reads it under load, and a full pipe stops its writer.
        second = subprocess.Popen(command, cwd=ROOT / "gateway", stderr=log.open("w"))
        lines: list[str] = []
        while not any("routes file loaded" in line for line in lines):
            time.sleep(0.05)
            lines = log.read_text().splitlines()
        host, port = next(json.loads(line)["api"][0] for line in lines if "listening" in line)
        try:
            yield upstream, f"http://{host}:{port}", second.pid
        finally:
            for process in (second, first):
                process.terminate()
                process.communicate()


async def first_byte_s(client: aiohttp.ClientSession, url: str) -> float:
    """Infinite when it failed: a failure is no fast answer."""
    started = time.perf_counter()
    try:
        async with client.post(f"{url}/v1/chat/completions", data=BODY) as reply:
            await reply.content.readline()
            took = time.perf_counter() - started
            await reply.read()
            return took if reply.status == 200 else math.inf
    except (aiohttp.ClientError, TimeoutError):
        return math.inf


async def latency(client: aiohttp.ClientSession, urls: tuple[str, str], rate: int, pid: int) -> dict[str, Any]:
    """Open loop: requests start on the clock, whether earlier ones ended or not."""
    tasks: tuple[list[asyncio.Task[float]], list[asyncio.Task[float]]] = ([], [])
    started, before = time.perf_counter(), proc.cpu_s(pid)
    for n in range(rate * SECONDS):
        await asyncio.sleep(max(0.0, started + n / rate - time.perf_counter()))
        # Direct requests are extra load beside the routed ones: at most 50 a second.
        tasks[1].append(asyncio.create_task(first_byte_s(client, urls[1])))
        if n % max(1, rate // 50) == 0:
            tasks[0].append(asyncio.create_task(first_byte_s(client, urls[0])))
    direct, routed = [sorted([await task for task in each]) for each in tasks]
    row: dict[str, Any] = {
        "rate_per_s": rate,
        "gateway_cpu_ms_per_request": (proc.cpu_s(pid) - before) / len(routed) * 1000,
    }
    row["failed"] = routed.count(math.inf)
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        ours, theirs = (each[int(len(each) * share)] * 1000 for each in (routed, direct))
        row |= {f"direct_{name}_ms": theirs, f"gateway_{name}_ms": ours, f"added_{name}_ms": ours - theirs}
        row[f"ratio_{name}"] = ours / theirs
    return row


async def streams(client: aiohttp.ClientSession, url: str, pid: int) -> dict[str, Any]:
    """All open at once: each sends an event a second."""
    events = 5 if QUICK else 20
    open_now = peak = broken = 0

    async def one(n: int) -> float:
        nonlocal open_now, peak, broken
        await asyncio.sleep(n / 400)
        async with client.post(f"{url}/v1/completions?events={events}&gap=1", data=BODY) as reply:
            open_now += 1
            peak = max(peak, open_now)
            received = await reply.read()
            open_now -= 1
        broken += reply.status != 200 or received.count(EVENT) != events or not received.endswith(b"[DONE]\n\n")
        return time.perf_counter()

    before = proc.cpu_s(pid)
    started = time.perf_counter()
    await asyncio.gather(*(one(n) for n in range(STREAMS)))
    took = time.perf_counter() - started
    return {
        "streams": STREAMS,
        "peak_open": peak,
        "broken": broken,
        "gateway_cpu_share": (proc.cpu_s(pid) - before) / took,
        "gateway_rss_mb": proc.rss_bytes(pid) / (1 << 20),
    }


def conclude(rows: list[dict[str, Any]]) -> bool:
    fast, many = rows[-2], rows[-1]
    p50, p99, peak, broken = fast["added_p50_ms"], fast["added_p99_ms"], many["peak_open"], many["broken"]
    bars = [
        Bar("added TTFT p50 at 500 req/s, ms", p50, "<1", p50 < 1),
        Bar("added TTFT p99 at 500 req/s, ms", p99, "<5", p99 < 5),
        Bar("concurrent streams in one process", peak, f">={STREAMS}", peak >= STREAMS),
        Bar("broken streams", broken, "<=0", not broken),
    ]
    print(*bars, sep="\n")
    write(report("gateway", rows, bars, load=os.getloadavg()[0]))
    return all(bar.ok for bar in bars)


async def main() -> bool:
    rows: list[dict[str, Any]] = []
    with processes() as (upstream, gateway, pid):
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
            await asyncio.gather(*(first_byte_s(client, url) for url in (upstream, gateway) for _ in range(50)))
            for rate in RATES:
                rows.append(await latency(client, (upstream, gateway), rate, pid))
            rows.append(await streams(client, gateway, pid))
    for row in rows:
        print("  ".join(f"{name}={round(value, 2)}" for name, value in row.items()))
    return conclude(rows)


if __name__ == "__main__":
    if sys.argv[1:] == ["upstream"]:
        asyncio.run(serve_upstream())
    else:
        sys.exit(0 if asyncio.run(main()) else 1)
