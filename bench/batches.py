"""What a batch costs the requests beside it.

    python -m bench.batches             (six minutes; QUICK=1: two; ARGS=--help)

Real processes: the engine with a small model, a gateway, and slipway-jobs with SQLite. Requests come at random times,
each a whole chat completion. Blocks without and with a batch alternate; the batch has more lines than it can send
meanwhile, and is cancelled at the end of its block. All of them share the cores of the machine.
Prints a table, writes build/reports/batches.json, exits 1 when a bar does not hold.
"""

import argparse
import asyncio
import base64
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import numpy as np

from bench.shadow import gateway
from devcluster.ports import reserve_port
from testkit import ROOT
from testkit.report import Bar, report, write
from testkit.world.program import Launch, running

QUICK = bool(os.environ.get("QUICK"))
MODEL = ROOT / "examples/models/tiny-v2"
LIMIT = 1.1  # times the p99 without a batch
START_S = 120.0
SETTLE_S = 2.0  # of a block, that does not count
LINES = 4000
DRAWS = 2000
PROMPT = "Write a long story about a town by the sea, its people and the ships that come there. "


@dataclass(slots=True)
class Block:
    """Milliseconds of each request that was answered, how many failed, and lines of the batch that ended meanwhile."""

    took_ms: list[float] = field(default_factory=list)
    failed: int = 0
    lines: int = 0


@contextlib.contextmanager
def world(folder: Path, slots: int) -> Iterator[str]:
    """The URL of the gateway."""
    serving, probe, jobs, admin = (reserve_port() for _ in range(4))
    keys = folder / "tenant.json"
    key = base64.urlsafe_b64encode(os.urandom(32)).decode()
    keys.write_text(json.dumps({"keys": [{"id": "k1", "key": key}]}))
    server = (
        *(sys.executable, "-m", "slipway_server", "--model", str(MODEL), "--served-model-name", "m"),
        *("--host", "127.0.0.1", "--port", str(serving), "--probe-port", str(probe), "--max-num-seqs", "16"),
    )
    table = {
        "models": {"m": {"backends": [{"revision": "r1", "weight": 100, "endpoints": [f"http://127.0.0.1:{serving}"]}]}}
    }
    flags = (f"--jobs-url=http://127.0.0.1:{jobs}", f"--tenant-keys-file={keys}", f"--batch-slots={slots}")
    with (
        running(
            Launch(server, {}, f"http://127.0.0.1:{serving}", f"http://127.0.0.1:{probe}/readyz"),
            folder / "server.log",
            START_S,
        ),
        gateway(table, *flags) as (url, _),
        running(
            Launch(
                (
                    *(sys.executable, "-m", "slipway_jobs", f"--gateway-url={url}", f"--keys-file={keys}"),
                    *(f"--database-url=sqlite:///{folder}/jobs.db", "--host=127.0.0.1", f"--port={jobs}"),
                    *("--admin-host=127.0.0.1", f"--admin-port={admin}"),
                ),
                {},
                f"http://127.0.0.1:{jobs}",
                f"http://127.0.0.1:{admin}/readyz",
            ),
            folder / "jobs.log",
            START_S,
        ),
    ):
        yield url


def body(number: int, tokens: int, words: int) -> dict[str, object]:
    prompt = f"{number}: {PROMPT * (words // 17 + 1)}"
    messages = [{"role": "user", "content": prompt}]
    return {"model": "m", "messages": messages, "max_tokens": tokens, "ignore_eos": True}


async def send(client: aiohttp.ClientSession, url: str, number: int, block: Block, due_s: float) -> None:
    """Its time counts from when it was due."""
    try:
        async with client.post(f"{url}/v1/chat/completions", json=body(number, 24, 60)) as answer:
            await answer.read()
            ok = answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        ok = False
    if ok:
        block.took_ms.append((time.perf_counter() - due_s) * 1e3)
    else:
        block.failed += 1


async def load(client: aiohttp.ClientSession, url: str, rate: float, seconds: float, seed: int) -> Block:
    """Requests of a Poisson process, of the same times for the same seed."""
    chance, settling, block, tasks = random.Random(seed), Block(), Block(), []
    began_s = due_s = time.perf_counter()
    while (due_s := due_s + chance.expovariate(rate)) < began_s + SETTLE_S + seconds:
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        into = block if due_s > began_s + SETTLE_S else settling
        tasks.append(asyncio.create_task(send(client, url, chance.randrange(10**9), into, due_s)))
    await asyncio.gather(*tasks)
    block.failed += settling.failed
    return block


async def begin_batch(client: aiohttp.ClientSession, url: str, seed: int) -> str:
    """Its id, when the first lines have been answered."""
    lines = b"".join(
        json.dumps(
            {
                "custom_id": str(n),
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": body(seed * LINES + n, 48, 60),
            }
        ).encode()
        + b"\n"
        for n in range(LINES)
    )
    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", lines, filename="lines.jsonl")
    async with client.post(f"{url}/v1/files", data=form) as answer:
        file = await answer.json()
    wanted = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    async with client.post(f"{url}/v1/batches", json=wanted) as answer:
        name = str((await answer.json())["id"])
    for _ in range(600):
        if await completed(client, url, name):
            return name
        await asyncio.sleep(0.1)
    raise RuntimeError("no line of the batch was answered within a minute")


async def completed(client: aiohttp.ClientSession, url: str, batch: str) -> int:
    async with client.get(f"{url}/v1/batches/{batch}") as answer:
        return int((await answer.json())["request_counts"]["completed"])


async def end_batch(client: aiohttp.ClientSession, url: str, batch: str) -> None:
    async with client.post(f"{url}/v1/batches/{batch}/cancel") as answer:
        answer.raise_for_status()
    for _ in range(600):
        async with client.get(f"{url}/v1/batches/{batch}") as answer:
            if (await answer.json())["status"] == "cancelled":
                return
        await asyncio.sleep(0.1)
    raise RuntimeError("the batch is not cancelled within a minute")


async def alternate(url: str, rate: float, seconds: float, pairs: int) -> tuple[list[Block], list[Block]]:
    """Blocks without and with a batch; those of a pair have the same times, and which comes first alternates."""
    alone: list[Block] = []
    beside: list[Block] = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as client:
        await load(client, url, rate, 3.0, seed=0)
        for pair in range(1, pairs + 1):
            for with_batch in (False, True) if pair % 2 else (True, False):
                if not with_batch:
                    alone.append(await load(client, url, rate, seconds, pair))
                    continue
                batch = await begin_batch(client, url, pair)
                before = await completed(client, url, batch)
                began_s = time.perf_counter()
                beside.append(await load(client, url, rate, seconds, pair))
                beside[-1].lines = round(
                    (await completed(client, url, batch) - before) / (time.perf_counter() - began_s) * seconds
                )
                await end_batch(client, url, batch)
            print(f"pair {pair} of {pairs}: {line(alone[-1])}, beside {line(beside[-1])}", flush=True)
    return alone, beside


def line(block: Block) -> str:
    return f"p50 {quantile([block], 0.5):.0f} ms, p99 {quantile([block], 0.99):.0f} ms"


def quantile(blocks: list[Block], share: float) -> float:
    return float(np.quantile([took for block in blocks for took in block.took_ms], share))


def ratio(alone: list[Block], beside: list[Block], share: float) -> tuple[float, float, float]:
    """Of a quantile over all blocks, beside to alone, and its 95 % interval by drawing pairs of blocks."""
    draws = np.random.default_rng(1).integers(0, len(alone), size=(DRAWS, len(alone)))
    of = [
        quantile([beside[n] for n in draw], share) / quantile([alone[n] for n in draw], share)
        for draw in draws.tolist()
    ]
    low, high = np.quantile(of, (0.025, 0.975))
    return quantile(beside, share) / quantile(alone, share), float(low), float(high)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.batches", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--slots", type=int, default=4, help="--batch-slots of the gateway (default: 4)")
    parser.add_argument("--rate", type=float, default=4.0, help="other requests per second (default: 4)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a block (default: 20)")
    parser.add_argument("--pairs", type=int, default=3 if QUICK else 8, help="of blocks (default: 8; QUICK=1: 3)")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, world(Path(folder), wanted.slots) as url:
        alone, beside = asyncio.run(alternate(url, wanted.rate, wanted.seconds, wanted.pairs))
    rows = []
    for share in (0.5, 0.99):
        value, low, high = ratio(alone, beside, share)
        rows.append({
            "quantile": share, "alone_ms": quantile(alone, share), "beside_ms": quantile(beside, share),
            "ratio": value, "low": low, "high": high,
        })  # fmt: skip
        print(f"p{share * 100:g}: {rows[-1]['alone_ms']:.0f} ms alone, {rows[-1]['beside_ms']:.0f} ms beside a batch: "
              f"{value:.2f} [{low:.2f}, {high:.2f}]")  # fmt: skip
    per_s = sum(block.lines for block in beside) / (wanted.seconds * len(beside))
    failed = sum(block.failed for block in alone + beside)
    print(f"{sum(len(block.took_ms) for block in alone)} requests alone, lines per second: {per_s:.1f}")
    bars = [
        Bar("p99 beside a batch, times alone", round(rows[1]["ratio"], 3), f"<= {LIMIT:g}", rows[1]["ratio"] <= LIMIT),
        Bar("requests that failed", failed, "0", failed == 0),
        Bar("lines per second", round(per_s, 2), "> 0", per_s > 0),
    ]
    for bar in bars:
        print(bar)
    write(report("batches", rows, bars, settings=vars(wanted) | {"lines_per_s": per_s}))
    return 0 if all(bar.ok for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
