"""A model server within the process of a test: its tasks can be made to fail."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Coroutine, Iterable
from types import ModuleType
from typing import Any

import aiohttp
import pytest

from devcluster.ports import reserve_port
from slipway_process.serving.settings import ServingSettings
from testkit.until import until_async
from tests.support.tasks import Started


class Server:
    """A server in this process, as its composition root runs it."""

    def __init__(self, settings: ServingSettings, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._url, self._probes = (f"http://127.0.0.1:{port}" for port in (settings.port, settings.probe_port))

    @property
    def tasks(self) -> Started:
        return Started.made[0]

    async def get(self, path: str) -> tuple[int, str]:
        """Of the probe port; the others of the API's."""
        with contextlib.suppress(aiohttp.ClientConnectionError):
            async with self._session.get(self._probes + path) as response:
                return response.status, await response.text()
        return 0, ""

    async def is_ready(self) -> bool:
        return (await self.get("/readyz"))[0] == 200

    async def post(self, path: str, body: Any) -> int:
        async with self._session.post(self._url + path, json=body) as response:
            await response.read()
            return response.status

    async def restarts(self, names: Iterable[str]) -> None:
        """Each of these tasks was started again once, which the metric counts."""
        async with self._session.get(self._url + "/metrics") as response:
            page = await response.text()
        for name in names:
            assert f'slipway_task_restarts_total{{task="{name}"}} 1.0' in page


def flags_of(*flags: str) -> list[str]:
    """Flags of a server on free ports, whose model is `m`."""
    return [
        "--host=127.0.0.1",
        f"--port={reserve_port()}",
        f"--probe-port={reserve_port()}",
        "--served-model-name=m",
        *flags,
    ]


@contextlib.asynccontextmanager
async def serving_of(
    settings: ServingSettings, serve: Coroutine[Any, Any, None], monkeypatch: pytest.MonkeyPatch, *apps: ModuleType
) -> AsyncIterator[Server]:
    """The server while it serves. `apps`: modules that make its supervisor."""
    Started.replace(monkeypatch, *apps)
    running = asyncio.create_task(serve)
    try:
        async with aiohttp.ClientSession() as session:
            server = Server(settings, session)

            async def listens() -> bool:
                return running.done() or (await server.get("/healthz"))[0] != 0

            await until_async(listens, "it listens")
            assert not running.done(), await running
            yield server
            assert not running.done(), await running
    finally:
        if not running.done():
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, 60)
