"""Each long-lived task of a server's process ends by an unexpected exception, and is at work again; requests go on."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Coroutine, Iterable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from devcluster.ports import reserve_port
from slipway_predict.executor import Executor
from slipway_predict.http import app as predict_app
from slipway_predict.http.pool import app as pool_app
from slipway_predict.pool.loading import ModelLoader
from slipway_predict.pool.pool import ProcessPool
from slipway_predict.process.image_decoders import ImageDecoders
from slipway_process import collector
from slipway_process.model_folder import checkpoint
from slipway_process.model_folder import classic as model_file
from slipway_process.serving import server as serving
from slipway_server import language
from slipway_server.engine.client import EngineClient
from slipway_server.http import app as language_app
from slipway_server.http.reading.reader import RequestReader
from slipway_server.settings import ServerSettings, parse
from testkit.until import until_async
from tests.predict import onnx_models
from tests.predict.images.conftest import DIGITS
from tests.predict.pool.running import write
from tests.support.tasks import Started, fail, reasons

pytestmark = [pytest.mark.integration, pytest.mark.finding("F4"), pytest.mark.timeout(300)]

ROW = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1.0, 2.0, 3.0]}]}


class Server:
    """A server in this process, as its composition root runs it."""

    def __init__(self, settings: ServerSettings, session: aiohttp.ClientSession) -> None:
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


def settings_of(*flags: str) -> ServerSettings:
    ports = (f"--port={reserve_port()}", f"--probe-port={reserve_port()}")
    return parse(["--host=127.0.0.1", *ports, "--served-model-name=m", *flags])


@contextlib.asynccontextmanager
async def serving_of(
    settings: ServerSettings, serve: Coroutine[Any, Any, None], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Server]:
    Started.replace(monkeypatch, language_app, predict_app, pool_app)
    # For the rest of the process's life, which is that of all tests.
    monkeypatch.setattr(predict_app, "hide_memory", lambda: None)
    monkeypatch.setattr(pool_app, "hide_memory", lambda: None)
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


async def test_a_language_server(
    tiny_v1: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing = {
        "beat": (serving, "_beat"),
        "collector": (collector, "_resident_bytes"),
        "warm-up": (RequestReader, "warm_up"),
    }
    calls = {name: fail(monkeypatch, *of) for name, of in failing.items()}
    settings, found = settings_of(f"--model={tiny_v1}"), checkpoint.read(tiny_v1)
    async with serving_of(settings, language.run(settings, found, 256), monkeypatch) as server:
        await until_async(server.is_ready, "it is ready")
        for name, seen in calls.items():
            await until_async(lambda seen=seen: "worked" in seen, name)  # type: ignore[misc]
        assert set(server.tasks.restarts) == set(calls) == reasons(caplog)
        await server.restarts(calls)
        body = {"model": "m", "prompt": "a", "max_tokens": 4}
        assert await server.post("/v1/completions", body) == 200
        # The client of the engine has its own supervisor, which starts the engine's process again.
        engine = fail(monkeypatch, EngineClient, "_publish")
        assert await server.post("/v1/completions", body) == 503
        assert "a bug" in caplog.text and engine == ["failed"]
        await until_async(server.is_ready, "it is ready again")
        assert await server.post("/v1/completions", body) == 200


async def test_a_predict_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    onnx_models.linear(tmp_path / "m")
    settings = settings_of(f"--model={tmp_path / 'm'}", "--task=predict")
    calls = fail(monkeypatch, serving, "_beat")
    serve = predict_app.serve(settings, model_file.find(settings.model, settings.format, settings.task))
    async with serving_of(settings, serve, monkeypatch) as server:
        await until_async(server.is_ready, "it is ready")
        await until_async(lambda: "worked" in calls, "it beats")
        assert server.tasks.restarts == ["beat"] and reasons(caplog) == {"beat"}
        await server.restarts(["beat"])
        assert await server.post("/v2/models/m/infer", ROW) == 200
        batches = fail(monkeypatch, Executor, "_deliver")
        # Its batch is the one at which the bug was met; what waits is computed by the next process.
        assert await server.post("/v2/models/m/infer", ROW) == 503
        await until_async(server.is_ready, "it is ready again")
        assert await server.post("/v2/models/m/infer", ROW) == 200
        assert batches == ["failed", "worked"] and "a bug" in caplog.text


async def test_a_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    onnx_models.linear(tmp_path / "m")
    write(tmp_path, {"name": "m", "path": "m"})
    failing = {
        "beat": (serving, "_beat"),
        "loads": (ModelLoader, "work"),
        "pool-file": (ProcessPool, "_look"),
    }
    calls = {name: fail(monkeypatch, *of) for name, of in failing.items()}
    settings = settings_of(f"--model={tmp_path}", f"--pool-config={tmp_path / 'pool.json'}", "--task=predict")
    async with serving_of(settings, pool_app.serve(settings), monkeypatch) as server:
        await until_async(server.is_ready, "it is ready")
        for name, seen in calls.items():
            await until_async(lambda seen=seen: "worked" in seen, name)  # type: ignore[misc]
        assert set(server.tasks.restarts) == set(calls) == reasons(caplog)
        await server.restarts(calls)
        assert await server.post("/v2/models/m/infer", ROW) == 200
        write(tmp_path, {"name": "m", "path": "m"}, {"name": "other", "path": "m"})

        async def follows() -> bool:
            return await server.post("/v2/models/other/infer", ROW) == 200

        await until_async(follows, "it follows the file")


@pytest.mark.parametrize(("name", "status"), [("loads", 503), ("pool-file", 200)])
async def test_where_that_does_not_help_the_server_says_so(
    name: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx_models.linear(tmp_path / "m")
    write(tmp_path, {"name": "m", "path": "m"})
    monkeypatch.setattr("slipway_predict.pool.pool.POLL_S", 0.01)
    fail(monkeypatch, *{"loads": (ModelLoader, "work"), "pool-file": (ProcessPool, "_look")}[name], 10**9)
    settings = settings_of(f"--model={tmp_path}", f"--pool-config={tmp_path / 'pool.json'}", "--task=predict")
    async with serving_of(settings, pool_app.serve(settings), monkeypatch) as server:

        async def shown() -> bool:
            found, text = await server.get("/readyz")
            return found == status and f"failing again and again: {name}" in text

        await until_async(shown, "it says so")
        assert (await server.get("/healthz"))[0] == 200


async def test_decoders_of_images_are_warmed_up_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = fail(monkeypatch, ImageDecoders, "warm_up")
    settings = settings_of(f"--model={DIGITS}", "--task=predict")
    serve = predict_app.serve(settings, model_file.find(settings.model, settings.format, settings.task))
    async with serving_of(settings, serve, monkeypatch) as server:
        await until_async(lambda: calls == ["failed", "worked"], "the decoders start")
        assert server.tasks.restarts == ["warm-up"] and reasons(caplog) == {"warm-up"}
