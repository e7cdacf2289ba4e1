"""CPU time of a hit, a miss and an uncached request, beside nginx that serves the same bytes from a file.

python -m bench.caches        (a minute; QUICK=1: some seconds)
"""

import http.client
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console

from bench import processes
from bench.engine.environments import ensure
from bench.gateway import programs
from bench.gateway.peers import debian_program, nginx_environment
from bench.processes import Program, free_port
from testkit.report import Bar, quantile, report, write

HIT_TIMES_NGINX = 1.2  # in the compiled lane
PATH = "/v1/chat/completions"
CORE, UPSTREAM_CORE = 0, 1
_NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ listen 127.0.0.1:{port}; keepalive_requests 1000000000; default_type application/json;
    root {folder}/files;
    location = {path} {{ return 200 '{answer}'; }} }}
}}
"""
Send = Callable[[http.client.HTTPConnection, int], object]


def body(question: str) -> bytes:
    """A chat with one response."""
    messages = [{"role": "system", "content": "You are helpful."}, {"role": "user", "content": question}]
    return json.dumps({"model": "m", "messages": messages, "max_tokens": 128, "temperature": 0}).encode()


def ask(connection: http.client.HTTPConnection, n: int, *, question: str = "why {n}?", cache: str = "") -> bytes:
    """One chat; `cache`: what the response must have in `X-Slipway-Cache`."""
    headers = {"Content-Type": "application/json"}
    connection.request("POST", PATH, body(question.format(n=n)), headers)
    answer = connection.getresponse()
    data = answer.read()
    assert answer.status == 200, data
    assert (answer.headers.get("X-Slipway-Cache") or "") == cache, answer.headers
    return data


class Connection(http.client.HTTPConnection):
    """Sends each request in one write; its base class sends head and body apart, which costs a server another read."""

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self._parts: list[bytes] = []

    def send(self, data: Any) -> None:
        """Keeps a part of the request."""
        self._parts.append(data)

    def getresponse(self) -> http.client.HTTPResponse:
        """Sends the request; returns the beginning of the response."""
        message, self._parts = b"".join(self._parts), []
        super().send(message)
        return super().getresponse()


def get(connection: http.client.HTTPConnection, n: int) -> None:
    connection.request("GET", "/answer.json")
    answer = connection.getresponse()
    assert answer.status == 200
    answer.read()


def measure(program: Program, send: Send, requests: int) -> dict[str, float]:
    """Over one connection, one request after the other: CPU time of the program and time until the response, in µs."""
    connection = Connection(urlsplit(program.url).netloc)
    for n in range(20):
        send(connection, -1 - n)
    before_s, took_s = program.cpu_s(), []
    for n in range(requests):
        began_s = time.perf_counter()
        send(connection, n)
        took_s.append(time.perf_counter() - began_s)
    cpu_us = (program.cpu_s() - before_s) / requests * 1e6
    connection.close()
    return {"cpu_us": round(cpu_us, 1), "p50_us": round(quantile(took_s, 0.5) * 1e6, 1)}


@contextmanager
def gateway(folder: Path, upstream: str, *, cached: bool, plane: str = "off") -> Iterator[Program]:
    folder.mkdir()
    model = {"backends": [{"revision": "r1", "endpoints": [upstream]}]} | (
        {"cache": {"ttlSeconds": 3600}} if cached else {}
    )
    (folder / "routes.json").write_text(json.dumps({"models": {"m": model}}))
    port = free_port()
    flags = [f"--routes={folder / 'routes.json'}", "--host=127.0.0.1", f"--port={port}", "--drain-delay=0"]
    flags += ["--admin-host=127.0.0.1", "--admin-port=0", f"--plane={plane}"]
    command = [sys.executable, "-m", "slipway_gateway", *flags]
    url = f"http://127.0.0.1:{port}"
    ready = partial(_is_served, url, cache="miss" if cached else "")
    with processes.started("slipway", command, url, CORE, folder / "log", ready) as program:
        yield program


def _is_served(url: str, *, cache: str) -> bool:
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    try:
        ask(connection, time.monotonic_ns(), cache=cache)
    except (OSError, http.client.HTTPException, AssertionError):
        return False
    finally:
        connection.close()
    return True


@contextmanager
def nginx(folder: Path, answer: bytes) -> Iterator[Program]:
    (folder / "files").mkdir(parents=True)
    (folder / "files" / "answer.json").write_bytes(answer)
    port = free_port()
    (folder / "nginx.conf").write_text(_NGINX.format(folder=folder, port=port, path=PATH, answer=answer.decode()))
    url = f"http://127.0.0.1:{port}"
    command = [*debian_program("nginx", nginx_environment()), "-p", folder, "-c", folder / "nginx.conf"]

    def ready() -> bool:
        connection = http.client.HTTPConnection(urlsplit(url).netloc)
        try:
            get(connection, 0)
        except (OSError, AssertionError):
            return False
        return True

    with processes.started("nginx", command, url, CORE, folder / "log", ready) as found:
        yield found


def run(requests: int) -> list[dict[str, object]]:
    """One row for each kind of request."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slipway-caches-")))
        os.chmod(folder, 0o755)  # nginx gives up root
        upstream = stack.enter_context(programs.upstream(UPSTREAM_CORE, folder, in_rust=False))
        with gateway(folder / "plain", upstream, cached=False) as plain:
            uncached = measure(plain, ask, requests)
        with gateway(folder / "cached", upstream, cached=True) as slipway:
            miss = measure(slipway, partial(ask, cache="miss"), requests)
            connection = http.client.HTTPConnection(urlsplit(slipway.url).netloc)
            answer = ask(connection, 0, question="one", cache="miss")
            hit = measure(slipway, partial(ask, question="one", cache="hit"), requests)
        with gateway(folder / "lane", upstream, cached=True, plane="required") as slipway:
            miss_in_lane = measure(slipway, partial(ask, cache="miss"), requests)
            connection = http.client.HTTPConnection(urlsplit(slipway.url).netloc)
            ask(connection, 0, question="one", cache="miss")
            # Its first hit is Python's, and among the requests that are not measured.
            hit_in_lane = measure(slipway, partial(ask, question="one", cache="hit"), 10 * requests)
        with nginx(folder / "nginx", answer) as peer:
            served = measure(peer, get, 10 * requests)  # its time is counted in hundredths of a second
            posted = measure(peer, partial(ask, question="one"), 10 * requests)
    kinds = {"no cache": uncached, "miss": miss, "hit": hit}
    kinds |= {"miss, with the lane": miss_in_lane, "hit, in the lane": hit_in_lane}
    kinds |= {"nginx, a file": served, "nginx, from memory for the same POST": posted}
    return [{"request": kind, "bytes": len(answer), **measured} for kind, measured in kinds.items()]


def main() -> int:
    console = Console()
    ensure(nginx_environment(), console)
    rows = run(500 if os.environ.get("QUICK") else 5000)
    for row in rows:
        console.print(row)
    cpu_us = {str(row["request"]): float(str(row["cpu_us"])) for row in rows}
    times = round(cpu_us["hit, in the lane"] / cpu_us["nginx, a file"], 2)
    least = round(cpu_us["hit"] / cpu_us["no cache"], 2)
    bars = [
        Bar("CPU time of a hit in Python, times that of a request without a cache", least, "<= 1", least <= 1),
        Bar("CPU time of a hit in the lane, times that of nginx (GET)", times, "<= 1.2", times <= HIT_TIMES_NGINX),
    ]
    write(report("caches", rows, bars, hit_times_nginx=times))
    for bar in bars:
        console.print(str(bar))
    return int(not all(bar.ok for bar in bars))


if __name__ == "__main__":
    sys.exit(main())
