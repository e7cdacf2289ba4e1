"""Runs parts of the requests one after the other, each with a gateway of its own, and reports (see the package)."""

import argparse
import asyncio
import contextlib
import json
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from slipway_plane import NATIVE, WHY_MISSING
from testkit.report import Bar, Json, report, write
from tests.gateway.tenants import make_key

from .compare import differences, totals
from .gateway import FREE, LIMITED

PORTS = 8
LEAST_FAST = 0.5  # of all requests the fast lane must have served so many, else the run shows nothing
START_S, END_S = 60, 180
_LINE_BYTES = 64 << 20


@dataclass
class Part:
    """What one gateway did. `problems`: all differences."""

    requests: int = 0
    fast: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    received: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    evidence: Json = field(default_factory=dict)  # all numbers, where some differ


class Child:
    """A process that prints lines of JSON; it ends with the block."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def line(self, within_s: float) -> str:
        """The next line. Raises RuntimeError: there is none, so that the process has ended or hangs."""
        assert self._process.stdout
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                if line := await self._process.stdout.readline():
                    return line.decode()
        raise RuntimeError(f"process {self._process.pid} printed nothing, its status is {self._process.returncode}")

    def go_on(self) -> None:
        """Ends its wait for a line."""
        assert self._process.stdin
        self._process.stdin.write(b"\n")


@contextlib.asynccontextmanager
async def child(module: str, argument: object) -> AsyncIterator[Child]:
    command = [sys.executable, "-m", f"tests.plane.recount.{module}"]
    text = argument if isinstance(argument, str) else json.dumps(argument)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, text, stdin=pipe, stdout=pipe, limit=_LINE_BYTES)
    try:
        yield Child(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def run_part(
    options: argparse.Namespace, seed: str, requests: int, keys: list[tuple[str, str]], show: Callable[[int], None]
) -> Part:
    """One gateway serves so many requests, drains at the end of them, and all numbers are compared."""
    random, clients, connections = Random(seed), options.clients, options.connections
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = await stack.enter_async_context(child("server", str(PORTS)))
        config: Json = {"ports": json.loads(await servers.line(START_S)), "keys": keys, "seed": random.getrandbits(64)}
        config |= {"log": str(folder / "access.log"), "ledger": f"sqlite:///{folder}/ledger.db"}
        gateway = await stack.enter_async_context(child("gateway", config))
        port = int((await gateway.line(START_S)).strip().rpartition(":")[2])
        share: Json = {"port": port, "keys": keys, "requests": requests // clients, "connections": connections}
        sending = [
            await stack.enter_async_context(child("client", share | {"seed": str(random.getrandbits(64))}))
            for _ in range(clients)
        ]
        began_s, ended = time.monotonic(), [0] * clients
        seen: list[Json] = []

        async def follow(number: int, client: Child) -> None:
            while isinstance(line := json.loads(await client.line(END_S)), int):
                ended[number] = line
                show(sum(ended))
                if sum(ended) > 0.97 * requests and not draining.is_set():
                    draining.set()
                    gateway.go_on()
            seen.append(line)

        draining = asyncio.Event()
        await asyncio.gather(*(follow(number, client) for number, client in enumerate(sending)))
        if not draining.is_set():
            gateway.go_on()
        counted = json.loads(await gateway.line(END_S))
        servers.go_on()
        got = json.loads(await servers.line(START_S))
    received = totals(seen)
    part = Part(
        sum(received["received"].values()),
        counted["fast"],
        time.monotonic() - began_s,
        differences(received, got, counted),
    )
    if part.problems:
        part.evidence = {"clients": received, "servers": got, "gateway": counted}
    for key, count in received["received"].items():
        part.received[key.rpartition("|")[2]] += count
    for labels, value in counted["metrics"].get("handovers_total", ()):
        part.reasons[labels["reason"]] += int(value)
    return part


async def run(options: argparse.Namespace) -> list[Part]:
    """All parts, until one has a difference. Every second gateway has tenants, and requires their keys."""
    parts: list[Part] = []
    done, began_s = 0, time.monotonic()

    def show(of_part: int) -> None:
        seconds = time.monotonic() - began_s
        if not options.quiet:
            print(
                f"{done + of_part:,} of {options.requests:,} requests, {(done + of_part) / seconds:,.0f}/s", flush=True
            )

    while done < options.requests:
        size = min(options.part, options.requests - done)
        keys = (
            [(name, make_key(id_)) for name, id_ in ((LIMITED, "aaaaaa"), (FREE, "bbbbbb"))] if len(parts) % 2 else []
        )
        part = await run_part(options, f"{options.seed}/{len(parts)}", size, keys, show)
        parts.append(part)
        done += size
        for problem in part.problems:
            print(f"DIFFERS: {problem}", flush=True)
        if part.problems:
            break
    return parts


def bars(parts: list[Part], requests: int) -> list[Bar]:
    """What must hold."""
    received, fast = sum(part.requests for part in parts), sum(part.fast for part in parts)
    problems = [problem for part in parts for problem in part.problems]
    return [
        Bar("numbers that differ", len(problems), "0", not problems),
        Bar("responses that clients received", received, f">= {0.9 * requests:,.0f}", received >= 0.9 * requests),
        Bar(
            "of these, served by the fast lane and counted again by Python",
            round(fast / max(1, received), 3),
            f">= {LEAST_FAST}",
            fast >= LEAST_FAST * received,
        ),
    ]


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 1 where a bar does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000_000)
    parser.add_argument("--part", type=int, default=250_000, help="requests for one gateway")
    parser.add_argument("--clients", type=int, default=2, help="processes that send")
    parser.add_argument("--connections", type=int, default=24, help="of each of them")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args(arguments)
    if NATIVE is None:
        print(WHY_MISSING)
        return 1
    began_s = time.monotonic()
    parts = asyncio.run(run(options))
    seconds = time.monotonic() - began_s
    held = bars(parts, options.requests)
    rows = [
        {"requests": part.requests, "fast": part.fast, "seconds": round(part.seconds, 1), "problems": part.problems}
        | {"statuses": part.received, "handovers": part.reasons, "evidence": part.evidence}
        for part in parts
    ]
    rate = sum(part.requests for part in parts) / seconds
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_us = (used.ru_utime + used.ru_stime) * 1e6 / max(1, sum(part.requests for part in parts))
    more: dict[str, Any] = {"seed": options.seed, "seconds": round(seconds, 1), "requests_per_s": round(rate)}
    more["cpu_us_per_request"] = round(cpu_us)
    path = write(report("recount", rows, held, **more))
    print(*held, f"{rate:,.0f} requests/s, {cpu_us:.0f} µs of CPU time for each, {path}", sep="\n")
    return int(not all(bar.ok for bar in held))


if __name__ == "__main__":
    sys.exit(main())
