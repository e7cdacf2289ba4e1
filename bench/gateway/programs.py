"""The gateway, its peers and the model server behind them as processes: started on their cores, and found ready."""

import contextlib
import os
import socket
import ssl
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from rich.console import Console

from bench import processes
from bench.engine.environments import Unavailable
from bench.gateway import mock_build
from bench.gateway.messages import CHAT, Message
from bench.gateway.peers import Peer, Start, redis_program
from bench.gateway.upstream import StreamShape
from bench.processes import Program, free_port
from devcluster.certificates import Authority
from devcluster.errors import DevclusterError

# No part but those of streams has streams.
NO_STREAMS = StreamShape(1, 1.0, marks=False)


def prepare(peer: Peer, console: Console) -> None:
    """Raises Unavailable with the reason."""
    try:
        peer.prepare(console)
    except DevclusterError as error:
        raise Unavailable(str(error)) from error


@contextlib.contextmanager
def upstream(core: int, folder: Path, shape: StreamShape = NO_STREAMS, *, in_rust: bool) -> Iterator[str]:
    """URL of the model server that all peers forward to. `in_rust`: the one of `mock/`, which was built before."""
    port = free_port()
    program = [mock_build.program()] if in_rust else [sys.executable, "-m", "bench.gateway.upstream"]
    command = [*program, str(port), str(shape.events), str(round(shape.gap_s * 1e3)), str(int(shape.marks))]
    url, log = f"http://127.0.0.1:{port}", folder / "upstream.log"
    with processes.started("upstream", command, url, core, log, partial(_is_ready, url, CHAT, {})):
        yield url


@contextlib.contextmanager
def redis(core: int, folder: Path) -> Iterator[str]:
    """URL of an empty Redis server, whose CPU time is no peer's. Raises Unavailable."""
    port = free_port()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    command: list[str | Path] = [str(redis_program()), *options, "--dir", str(folder)]
    url = f"redis://127.0.0.1:{port}/0"
    with processes.started("redis", command, url, core, folder / "redis.log", partial(_takes_connections, port)):
        yield url


def _takes_connections(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@contextlib.contextmanager
def started(peer: Peer, start: Start, cores: int | frozenset[int], message: Message = CHAT) -> Iterator[Program]:
    """One peer on its cores. `message`: that it answers when it is ready.

    Raises:
        Unavailable: with the end of its log, when it does not get ready.
    """
    start.folder.mkdir(exist_ok=True)
    url = f"http{'s' if start.certificate else ''}://127.0.0.1:{start.port}"
    ready = partial(_is_ready, url, message, peer.headers)
    log, command = start.folder / "log", peer.command(start)
    with processes.started(
        peer.name, command, url, cores, log, ready, headers=peer.headers, environment=start.environment
    ) as program:
        yield program


def _is_ready(url: str, message: Message, headers: Mapping[str, str]) -> bool:
    """Whether a request is answered by the upstream."""
    sent = urllib.request.Request(url + message.path, message.body, {"Content-Type": "application/json", **headers})
    with contextlib.suppress(OSError), urllib.request.urlopen(sent, timeout=10, context=unverified()) as reply:
        return bool(reply.status == 200)
    return False


def unverified() -> ssl.SSLContext:
    """Of clients: what is measured is the time, and all certificates are of this run."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def certificate(folder: Path) -> Path:
    """A new server's certificate of 127.0.0.1 (P-256), with its key beside it."""
    authority = Authority.create(folder / "authority")
    authority.issue("server", "bench", hosts=["127.0.0.1"])
    # nginx gives up root, and then cannot enter a folder of root's.
    os.chmod(folder / "authority", 0o755)
    return folder / "authority" / "server.crt"
