"""Programs that are measured side by side: each is started on one core, found ready, and stopped."""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.engine.environments import Unavailable
from testkit import ROOT
from testkit.world import proc

START_S, STOP_S = 180.0, 10.0


@dataclass(frozen=True, slots=True)
class Cores:
    """`load`: of the generators, and of what is not measured; `measured`: of the measured program. The same on a
    single core."""

    load: int
    measured: int

    @classmethod
    def pick(cls) -> "Cores":
        allowed = sorted(os.sched_getaffinity(0))
        return cls(allowed[0], allowed[-1])


@dataclass(frozen=True, slots=True)
class Program:
    """A running program. `url`: where it takes requests. `headers`: that each request needs."""

    name: str
    url: str
    pids: tuple[int, ...]
    headers: Mapping[str, str] = field(default_factory=dict)

    def cpu_s(self) -> float:
        """User and system time of all its processes so far, with those that have ended."""
        return sum(proc.cpu_s(pid, children=True) for pid in self._family())

    def rss_bytes(self) -> int:
        return sum(proc.rss_bytes(pid) for pid in self._family())

    def _family(self) -> list[int]:
        return [pid for own in self.pids for pid in proc.family(own)]


@contextlib.contextmanager
def started(
    name: str,
    command: Sequence[str | Path],
    url: str,
    core: int | frozenset[int],
    log: Path,
    is_ready: Callable[[], bool],
    *,
    headers: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path = ROOT,
) -> Iterator[Program]:
    """One program on one core, or on some, until the block ends.

    Raises:
        Unavailable: with the end of its log, when it ends or does not get ready within `START_S`.
    """
    with log.open("w") as lines, on_core(core):
        process = subprocess.Popen(
            list(map(str, command)),
            cwd=folder,
            env=os.environ | dict(environment or {}),
            stdout=lines,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait(name, process, log, is_ready)
        yield Program(name, url, (process.pid,), headers or {})
    finally:
        _stop(process)


def _wait(name: str, process: subprocess.Popen[bytes], log: Path, is_ready: Callable[[], bool]) -> None:
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s and process.poll() is None:
        if is_ready():
            return
        time.sleep(0.2)
    end = log.read_text(errors="replace").strip().splitlines()[-3:]
    raise Unavailable(f"{name} does not get ready: {' … '.join(end)[-400:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """With all its children: some peers leave servers behind that listen on."""
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        for child in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()
    process.wait()


@contextlib.contextmanager
def on_core(core: int | frozenset[int]) -> Iterator[None]:
    """This process, and what is started inside, runs on this core alone, or on these."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core} if isinstance(core, int) else core)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def free_port() -> int:
    """A port that nothing listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
