"""What is measured of one program: requests per CPU-second, latency beside a direct call, slow streams at a time."""

import asyncio
import math
import os
import re
import resource
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from bench.gateway.programs import wrk
from bench.gateway.upstream import EVENTS, GAP_S
from bench.processes import Program

CONNECTIONS = 32
BODY = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
STREAM_BODY = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}'
PATH = "/v1/chat/completions"
_LUA = 'wrk.method = "POST"\nwrk.body = [==[{body}]==]\n{headers}\n'
_DONE = b"data: [DONE]"
_OPENED_PER_S = 400
# What a peer that is slow has beyond the time that its streams take.
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Answered:
    """One block of a closed loop."""

    requests: int
    failed: int
    cpu_s: float
    wall_s: float

    @property
    def per_cpu_s(self) -> float:
        return self.requests / self.cpu_s if self.cpu_s else math.nan


# -- a closed loop


def closed_loop(program: Program, seconds: float, folder: Path, *, by_wrk: bool) -> Answered:
    """`CONNECTIONS` that each send the next request when the last one is answered."""
    cpu_s, began_s = program.cpu_s(), time.monotonic()
    requests, failed = _wrk(program, seconds, folder) if by_wrk else asyncio.run(_clients(program, seconds))
    return Answered(requests, failed, program.cpu_s() - cpu_s, time.monotonic() - began_s)


def _wrk(program: Program, seconds: float, folder: Path) -> tuple[int, int]:
    script, files = folder / "post.lua", wrk().folder / "files"
    headers = "\n".join(f'wrk.headers["{name}"] = "{value}"' for name, value in program.headers.items())
    script.write_text(_LUA.format(body=BODY.decode(), headers=headers))
    libraries = [str(path.parent) for path in files.glob("usr/lib/*/libluajit-5.1.so.2")]
    lasts = ["-t1", f"-c{CONNECTIONS}", f"-d{max(1, round(seconds))}s", "--timeout", "30s"]
    command = [files / "usr" / "bin" / "wrk", *lasts, "-s", script, program.url + PATH]
    environment = os.environ | {"LD_LIBRARY_PATH": ":".join(libraries)}
    text = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=True).stdout
    return read_wrk(text)


def read_wrk(text: str) -> tuple[int, int]:
    """Requests, and how many of them failed."""
    found = re.search(r"(\d+) requests in", text)
    if found is None:
        raise ValueError(f"wrk reports no requests: {text[-300:]}")
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    broken = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", text)
    return int(found[1]), (int(refused[1]) if refused else 0) + (sum(map(int, broken.groups())) if broken else 0)


async def _clients(program: Program, seconds: float) -> tuple[int, int]:
    """Where there is no wrk."""
    until_s, results = time.monotonic() + seconds, [0, 0]

    async def repeat(session: aiohttp.ClientSession) -> None:
        while time.monotonic() < until_s:
            failed = await _took_s(session, program.url, program.headers) == math.inf
            results[failed] += 1

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(repeat(session) for _ in range(CONNECTIONS)))
    return sum(results), results[True]


async def _took_s(session: aiohttp.ClientSession, url: str, headers: Mapping[str, str]) -> float:
    """Infinite when it failed: a failure is no fast answer."""
    began_s = time.perf_counter()
    try:
        async with session.post(url + PATH, data=BODY, headers=headers) as reply:
            await reply.read()
            return time.perf_counter() - began_s if reply.status == 200 else math.inf
    except (aiohttp.ClientError, TimeoutError):
        return math.inf


# -- latency


async def latencies(program: Program, direct_url: str, rate: int, seconds: float) -> tuple[list[float], list[float]]:
    """Seconds of routed and of direct requests on the clock, in turns: what disturbs one disturbs the other."""
    tasks: tuple[list[asyncio.Task[float]], list[asyncio.Task[float]]] = ([], [])
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(
            *(_took_s(session, url, program.headers) for url in (program.url, direct_url) for _ in range(20))
        )
        began_s = time.perf_counter()
        for n in range(int(rate * seconds) * 2):
            await asyncio.sleep(max(0.0, began_s + n / rate / 2 - time.perf_counter()))
            url = direct_url if n % 2 else program.url
            tasks[n % 2].append(asyncio.create_task(_took_s(session, url, program.headers)))
        routed, direct = [[await task for task in each] for each in tasks]
    return routed, direct


# -- streams


class _Stream(asyncio.Protocol):
    """One client: it counts events and reads nothing else."""

    def __init__(self, ended: "asyncio.Future[bool]", headers: Mapping[str, str]) -> None:
        self.events = 0
        self._headers = headers
        self._tail = b""
        self._ended = ended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        lines = "".join(f"{name}: {value}\r\n" for name, value in self._headers.items())
        head = f"POST {PATH} HTTP/1.1\r\nHost: gateway\r\n{lines}"
        transport.write(f"{head}Content-Length: {len(STREAM_BODY)}\r\n\r\n".encode() + STREAM_BODY)

    def data_received(self, data: bytes) -> None:
        seen = self._tail + data
        # An event may lie in two reads; what was counted is not looked at again.
        self.events += seen.count(b'"content":"word"')
        at = seen.rfind(b'"content":"word"')
        self._tail = seen[max(at + 16, len(seen) - 15) if at >= 0 else -15 :]
        if _DONE in seen:
            self.end()

    def end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(True)
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_result(False)


async def streams(program: Program, count: int) -> dict[str, Any]:
    """All open at once: each gets an event a second. Memory is that of the program while they are open."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    loop, where = asyncio.get_running_loop(), urlsplit(program.url)
    before, cpu_s, began_s = program.rss_bytes(), program.cpu_s(), time.monotonic()
    clients: list[_Stream] = []
    ends: list[asyncio.Future[bool]] = []
    for n in range(count):
        await asyncio.sleep(max(0.0, began_s + n / _OPENED_PER_S - time.monotonic()))
        ends.append(loop.create_future())
        try:
            _, client = await loop.create_connection(
                lambda: _Stream(ends[-1], program.headers), where.hostname or "", where.port or 80
            )
            clients.append(client)
        except OSError:
            ends[-1].set_result(False)
    # All are open now, and none has ended: a stream lasts longer than it takes to open all.
    await asyncio.sleep(max(0.0, EVENTS * GAP_S - 2.0 - (time.monotonic() - began_s)))
    open_now = sum(not end.done() and client.events > 0 for end, client in zip(ends, clients, strict=False))
    held = program.rss_bytes() - before
    await asyncio.wait(ends, timeout=count / _OPENED_PER_S + EVENTS * GAP_S + PATIENCE_S)
    whole = sum(
        end.done() and end.result() and client.events == EVENTS for end, client in zip(ends, clients, strict=False)
    )
    for client in clients:
        client.end()
    return {
        "streams": count,
        "open": open_now,
        "broken": count - whole,
        "kib_each": held / 1024 / max(open_now, 1),
        "cpu_s": program.cpu_s() - cpu_s,
        "seconds": time.monotonic() - began_s,
        "events": sum(client.events for client in clients),
    }
