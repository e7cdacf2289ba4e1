"""One run of the fuzzer: the processes, their clients, and what is left when all rest."""

import json
import multiprocessing
import queue
import re
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from bench.soak import GAUGES
from bench.soak import launch as server_launch
from devcluster.ports import reserve_port
from slipway_server.http.reading.reader import READERS
from testkit.report import Bar, Json, report
from testkit.world import proc
from testkit.world.program import MIB, Launch, Server, running

from . import parts
from .requests import Schemas
from .worker import PATIENCE_S, Found, Worker

REPOSITORY = Path(__file__).resolve().parents[2]
WORKERS = 3
WARM_SHARE, WARM_LEAST_S = 0.25, 10.0
# What an allocator keeps moves by some MiB; what requests leave behind grows with the minutes.
RSS_TOLERANCE_MIB = 48.0
PARTS_SHARE = 0.15  # of the time, for what is fuzzed without processes
REST_LOOKS = 60
_RESTARTS = re.compile(r"^slipway_server_engine_restarts_total ([0-9.e+]+)$", re.MULTILINE)
_TASKS = re.compile(r"^slipway_task_restarts_total\{[^}]*\} ([0-9.e+]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Processes:
    """`urls`: of the server and of the gateway; `grpc`: host and port of the gateway's; `pages`: of their metrics."""

    server: Server
    gateway: Server
    urls: list[str]
    grpc: str
    pages: list[str]


@contextmanager
def processes(folder: Path) -> Iterator[Processes]:
    """A model server, and a gateway before it. Raises DidNotStart."""
    start = server_launch(reserve_port(), reserve_port())
    port, admin, grpc = reserve_port(), reserve_port(), reserve_port()
    routes = folder / "fuzz-routes.yaml"
    routes.parent.mkdir(parents=True, exist_ok=True)
    routes.write_text(json.dumps({"models": {"m": {"backends": [{"endpoints": [start.url]}]}}}))
    command = [sys.executable, "-m", "slipway_gateway", "--routes", str(routes), "--host", "127.0.0.1", "--port"]
    command += [
        str(port),
        "--admin-host",
        "127.0.0.1",
        "--admin-port",
        str(admin),
        "--grpc-port",
        str(grpc),
        "--log-level",
        "warning",
    ]
    paths = f"{REPOSITORY / 'gateway'}:{REPOSITORY}"
    gateway = Launch(command, {"PYTHONPATH": paths}, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin}/readyz")
    with ExitStack() as stack:
        server = stack.enter_context(running(start, folder / "fuzz-server.log", 120.0))
        door = stack.enter_context(running(gateway, folder / "fuzz-gateway.log", 60.0))
        pages = [f"{start.url}/metrics", f"http://127.0.0.1:{admin}/metrics"]
        yield Processes(server, door, [start.url, gateway.url], f"127.0.0.1:{grpc}", pages)


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def start_grammars(url: str) -> None:
    """The processes that compute masks start with the first grammar: their memory is no growth."""
    body = {"model": "m", "prompt": "a", "max_tokens": 4, "guided_choice": ["a"]}
    head = {"Content-Type": "application/json"}
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), head), timeout=PATIENCE_S
    ) as answer:
        answer.read()


def busy(page: str) -> dict[str, float]:
    """Gauges of a resting server that are not 0."""
    found = {name: re.findall(rf"^{name}(?:\{{[^}}]*\}})? ([0-9.e+-]+)$", page, re.MULTILINE) for name in GAUGES}
    return {name: sum(map(float, values)) for name, values in found.items() if sum(map(float, values))}


def restarts(page: str) -> int:
    return int(sum(map(float, _RESTARTS.findall(page))))


def ended_tasks(page: str) -> int:
    """Tasks of a process that ended, and were started again."""
    return int(sum(map(float, _TASKS.findall(page))))


def work(urls: list[str], grpc: str, document: Json, first_seed: int, seconds: float, results: Any) -> None:
    """One process of clients."""
    worker = Worker(urls, document, first_seed, grpc=grpc)
    try:
        worker.run(time.monotonic() + seconds)
    finally:
        results.put(worker.found)


def storm(at: Processes, document: Json, seed: int, seconds: float, name: str) -> Found:
    """All clients for some seconds, and what they saw."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    print(f"{time.strftime('%H:%M:%S')}  {name}: {seconds:.0f} s, {WORKERS} clients", flush=True)
    about = (at.urls, at.grpc, document)
    arguments = [(*about, seed + number * 1_000_000, seconds, results) for number in range(WORKERS)]
    clients = [context.Process(target=work, args=one) for one in arguments]
    for client in clients:
        client.start()
    total = Found()
    for _ in clients:
        total.add(_result(results, clients, seconds + PATIENCE_S + 60))
    for client in clients:
        client.join(60)
    print(f"{time.strftime('%H:%M:%S')}  {total.sent} requests: {dict(total.endings.most_common(12))}", flush=True)
    return total


def _result(results: Any, clients: list[Any], limit_s: float) -> Found:
    """Of any client that is done. Raises RuntimeError when one ends without a result."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        with suppress(queue.Empty):
            return cast(Found, results.get(timeout=1.0))
        if any(client.exitcode for client in clients):
            break
    raise RuntimeError("a client of the fuzzer ended without a result")


def rest(url: str) -> dict[str, float]:
    """Gauges that are not back to 0 after some patience."""
    left: dict[str, float] = {"unknown": 1.0}
    for _ in range(REST_LOOKS):
        if not (left := busy(get(f"{url}/metrics"))):
            break
        time.sleep(1.0)
    time.sleep(1.0)
    return left


def memory_mib(process: Server) -> dict[int, float]:
    """Resident memory by process ID, of a process and all that come from it."""
    return {pid: proc.rss_bytes(pid) / MIB for pid in process.pids()}


def growth_mib(before: dict[int, float], after: dict[int, float]) -> float:
    """Of the processes that were there before: one that came since has all its memory from its start."""
    return round(sum(mib - before[pid] for pid, mib in after.items() if pid in before), 1)


def bars(
    found: Found,
    exits: int,
    ended: int,
    left: dict[str, float],
    growth: dict[str, float],
    came: dict[str, int],
    alive: bool,
) -> list[Bar]:
    most, more = max(growth.values()), max(came.values())
    return [
        Bar("engine exits", exits, "0", exits == 0 and alive),
        Bar("tasks that ended", ended, "0", ended == 0),
        Bar("answers of 500", found.internal, "0", found.internal == 0),
        Bar("requests without an end", found.endless, "0", found.endless == 0),
        Bar("errors of another shape than OpenAI's", found.malformed, "0", found.malformed == 0),
        Bar("sound requests that got another answer", found.disturbed, "0", found.disturbed == 0),
        Bar("gauges that are not back to 0", len(left), "0", not left),
        Bar("growth of memory, MiB", most, f"<= {RSS_TOLERANCE_MIB:.0f}", most <= RSS_TOLERANCE_MIB),
        Bar("processes that came and stay", more, f"<= {READERS.queue.slots}", more <= READERS.queue.slots),
    ]


def fuzz(seconds: float, seed: int) -> Json:
    """The report. Raises DidNotStart."""
    rows, part_bars = parts.fuzz(seconds * PARTS_SHARE, seed)
    seconds *= 1 - PARTS_SHARE
    with processes(REPOSITORY / "build") as at:
        server_url = at.urls[0]
        document = json.loads(get(f"{server_url}/openapi.json"))
        warm_s = max(WARM_LEAST_S, seconds * WARM_SHARE)
        start_grammars(server_url)
        found = storm(at, document, seed, warm_s, "warm-up")
        rest(server_url)
        watched = {"server": at.server, "gateway": at.gateway}
        before = {name: memory_mib(process) for name, process in watched.items()}
        found.add(storm(at, document, seed + 500_000, max(5.0, seconds - warm_s), "fuzz"))
        left = rest(server_url)
        after = {name: memory_mib(process) for name, process in watched.items()}
        growth = {name: growth_mib(before[name], after[name]) for name in watched}
        came = {name: len(after[name].keys() - before[name].keys()) for name in watched}
        pages = [get(page) for page in at.pages]
        exits, ended = restarts(pages[0]), sum(map(ended_tasks, pages))
        alive = len(at.server.pids()) > 1
    fields = Schemas(document, "m").fields()
    known = found.fields & fields
    row = {
        "requests": found.sent,
        "distinct_requests": len(found.digests),
        "fields_covered": len(known),
        "fields": len(fields),
        "endings": dict(found.endings),
        "memory_growth_mib": growth,
        "processes_that_came": came,
        "gauges_left": left,
        "wrong": found.wrong,
        "not_covered": sorted(fields - known),
    }
    settings = {"seconds": seconds, "seed": seed, "workers": WORKERS}
    made = [*bars(found, exits, ended, left, growth, came, alive), *part_bars]
    return report("fuzz", [row, *rows], made, settings=settings)
