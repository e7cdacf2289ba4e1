"""A real vLLM server on a CPU, in an environment of its own in the cache."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import psutil
from rich.console import Console

from bench.engine import environments
from devcluster.ports import reserve_port
from testkit import ROOT
from testkit.until import until
from tests.server.process import get

MODEL = ROOT / "examples" / "models" / "tiny-v1"
START_S = 1800.0  # it imports for a minute of CPU time


class VllmProcess:
    """One server. `folder`: for its log and its files. `flags`, `variables`: beside those of every test."""

    def __init__(
        self,
        folder: Path,
        *flags: str,
        host: str = "127.0.0.1",
        port: int = 0,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        port = port or reserve_port()
        self.url = f"http://{host}:{port}"
        self._log = folder / "vllm.log"
        self._process = _start(self._log, ("--host", host, "--port", str(port), *flags), variables)

    def __enter__(self) -> "VllmProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def engines(self) -> list[psutil.Process]:
        """All processes below the one that answers HTTP."""
        return psutil.Process(self._process.pid).children(recursive=True)

    def wait_ready(self) -> "VllmProcess":
        until(lambda: self._process.poll() is not None or self._is_healthy(), "vLLM", START_S)
        assert self._process.poll() is None, self.end_of_log()
        return self

    def _is_healthy(self) -> bool:
        try:
            return get(f"{self.url}/health")[0] == 200
        except OSError:
            return False

    def end_of_log(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]

    def kill(self) -> None:
        """As the kubelet does, with all of its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextlib.asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[VllmProcess]:
    """vLLM with its prefix cache, as it is by default. `folder`: for its log and its files."""
    process = await asyncio.to_thread(VllmProcess, folder)
    try:
        yield await asyncio.to_thread(process.wait_ready)
    finally:
        process.kill()


def _start(log: Path, flags: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    folder = environments.ensure(environments.vllm(), Console())
    usual = (
        *("--model", str(MODEL), "--served-model-name", "chat"),
        *("--enforce-eager", "--max-num-seqs", "4", "--kv-cache-memory-bytes", str(64 << 20)),
        *("--enable-prompt-tokens-details", "--scheduling-policy", "priority"),
    )
    its_own = {
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(folder / "cache"),  # what it finds out about models takes a process of its own
        "LD_PRELOAD": ":".join(environments.preloads(folder)),
        "PYTHONPATH": "",
        "HF_HUB_OFFLINE": "1",
    }
    command = [str(environments.python_of(folder)), "-m", "vllm.entrypoints.openai.api_server", *usual, *flags]
    every = {**os.environ, **its_own, **variables}
    with log.open("ab") as output:
        return subprocess.Popen(command, env=every, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
