"""A real vLLM server on a CPU, in an environment of its own in the cache."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil
from rich.console import Console

from bench.engine import environments
from devcluster.ports import reserve_port
from testkit import ROOT

MODEL = ROOT / "examples" / "models" / "tiny-v1"
START_S = 900.0


@dataclass(frozen=True)
class Vllm:
    url: str
    pid: int

    @property
    def engines(self) -> list[psutil.Process]:
        """All processes below the one that answers HTTP."""
        return psutil.Process(self.pid).children(recursive=True)


@contextlib.asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Vllm]:
    """vLLM with its prefix cache, as it is by default. `folder`: for its log and its files."""
    port, log = reserve_port(), folder / "vllm.log"
    process = await asyncio.to_thread(_start, port, log)
    try:
        await _ready(process, port, log)
        yield Vllm(f"http://127.0.0.1:{port}", process.pid)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def _ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    async with aiohttp.ClientSession() as client, asyncio.timeout(START_S):
        while True:
            assert process.poll() is None, _end_of(log)
            with contextlib.suppress(aiohttp.ClientError):
                async with client.get(f"http://127.0.0.1:{port}/health") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(1)


def _start(port: int, log: Path) -> subprocess.Popen[bytes]:
    folder = environments.ensure(environments.vllm(), Console())
    flags = (
        *("--model", str(MODEL), "--served-model-name", "chat", "--host", "127.0.0.1", "--port", str(port)),
        *("--enforce-eager", "--max-num-seqs", "4", "--kv-cache-memory-bytes", str(64 << 20)),
        *("--enable-prompt-tokens-details", "--scheduling-policy", "priority"),
    )
    variables = os.environ | {
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(log.parent / "vllm"),
        "LD_PRELOAD": ":".join(environments.preloads(folder)),
        "PYTHONPATH": "",
        "HF_HUB_OFFLINE": "1",
    }
    command = [str(environments.python_of(folder)), "-m", "vllm.entrypoints.openai.api_server", *flags]
    with log.open("wb") as output:
        return subprocess.Popen(command, env=variables, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)


def _end_of(log: Path) -> str:
    return log.read_text()[-3000:]
