"""Two servers of ours on a core each, behind a gateway of either rule: agents' conversations in turns."""

import asyncio
import contextlib
import json
import os
import random
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp
from rich.console import Console

from bench import processes
from bench.engine.models import ensure_model, warm
from bench.engine.shapes import TINY
from bench.engine.workload import words
from bench.routing.trace import Session, TraceShape, sessions
from devcluster.ports import reserve_port
from testkit import ROOT

LEAST, AFFINE = "least-load", "prefix-affinity"
BLOCK_TOKENS = 32  # of our engine's cache
OUTPUT_TOKENS = 8
# Contexts of 4,000 to 8,000 tokens.
SHAPE = TraceShape(12, 14, 4, (3800, 5200), 400, OUTPUT_TOKENS, think_s=4.0)
QUICK_SHAPE = TraceShape(2, 4, 2, (1000, 1400), 100, OUTPUT_TOKENS, think_s=0.2)
_KV_TOKENS = 160_000


@dataclass(slots=True)
class Measured:
    """Of one rule. `oracle_tokens`: prompt tokens in full blocks that an earlier prompt of the block began with."""

    ttft_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    oracle_tokens: int = 0
    failures: list[str] = field(default_factory=list)


@contextlib.contextmanager
def deployment(folder: Path, console: Console) -> Iterator[dict[str, str]]:
    """URLs of two gateways before the same two servers, by their rule. Raises Unavailable."""
    model = ensure_model(TINY, console)
    warm(model)
    allowed = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        urls = [
            stack.enter_context(_server(model, folder, number, allowed[number % len(allowed)])) for number in range(2)
        ]
        yield {rule: stack.enter_context(_gateway(rule, urls, folder)) for rule in (LEAST, AFFINE)}


@contextlib.contextmanager
def _server(model: Path, folder: Path, number: int, core: int) -> Iterator[str]:
    port, probe_port = reserve_port(), reserve_port()
    flags = {
        "model": model, "served-model-name": "m", "dtype": "bfloat16", "host": "127.0.0.1", "port": port,
        "probe-port": probe_port, "max-num-seqs": 16, "max-kv-tokens": _KV_TOKENS, "log-level": "WARNING",
    }  # fmt: skip
    command = [sys.executable, "-m", "slipway_server", *(f"--{name}={value}" for name, value in flags.items())]
    ready = partial(_is_ready, f"http://127.0.0.1:{probe_port}/readyz")
    url, log = f"http://127.0.0.1:{port}", folder / f"server-{number}.log"
    with processes.started(f"server-{number}", command, url, core, log, ready, folder=ROOT):
        yield url


@contextlib.contextmanager
def _gateway(rule: str, urls: Sequence[str], folder: Path) -> Iterator[str]:
    backends = [{"revision": "r1", "weight": 100, "endpoints": list(urls)}]
    routes = folder / f"{rule}.json"
    routes.write_text(json.dumps({"models": {"m": {"backends": backends, "prefixAffinity": rule == AFFINE}}}))
    port, admin_port = reserve_port(), reserve_port()
    command = [
        sys.executable, "-m", "slipway_gateway", f"--routes={routes}", "--host=127.0.0.1", f"--port={port}",
        "--admin-host=127.0.0.1", f"--admin-port={admin_port}", "--log-level=WARNING",
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    ready = partial(_is_ready, f"http://127.0.0.1:{admin_port}/readyz")
    every_core = frozenset(os.sched_getaffinity(0))
    with processes.started(rule, command, url, every_core, folder / f"{rule}.log", ready, folder=ROOT):
        yield url


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def conversations(shape: TraceShape, salt: str) -> list[Session]:
    """Of words that are a token each. No prefix is shared with those of another salt."""
    vocabulary = words()

    def write(draw: random.Random, tokens: int) -> bytes:
        return "".join(" " + draw.choice(vocabulary) for _ in range(tokens)).encode()

    seed = random.Random(salt).getrandbits(60)
    return sessions(shape, seed, write)


class Oracle:
    """One cache for all servers, without a bound: what a perfect choice would find cached."""

    def __init__(self) -> None:
        self._blocks: set[tuple[int, int]] = set()

    def cached_tokens(self, text: str) -> int:
        tokens = text.split()
        parent, cached, unbroken = 0, 0, True
        for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            parent = hash((parent, *tokens[start : start + BLOCK_TOKENS]))
            unbroken = unbroken and (start, parent) in self._blocks
            cached += BLOCK_TOKENS * unbroken
            self._blocks.add((start, parent))
        return cached


async def drive(url: str, drawn: Sequence[Session], stagger_s: float) -> Measured:
    """All sessions, `stagger_s` after each other; each sends a turn when it has the answer to the one before."""
    measured, oracle = Measured(), Oracle()
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(url, timeout=timeout) as client:

        async def converse(number: int, session: Session) -> None:
            await asyncio.sleep(stagger_s * number)
            messages = [{"role": "system", "content": session.system.decode()}]
            for turn in session.turns:
                messages.append({"role": "user", "content": turn.added.decode()})
                text = "".join(message["content"] for message in messages)
                measured.oracle_tokens += oracle.cached_tokens(text)
                answer = await _ask(client, messages, measured)
                messages.append({"role": "assistant", "content": answer})
                await asyncio.sleep(turn.think_s)

        await asyncio.gather(*(converse(number, session) for number, session in enumerate(drawn)))
    return measured


async def _ask(client: aiohttp.ClientSession, messages: list[dict[str, str]], measured: Measured) -> str:
    body = {
        "model": "m", "messages": messages, "stream": True, "stream_options": {"include_usage": True},
        "max_tokens": OUTPUT_TOKENS, "temperature": 0, "ignore_eos": True,
    }  # fmt: skip
    began_s, first_s, answer = time.perf_counter(), 0.0, ""
    async with client.post("/v1/chat/completions", json=body) as response:
        if response.status != 200:
            measured.failures.append(f"{response.status}: {(await response.text())[:200]}")
            return ""
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            for choice in event.get("choices", ()):
                answer += choice["delta"].get("content") or ""
                first_s = first_s or (time.perf_counter() if answer else 0.0)
            if usage := event.get("usage"):
                measured.prompt_tokens += usage["prompt_tokens"]
                measured.cached_tokens += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    if first_s:
        measured.ttft_s.append(first_s - began_s)
    else:
        measured.failures.append("the stream had no text")
    return answer
