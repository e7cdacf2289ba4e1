"""A program that serves: started, watched from outside through /proc, and ended with all its children."""

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from devcluster.processes import dies_with_parent
from testkit.until import WaitFailed, until
from testkit.world import proc

MIB = 1 << 20
END_S = 15.0
TAIL_LINES = 12


class DidNotStart(Exception):
    """With the last lines of the output of the server."""


@dataclass(frozen=True, slots=True)
class Launch:
    command: Sequence[str]
    environment: Mapping[str, str]
    url: str
    ready_url: str  # answers 200 when requests will be


@dataclass(frozen=True, slots=True)
class Server:
    pid: int
    ready_s: float  # from its start

    def pids(self) -> list[int]:
        """The process and all that come from it."""
        return proc.family(self.pid)

    def pss_mib(self) -> float:
        """Proportional set size of all of it."""
        return sum(map(proc.pss_bytes, self.pids())) / MIB

    def rss_mib(self) -> float:
        return sum(map(proc.rss_bytes, self.pids())) / MIB

    def fds(self) -> int:
        """Open file descriptors."""
        return sum(map(proc.fds, self.pids()))

    def cpu_s(self) -> float:
        """CPU time of all processes that are alive, and of their children that have ended."""
        return sum(proc.cpu_s(pid, children=True) for pid in self.pids())


@contextmanager
def running(launch: Launch, log: Path, limit_s: float) -> Iterator[Server]:
    """Raises DidNotStart. The server and its children are gone at the end."""
    log.parent.mkdir(parents=True, exist_ok=True)
    dies = dies_with_parent()
    with log.open("w") as output:
        began = time.perf_counter()
        process = subprocess.Popen(
            list(launch.command),
            env={**os.environ, **launch.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,  # the repository's folders are no packages for others to find
            start_new_session=True,
            preexec_fn=dies,
        )
        try:
            _wait_until_ready(process, launch.ready_url, limit_s, log)
            yield Server(process.pid, time.perf_counter() - began)
        finally:
            _end(process)


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, within_s: float, log: Path) -> None:
    def look() -> bool:
        if process.poll() is not None:
            raise DidNotStart(f"It ended with status {process.returncode}: {_tail(log)}")
        return _answers(url)

    try:
        until(look, f"an answer of {url}", within_s)
    except WaitFailed:
        raise DidNotStart(f"It was not ready in time: {_tail(log)}") from None


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
    with suppress(ProcessLookupError):  # a child that outlived its parent
        os.killpg(process.pid, signal.SIGKILL)


def _tail(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-TAIL_LINES:])[-600:]
