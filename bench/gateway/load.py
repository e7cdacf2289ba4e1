"""Load of whole answers: a closed loop for the CPU time of a request, and a clock for latency beside a direct call."""

import asyncio
import math
import os
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from bench.gateway.messages import CHAT, Message
from bench.gateway.peers import wrk
from bench.gateway.programs import unverified
from bench.processes import Program

CONNECTIONS = 32
_FAILED_SHARE = 0.01
_LUA = 'wrk.method = "POST"\nwrk.body = [==[{body}]==]\n{headers}\n'


@dataclass(frozen=True, slots=True)
class Answered:
    """One block of load. `cpu_s`: of the measured program. `count`: of requests, calls or events, failed ones too."""

    count: int
    failed: int
    cpu_s: float
    wall_s: float

    @property
    def us(self) -> float:
        """CPU time of one, in microseconds; NaN where none came, or many failed: those are cheap."""
        holds = self.count and self.failed <= _FAILED_SHARE * self.count
        return self.cpu_s / self.count * 1e6 if holds else math.nan


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`connections` that each send the next request when the last one is answered, for `seconds`.

    `folder`: of wrk's script; None: clients of aiohttp make the load, which are slower.
    """

    message: Message
    seconds: float
    folder: Path | None
    connections: int = CONNECTIONS

    def measure(self, program: Program) -> Answered:
        cpu_s, began_s = program.cpu_s(), time.monotonic()
        requests, failed = self._wrk(program, self.folder) if self.folder else asyncio.run(self._clients(program))
        return Answered(requests, failed, program.cpu_s() - cpu_s, time.monotonic() - began_s)

    def _wrk(self, program: Program, folder: Path) -> tuple[int, int]:
        script, files = folder / "post.lua", wrk().folder / "files"
        headers = "\n".join(f'wrk.headers["{name}"] = "{value}"' for name, value in program.headers.items())
        script.write_text(_LUA.format(body=self.message.body.decode(), headers=headers))
        libraries = [str(path.parent) for path in files.glob("usr/lib/*/libluajit-5.1.so.2")]
        lasts = ["-t1", f"-c{self.connections}", f"-d{max(1, round(self.seconds))}s", "--timeout", "30s"]
        command = [files / "usr" / "bin" / "wrk", *lasts, "-s", script, program.url + self.message.path]
        environment = os.environ | {"LD_LIBRARY_PATH": ":".join(libraries)}
        done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=False)
        try:
            return read_wrk(done.stdout)
        except ValueError:
            # It has died, which is no reason to measure no other one.
            return 0, self.connections

    async def _clients(self, program: Program) -> tuple[int, int]:
        """Where there is no wrk: requests, and how many of them failed."""
        results = [0, 0]

        async def repeat(session: aiohttp.ClientSession, until_s: float) -> None:
            while time.monotonic() < until_s:
                failed = await _took_s(session, program.url, program.headers, self.message) == math.inf
                results[failed] += 1

        async with aiohttp.ClientSession(connector=_connector()) as session:
            until_s = time.monotonic() + self.seconds
            await asyncio.gather(*(repeat(session, until_s) for _ in range(self.connections)))
        return sum(results), results[True]


def read_wrk(text: str) -> tuple[int, int]:
    """Requests, and how many of them failed."""
    found = re.search(r"(\d+) requests in", text)
    if found is None:
        raise ValueError(f"wrk reports no requests: {text[-300:]}")
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    broken = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", text)
    return int(found[1]), (int(refused[1]) if refused else 0) + (sum(map(int, broken.groups())) if broken else 0)


def _connector() -> aiohttp.TCPConnector:
    return aiohttp.TCPConnector(limit=0, ssl=unverified())


async def _took_s(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str], message: Message = CHAT
) -> float:
    """Infinite when it failed: a failure is no fast answer."""
    began_s = time.perf_counter()
    try:
        async with session.post(url + message.path, data=message.body, headers=headers) as reply:
            await reply.read()
            return time.perf_counter() - began_s if reply.status == 200 else math.inf
    except (aiohttp.ClientError, TimeoutError):
        return math.inf


async def latencies(program: Program, direct_url: str, rate: int, seconds: float) -> tuple[list[float], list[float]]:
    """Seconds of routed and of direct requests on the clock, in turns: what disturbs one disturbs the other."""
    tasks: tuple[list[asyncio.Task[float]], list[asyncio.Task[float]]] = ([], [])
    async with aiohttp.ClientSession(connector=_connector()) as session:
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
