"""Each long-lived task of a server's process ends by an unexpected exception, and is at work again; requests go on."""

from pathlib import Path

import pytest

from slipway_predict.executor import Executor
from slipway_predict.http import app
from slipway_predict.http.pool import app as pool_app
from slipway_predict.pool.loading import ModelLoader
from slipway_predict.pool.pool import ProcessPool
from slipway_predict.process.image_decoders import ImageDecoders
from slipway_predict.settings import PredictSettings
from slipway_process.model_folder import classic
from slipway_process.serving import server as serving
from testkit.until import until_async
from tests.predict import onnx_models
from tests.predict.images.conftest import DIGITS
from tests.predict.pool.running import write
from tests.support.serving import flags_of, serving_of
from tests.support.tasks import fail, reasons

pytestmark = [pytest.mark.integration, pytest.mark.finding("F4"), pytest.mark.timeout(300)]

ROW = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1.0, 2.0, 3.0]}]}


@pytest.fixture(autouse=True)
def readable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hidden memory stays hidden for the rest of the process's life, which is that of all tests."""
    monkeypatch.setattr(app, "hide_memory", lambda: None)
    monkeypatch.setattr(pool_app, "hide_memory", lambda: None)


def settings_of(*flags: str) -> PredictSettings:
    return PredictSettings.parse(flags_of(*flags))


async def test_a_predict_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    onnx_models.linear(tmp_path / "m")
    settings = settings_of(f"--model={tmp_path / 'm'}", "--task=predict")
    calls = fail(monkeypatch, serving, "_beat")
    serve = app.serve(settings, classic.find(settings.model, settings.format, settings.task))
    async with serving_of(settings, serve, monkeypatch, app, pool_app) as server:
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
    async with serving_of(settings, pool_app.serve(settings), monkeypatch, app, pool_app) as server:
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
    async with serving_of(settings, pool_app.serve(settings), monkeypatch, app, pool_app) as server:

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
    serve = app.serve(settings, classic.find(settings.model, settings.format, settings.task))
    async with serving_of(settings, serve, monkeypatch, app, pool_app) as server:
        await until_async(lambda: calls == ["failed", "worked"], "the decoders start")
        assert server.tasks.restarts == ["warm-up"] and reasons(caplog) == {"warm-up"}
