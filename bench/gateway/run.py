"""One run: what is wished for, what came of it, and how its peers are started and take turns."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from bench.engine import machine
from bench.engine.environments import Environment, Unavailable, ensure
from bench.gateway import mock_build
from bench.gateway.load import CONNECTIONS, ClosedLoop
from bench.gateway.messages import CHAT, Message
from bench.gateway.peers import PEERS, Start, wrk
from bench.gateway.programs import NO_STREAMS, prepare, redis, started, upstream
from bench.gateway.report import Json
from bench.gateway.upstream import StreamShape
from bench.processes import Cores, Program, free_port
from devcluster.steps.progress import print_line
from testkit.world import proc

T = TypeVar("T")
EVENT_STREAMS = (100, 250)


@dataclass
class Run:
    """`seconds`: of one peer in one round. `streams`: open at once, for their memory. `event_streams`: for the CPU time
    of an event, one measurement with each. `downloads`: peers, wrk and the mock in Rust may be fetched and built."""

    console: Console
    peers: Sequence[str]
    rounds: int
    seconds: float
    streams: int
    folder: Path
    downloads: bool = True
    event_streams: Sequence[int] = EVENT_STREAMS
    cores: Cores = field(default_factory=Cores.pick)
    by_wrk: bool = False
    in_rust: bool = False
    rows: list[Json] = field(default_factory=list)
    noise: dict[str, Json] = field(default_factory=dict)
    not_measured: dict[str, str] = field(default_factory=dict)

    def prepare(self) -> None:
        """Makes what the peers need; a peer that cannot be had is not measured."""
        for name in self.peers:
            try:
                prepare(PEERS[name], self.console)
            except Unavailable as error:
                self.leave_out(name, error)
        if self.downloads:
            self.by_wrk = self._have("wrk", "clients of aiohttp make the load", wrk())
            self.in_rust = self._have("mock", "the model server is one in Python", mock_build.environment())

    def _have(self, name: str, otherwise: str, environment: Environment) -> bool:
        try:
            ensure(environment, self.console)
        except Unavailable as error:
            self.not_measured[name] = f"{error} So {otherwise}."
            self.note(f"no {name}: {self.not_measured[name]}")
            return False
        return True

    def leave_out(self, name: str, error: Unavailable) -> None:
        self.not_measured[name] = str(error)
        self.note(f"{name} is not measured: {error}")

    def peers_of(self, part: str) -> list[str]:
        return [name for name in self.peers if name not in self.not_measured and part in PEERS[name].parts]

    def versions(self) -> dict[str, str]:
        """Of the peers that were measured and are not of this tree."""
        found = {name: PEERS[name].version() for name in self.peers if name not in self.not_measured}
        return {name: version for name, version in found.items() if version}

    def note(self, text: str) -> None:
        print_line(self.console, f"{time.strftime('%H:%M:%S')}  {text}")

    def closed_loop(self, message: Message = CHAT, connections: int = CONNECTIONS) -> ClosedLoop:
        return ClosedLoop(message, self.seconds, self.folder if self.by_wrk else None, connections)

    def upstream(self, shape: StreamShape = NO_STREAMS) -> contextlib.AbstractContextManager[str]:
        return upstream(self.cores.load, self.folder, shape, in_rust=self.in_rust)

    def start_of(self, name: str, url: str, certificate: Path | None = None, grpc_port: int = 0) -> Start:
        return Start(self.folder / name, free_port(), url, certificate, grpc_port)

    def redis(self, stack: ExitStack, names: Sequence[str]) -> str:
        """URL of a server that runs until the stack ends; "": none of these peers needs one."""
        if not any(PEERS[name].needs_redis for name in names):
            return ""
        return stack.enter_context(redis(self.cores.load, self.folder))

    def start_all(
        self, stack: ExitStack, names: Sequence[str], start: Callable[[str], Start], message: Message = CHAT
    ) -> list[Program]:
        """One process of each, on the measured core until the stack ends. A peer that does not start is left out."""
        programs = []
        for name in names:
            try:
                peer = started(PEERS[name], start(name), self.cores.measured, message)
                programs.append(stack.enter_context(peer))
            except Unavailable as error:
                self.leave_out(name, error)
        return programs

    def in_turns(self, programs: Sequence[Program], rounds: int, measure: Callable[[Program], T]) -> dict[str, list[T]]:
        """By the name of a program: one measurement of each round. The order is reversed each round."""
        measured: dict[str, list[T]] = {program.name: [] for program in programs}
        for number in range(rounds):
            for program in programs[:: -1 if number % 2 else 1]:
                measured[program.name].append(measure(program))
        return measured

    @contextlib.contextmanager
    def noise_of(self, part: str) -> Iterator[None]:
        """Keeps what other work and the host took of all cores while the block ran."""
        before, ours_s = machine.now(), _ours_s()
        yield
        self.noise[part] = machine.shares(before, machine.now(), ours_s=_ours_s() - ours_s)
        self.note(f"{part} is measured; other work took {self.noise[part]['foreign_share']:.0%} of all cores")


def _ours_s() -> float:
    """CPU time of this process and all that it has started."""
    return sum(proc.cpu_s(pid, children=True) for pid in proc.family(os.getpid()))
