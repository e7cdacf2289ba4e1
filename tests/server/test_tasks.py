"""Each long-lived task of a server's process ends by an unexpected exception, and is at work again; requests go on."""

from pathlib import Path

import pytest

from slipway_process import collector
from slipway_process.model_folder import checkpoint
from slipway_process.serving import server as serving
from slipway_server import language
from slipway_server.engine.client import EngineClient
from slipway_server.http import app
from slipway_server.http.reading.reader import RequestReader
from slipway_server.settings import ServerSettings
from testkit.until import until_async
from tests.support.serving import flags_of, serving_of
from tests.support.tasks import fail, reasons

pytestmark = [pytest.mark.integration, pytest.mark.finding("F4"), pytest.mark.timeout(300)]


async def test_a_language_server(
    tiny_v1: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing = {
        "beat": (serving, "_beat"),
        "collector": (collector, "_resident_bytes"),
        "warm-up": (RequestReader, "warm_up"),
    }
    calls = {name: fail(monkeypatch, *of) for name, of in failing.items()}
    settings, found = ServerSettings.parse(flags_of(f"--model={tiny_v1}")), checkpoint.read(tiny_v1)
    async with serving_of(settings, language.run(settings, found, 256), monkeypatch, app) as server:
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
