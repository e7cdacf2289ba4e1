"""What mirroring costs the clients whose requests are mirrored.

    python -m bench.shadow             (a minute; QUICK=1: a quarter of it)

One real gateway, a stable server of two pods and a canary; servers are small and real: they stream events as a model
does and compute nothing. Blocks with and without the mirror alternate in one process of the gateway: it mirrors by a
header, which clients send or not. What mirrored requests cost elsewhere is not measured: canary and second pod run
where no other process wants the processor, as they have nodes of their own in a cluster. The others go before all other
work on the machine, where the system allows that (root). What is added is the median over pairs of blocks, with a
bootstrapped interval.
Prints a table, writes build/reports/shadow.json, exits 1 when a bar does not hold.
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
import numpy as np
import numpy.typing as npt
from aiohttp import web

from testkit.report import Bar, report, write

ROOT = Path(__file__).resolve().parents[1]
QUICK = bool(os.environ.get("QUICK"))
RATE = 100  # requests a second, on the clock, whether earlier ones ended or not
PERCENTAGES = (20, 100)
PAIRS = 3 if QUICK else 10  # of blocks, for each percentage
BLOCK_S, SETTLE_S = 1.0, 0.2  # a block, and its beginning that does not count: what the last one left is still there
EVENTS, GAP_S = 10, 0.01
LIMIT_MS = 1.0
DRAWS = 2000
QUANTILES = (0.5, 0.99)
MEASURES = ("ttft", "e2e")
BODY = b'{"model":"m","stream":true,"temperature":0,"messages":[{"role":"user","content":"hello"}]}'
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"word"}}]}\n\n'

Floats = npt.NDArray[np.float64]


# -- the servers


async def answer(request: web.Request) -> web.StreamResponse:
    """A stream of words; a request to score one, or for no stream, gets a short answer."""
    body = await request.read()
    if b'"prompt_logprobs"' in body or b'"stream":false' in body:
        return web.json_response({"choices": [{"index": 0, "message": {"content": "word"}}]})
    out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await out.prepare(request)
    for _ in range(EVENTS):
        await out.write(EVENT)
        await asyncio.sleep(GAP_S)
    await out.write(b"data: [DONE]\n\n")
    return out


def hurry() -> bool:
    """This process and those that it starts go before all others; False where that is not allowed."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        return False
    return True


async def serve(aside: bool) -> None:
    if aside:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


@contextlib.contextmanager
def server(*arguments: str) -> Iterator[str]:
    """Its URL."""
    command = [sys.executable, "-m", "bench.shadow", "serve", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def routes(first: str, second: str, canary: str, percentage: int) -> dict[str, Any]:
    """All clients are the first pod's: the second is there to measure how much stable differs from itself."""
    stable = {"revision": "stable", "weight": 100, "endpoints": [first]}
    # A listed revision of stable's own, so that clients never load the pod that runs aside.
    floor = {"revision": "stable-baseline", "weight": 0, "endpoints": [second]}
    tested = {"revision": "canary", "weight": 0, "endpoints": [canary]}
    match = [{"name": "x-mirror", "exact": "1"}]
    mirror = {"name": "m", "revision": "canary", "percentage": percentage, "match": match}
    return {"models": {"m": {"backends": [tested, stable, floor], "mirrorRoutes": [mirror]}}}


@contextlib.contextmanager
def gateway(table: dict[str, Any], *flags: str) -> Iterator[tuple[str, str]]:
    """URLs of its API and of its admin port."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        path, log = Path(folder) / "routes.json", Path(folder) / "gateway.log"
        path.write_text(json.dumps(table))
        ports = ["--host=127.0.0.1", "--port=0", "--admin-host=127.0.0.1", "--admin-port=0", "--drain-delay=0"]
        command = [sys.executable, "-m", "slipway_gateway", "--routes", str(path), *ports, *flags]
        # A file, not a pipe: no task reads it under load, and a full pipe stops its writer.
        process = stack.enter_context(subprocess.Popen(command, cwd=ROOT, stderr=stack.enter_context(log.open("w"))))
        stack.callback(process.terminate)
        while "routes file loaded" not in log.read_text():
            if process.poll() is not None:
                raise RuntimeError(f"the gateway does not start: {log.read_text()}")
            time.sleep(0.05)
        listening = next(json.loads(line) for line in log.read_text().splitlines() if "listening" in line)
        yield tuple(f"http://{host}:{port}" for host, port in (listening["api"][0], listening["admin"][0]))  # type: ignore[misc]


# -- the load


async def ask(client: aiohttp.ClientSession, url: str, mirrored: bool) -> tuple[float, float]:
    """Milliseconds to the first event and to the end; infinite when it failed, for a failure is no fast answer."""
    began = time.perf_counter()
    try:
        headers = {"X-Mirror": "1"} if mirrored else {}
        async with client.post(f"{url}/v1/chat/completions", data=BODY, headers=headers) as reply:
            await reply.content.readline()
            first = time.perf_counter()
            received = await reply.read()
            good = reply.status == 200 and received.endswith(b"[DONE]\n\n")
            return ((first - began) * 1e3, (time.perf_counter() - began) * 1e3) if good else (math.inf, math.inf)
    except (aiohttp.ClientError, TimeoutError):
        return math.inf, math.inf


async def block(client: aiohttp.ClientSession, url: str, mirrored: bool) -> Floats:
    """One block of requests on the clock, (measures, requests)."""
    began, tasks = time.perf_counter(), []
    for n in range(int(RATE * (BLOCK_S + SETTLE_S))):
        await asyncio.sleep(max(0.0, began + n / RATE - time.perf_counter()))
        tasks.append(asyncio.create_task(ask(client, url, mirrored)))
    return np.array(await asyncio.gather(*tasks)).T[:, int(RATE * SETTLE_S) :]


async def alternate(client: aiohttp.ClientSession, url: str) -> tuple[Floats, Floats]:
    """Without the mirror and with it, (pairs, measures, requests) each; which comes first alternates too."""
    await block(client, url, True)
    found: tuple[list[Floats], list[Floats]] = ([], [])
    for pair in range(PAIRS):
        for mirrored in (False, True) if pair % 2 else (True, False):
            found[mirrored].append(await block(client, url, mirrored))
    return np.array(found[False]), np.array(found[True])


async def mirrored_by_result(client: aiohttp.ClientSession, admin: str) -> dict[str, int]:
    """What mirrored requests came to."""
    async with client.get(f"{admin}/metrics") as reply:
        lines = (await reply.text()).splitlines()
    rows = [line for line in lines if line.startswith("slipway_gateway_mirror_total{")]
    return {row.partition('result="')[2].partition('"')[0]: int(float(row.rpartition(" ")[2])) for row in rows}


# -- what came of it


def added(off: Floats, on: Floats, quantile: float) -> tuple[float, float, float]:
    """Milliseconds that the mirror adds at a quantile, and their 95 % interval; off and on are (pairs, requests).

    The median over pairs: a machine that stands still for a moment, as shared ones do, spoils one of them, not all.
    """
    differ = _quantile(on, quantile) - _quantile(off, quantile)
    draws = np.random.default_rng(1).integers(0, differ.size, size=(DRAWS, differ.size))
    low, high = np.quantile(np.median(differ[draws], axis=1), (0.025, 0.975))
    return float(np.median(differ)), float(low), float(high)


def _quantile(values: Floats, quantile: float) -> Floats:
    """Of each block."""
    return np.asarray(np.quantile(values, quantile, axis=1, method="higher"))


def median(values: Floats, quantile: float) -> float:
    """Of a quantile of each block."""
    return float(np.median(_quantile(values, quantile)))


def rows_of(percentage: int, off: Floats, on: Floats, results: dict[str, int]) -> list[dict[str, Any]]:
    rows = []
    for index, measure in enumerate(MEASURES):
        for quantile in QUANTILES:
            plain, mirrored = off[:, index], on[:, index]
            value, low, high = added(plain, mirrored, quantile)
            rows.append({
                "percentage": percentage, "measure": f"{measure} p{quantile * 100:g}", "requests": plain.size,
                "off_ms": median(plain, quantile), "on_ms": median(mirrored, quantile),
                "added_ms": value, "low_ms": low, "high_ms": high, "mirrored": results,
            })  # fmt: skip
    return rows


def bars(rows: list[dict[str, Any]]) -> list[Bar]:
    """The promise: added p99 below a millisecond, and copies that were really sent."""
    made = []
    for row in rows:
        if row["measure"] == "ttft p99":
            bar, value = f"added p99 of the first event, {row['percentage']} % mirrored, ms", row["added_ms"]
            made.append(Bar(bar, round(value, 3), f"< {LIMIT_MS:g}", value < LIMIT_MS))
            wanted, sent = row["requests"] * row["percentage"] / 100, sum(row["mirrored"].values())
            reached = sum(row["mirrored"].get(name, 0) for name in ("answered", "compared"))
            held = sent >= 0.8 * wanted and reached >= 0.9 * sent
            made.append(Bar(f"copies that were answered, {row['percentage']} % mirrored", reached, "most", held))
    return made


async def measure() -> list[dict[str, Any]]:
    rows = []
    with server() as first, server("aside") as second, server("aside") as canary:
        for percentage in PERCENTAGES:
            with gateway(routes(first, second, canary, percentage)) as (url, admin):
                async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
                    off, on = await alternate(client, url)
                    await asyncio.sleep(1.0)
                    rows += rows_of(percentage, off, on, await mirrored_by_result(client, admin))
    return rows


def main() -> bool:
    first = hurry()
    rows = asyncio.run(measure())
    for row in rows:
        interval = f"[{row['low_ms']:+.2f}, {row['high_ms']:+.2f}]"
        latencies = (
            f"{row['percentage']:>3} % mirrored  {row['measure']:<8}  off {row['off_ms']:.2f}  on {row['on_ms']:.2f}"
        )
        print(f"{latencies}  added {row['added_ms']:+.2f} {interval} ms")
    print(f"copies: {rows[-1]['mirrored']}")
    made = bars(rows)
    for bar in made:
        print(bar)
    settings = {
        "rate_per_s": RATE,
        "pairs": PAIRS,
        "block_s": BLOCK_S,
        "events": EVENTS,
        "gap_s": GAP_S,
        "first": first,
    }
    write(report("shadow", rows, made, settings=settings))
    return all(bar.ok for bar in made)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(serve(aside="aside" in sys.argv))
    else:
        sys.exit(0 if main() else 1)
