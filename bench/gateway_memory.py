"""A gateway at its memory limit: hostile clients take what they can get, it sheds, is never killed, and serves others.

    python -P bench/gateway_memory.py            (QUICK=1: a minute; DURATION=SECONDS; LIMIT_MIB=MEBIBYTES)

Where this process may make a control group (version 2, with the memory controller) the kernel holds the gateway to the
limit. Elsewhere this process does: it looks 20 times a second and kills the gateway when its resident memory is above
the limit, and it reads the high-water mark of the kernel at the end. The second way does not count socket buffers: they
are reported beside it. Prints a table, writes build/reports/gateway-memory.json, exits 1 when a bar does not hold.
"""

import asyncio
import contextlib
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from aiohttp import web

from testkit.report import Bar, report, write
from testkit.world import proc

ROOT = Path(__file__).resolve().parents[1]
QUICK = bool(os.environ.get("QUICK"))
DURATION_S = float(os.environ.get("DURATION", "60" if QUICK else "600"))
LIMIT_BYTES = int(os.environ.get("LIMIT_MIB", "1024")) << 20
ROOM_TO_SPARE = 0.85
IDLE, STALLED, BIG, SLOW = 4000, 200, 24, 400
BODY = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
BIG_BODY = b'{"model":"m","x":"' + b"z" * (15 << 20) + b'"}'
PIECE_BYTES = 1 << 18
_NUMBERS = itertools.count()


# -- the upstream process


async def serve_upstream() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        async for _ in request.content.iter_chunked(1 << 16):
            pass
        size = int(request.query.get("size", 100))
        return web.Response(body=b'{"choices":[],"x":"%s"}' % (b"y" * size), content_type="application/json")

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


def raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# -- the limit


def control_group(limit_bytes: int) -> Path | None:
    """A new control group of version 2 with this limit; None where that is not to be had."""
    root = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError):
        if "memory" in (root / "cgroup.subtree_control").read_text().split():
            made = root / f"slipway-gateway-memory-{os.getpid()}"
            made.mkdir()
            (made / "memory.max").write_text(str(limit_bytes))
            return made
    return None


class Limit:
    """Holds one process to the limit."""

    def __init__(self, pid: int, group: Path | None) -> None:
        self._pid, self._group = pid, group
        self.killed = 0
        if group:
            (group / "cgroup.procs").write_text(str(pid))

    def look(self) -> None:
        if not self._group and proc.rss_bytes(self._pid) > LIMIT_BYTES:
            self.killed += 1
            os.kill(self._pid, 9)

    def peak_bytes(self) -> int:
        with contextlib.suppress(OSError):
            if self._group:
                events = dict(line.split() for line in (self._group / "memory.events").read_text().splitlines())
                self.killed += int(events.get("oom_kill", 0))
                return int((self._group / "memory.peak").read_text())
        return proc.peak_bytes(self._pid)


def socket_bytes() -> int:
    """Of all TCP sockets of this network namespace, both sides of each."""
    fields = Path("/proc/net/sockstat").read_text().split("TCP:")[1].split("\n")[0].split()
    return int(fields[fields.index("mem") + 1]) * resource.getpagesize()


# -- the load


def hostile_address() -> str:
    n = next(_NUMBERS)
    return f"127.{1 + n // 62500 % 100}.{n // 250 % 250}.{1 + n % 250}"


def head(size: int, path: str = "/v1/completions") -> bytes:
    key = f"Authorization: Bearer invented-{next(_NUMBERS)}\r\n"
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{key}Content-Length: {size}\r\n\r\n".encode()


@contextlib.asynccontextmanager
async def connected(port: int, host: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0)), 10)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


class Hostile:
    """Clients of many addresses with many invented keys, in a process of their own."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.statuses: Counter[str] = Counter()

    async def _again(self, number: int, work: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(number / 500)
        while True:
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                await work()
            await asyncio.sleep(1.0)

    async def _status(self, reader: asyncio.StreamReader) -> None:
        line = await asyncio.wait_for(reader.readline(), 90)
        self.statuses[line[9:12].decode("ascii", "replace") or "closed"] += 1

    async def _send(self, size: int) -> None:
        """A body that declares `size` bytes and brings those of BIG_BODY at most."""
        async with connected(self._port, hostile_address()) as (reader, writer):
            writer.write(head(size))
            sending = asyncio.create_task(self._pieces(writer))
            try:
                await self._status(reader)
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)

    async def _pieces(self, writer: asyncio.StreamWriter) -> None:
        for begin in range(0, len(BIG_BODY), PIECE_BYTES):
            writer.write(BIG_BODY[begin : begin + PIECE_BYTES])
            await writer.drain()

    async def _big(self) -> None:
        await self._send(len(BIG_BODY))

    async def _stalled(self) -> None:
        await self._send(16 << 20)

    async def _slow(self) -> None:
        async with connected(self._port, hostile_address()) as (reader, writer):
            body = b'{"model":"m"}'
            writer.write(head(len(body), f"/v1/completions?size={1 << 20}") + body)
            await self._status(reader)
            for _ in range(1 << 8):
                await reader.readexactly(4096)
                await asyncio.sleep(1.0)

    async def _rest(self) -> None:
        async with connected(self._port, hostile_address()) as (reader, _):
            await reader.read()

    async def run(self, seconds: float) -> None:
        work = [self._slow] * SLOW + [self._big] * BIG + [self._stalled] * STALLED + [self._rest] * IDLE
        tasks = [asyncio.create_task(self._again(number, one)) for number, one in enumerate(work)]
        await asyncio.sleep(seconds)
        print(json.dumps(self.statuses), flush=True)
        os._exit(0 if tasks else 1)  # thousands of connections end at once


class Victim:
    """A client that behaves, from an address of its own."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.served = self.failed = 0
        self.seconds: list[float] = []

    async def _ask(self) -> None:
        began = time.perf_counter()
        status = b""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(10), connected(self._port, "127.0.0.1") as (reader, writer):
                ask = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
                writer.write(ask + BODY)
                status = (await reader.readline())[9:12]
        self.seconds.append(time.perf_counter() - began)
        self.served += status == b"200"
        self.failed += status != b"200"

    async def run(self, until_s: float, limit: Limit) -> int:
        """The most that sockets held."""
        sockets = 0
        while time.monotonic() < until_s:
            limit.look()
            sockets = max(sockets, socket_bytes())
            await asyncio.gather(self._ask(), asyncio.sleep(0.05))
        return sockets


# -- the run


@contextlib.contextmanager
def processes(group: Path | None) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """The port of the gateway, and its process."""
    with tempfile.TemporaryDirectory() as folder:
        first = subprocess.Popen([sys.executable, "-P", __file__, "upstream"], stdout=subprocess.PIPE, text=True)
        assert first.stdout
        upstream = f"http://127.0.0.1:{first.stdout.readline().strip()}"
        routes = Path(folder) / "routes.json"
        routes.write_text(json.dumps({"models": {"m": {"backends": [{"endpoints": [upstream]}]}}}))
        ports = ["--host=127.0.0.1", "--port=0", "--admin-host=127.0.0.1", "--admin-port=0", "--drain-delay=0"]
        # As it would derive it from the limit of its container.
        budget = [] if group else [f"--memory-budget-bytes={LIMIT_BYTES * 35 // 100}"]
        command = [sys.executable, "-m", "slipway_gateway", "--routes", str(routes), *ports, *budget]
        log = Path(folder) / "gateway.log"
        second = subprocess.Popen(command, cwd=ROOT / "gateway", stderr=log.open("wb"))
        while "routes file loaded" not in log.read_text():
            time.sleep(0.05)
        line = next(line for line in log.read_text().splitlines() if '"listening"' in line)
        try:
            yield int(json.loads(line)["api"][0][1]), second
        finally:
            for process in (second, first):
                process.kill()
                process.communicate()


def start_hostile(port: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", __file__, "hostile", str(port), str(DURATION_S)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def main() -> bool:
    group = control_group(LIMIT_BYTES)
    if not group:
        print("NOTE: no control group can be made here: resident memory is watched, the kernel's own memory is not.")
    try:
        with processes(group) as (port, gateway):
            limit = Limit(gateway.pid, group)
            victim = Victim(port)
            hostile = start_hostile(port)
            sockets = await victim.run(time.monotonic() + DURATION_S, limit)
            statuses = Counter(json.loads(hostile.communicate(timeout=60)[0]))
            peak, alive = limit.peak_bytes(), gateway.poll() is None
    finally:
        if group:
            group.rmdir()
    seconds = sorted(victim.seconds)
    shed = sum(statuses[code] for code in ("408", "429", "503"))
    row = {
        "seconds": DURATION_S,
        "limit_mib": LIMIT_BYTES >> 20,
        "limited_by": "control group" if group else "watching resident memory",
        "peak_mib": round(peak / (1 << 20), 1),
        "sockets_peak_mib": round(sockets / (1 << 20), 1),
        "answers_to_hostile": dict(statuses),
        "victim_served": victim.served,
        "victim_failed": victim.failed,
        "victim_p50_ms": round(seconds[len(seconds) // 2] * 1000, 1),
        "victim_p99_ms": round(seconds[int(len(seconds) * 0.99)] * 1000, 1),
    }
    print("\n".join(f"{name:>20} {value}" for name, value in row.items()))
    wrong = sum(count for code, count in statuses.items() if code in ("500", "502", "504"))
    share = victim.served / max(1, victim.served + victim.failed)
    return conclude(
        row,
        [
            Bar("gateway was killed", int(not alive) + limit.killed, "<=0", alive and not limit.killed),
            Bar(
                "peak memory / limit", peak / LIMIT_BYTES, f"<={ROOM_TO_SPARE}", 0 < peak / LIMIT_BYTES <= ROOM_TO_SPARE
            ),
            Bar("refusals with 408, 429 or 503", shed, ">0", shed > 0),
            Bar("answers of 500, 502, 504", wrong, "<=0", not wrong),
            Bar("share of the well-behaved client's requests served", share, ">=0.99", share >= 0.99),
        ],
    )


def conclude(row: dict[str, Any], bars: list[Bar]) -> bool:
    print(*bars, sep="\n")
    write(report("gateway-memory", [row], bars, load=os.getloadavg()[0]))
    return all(bar.ok for bar in bars)


if __name__ == "__main__":
    if sys.argv[1:] == ["upstream"]:
        asyncio.run(serve_upstream())
    elif sys.argv[1:2] == ["hostile"]:
        raise_file_limit()
        asyncio.run(Hostile(int(sys.argv[2])).run(float(sys.argv[3])))
    else:
        sys.exit(0 if asyncio.run(main()) else 1)
