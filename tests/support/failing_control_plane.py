"""A control plane that fails on request: the API server dies, history is forgotten, connections are cut."""

import asyncio
import contextlib
import json
import signal
import subprocess
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import yaml

from devcluster.controlplane import ControlPlane
from testkit.until import until_async


class FailingControlPlane:
    """Of a test's own, because it is killed."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane

    def kill_api_server(self) -> subprocess.Popen[bytes]:
        process = self.plane._processes.pop()
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        return process

    def start_api_server(self, killed: subprocess.Popen[bytes]) -> None:
        self.plane._start("kube-apiserver", killed.args)  # type: ignore[arg-type]
        assert self.plane._becomes_ready(), self.plane.logs()[-2000:]

    def compact(self) -> None:
        """Forgets the history of etcd: any version from before is too old for a watch from now on."""
        etcd = next(str(arg) for arg in self.plane._processes[0].args if "listen-client-urls" in str(arg))  # type: ignore[union-attr]
        url = etcd.partition("=")[2]

        def call(path: str, body: dict[str, Any]) -> dict[str, Any]:
            request = urllib.request.Request(url + path, json.dumps(body).encode())
            with urllib.request.urlopen(request, timeout=10) as answer:
                return dict(json.load(answer))

        revision = call("/v3/kv/range", {"key": "Lw=="})["header"]["revision"]
        call("/v3/kv/compaction", {"revision": revision, "physical": True})


def kubeconfig_through(url: str, kubeconfig: Path) -> Path:
    """The same with another address."""
    content = yaml.safe_load(kubeconfig.read_text())
    content["clusters"][0]["cluster"]["server"] = url
    path = kubeconfig.with_name("forwarded.kubeconfig")
    path.write_text(json.dumps(content))
    return path


class Forwarder:
    """A TCP relay in front of the API server that can be cut: TLS passes through untouched."""

    def __init__(self, url: str) -> None:
        self._target = int(url.rsplit(":", 1)[1])
        self._server: asyncio.Server | None = None
        self._port = 0
        self._open: set[asyncio.StreamWriter] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        await self.start()
        try:
            yield f"https://127.0.0.1:{self._port}"
        finally:
            await self.cut()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        if self._server:
            self._server.close()
            for writer in list(self._open):
                writer.transport.abort()
            await until_async(lambda: not self._open)
            self._server = None

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        self._open.add(writer)
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            writers.append(back)
            self._open.add(back)
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        except ConnectionError:
            pass  # nothing listens there now: the client sees its connection end
        finally:
            for one in writers:
                one.transport.abort()
                with contextlib.suppress(ConnectionError):
                    await one.wait_closed()
                self._open.discard(one)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
