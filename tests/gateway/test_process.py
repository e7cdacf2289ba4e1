"""The gateway as a process, by a routes file: the real `openai` client, reload, drain."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import IO, Any

import aiohttp
import openai
import pytest
import yaml
from aiohttp import web

from testkit.until import until_async
from tests.plane.native import needs_plane

from .harness import streaming, upstream

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]


class Process:
    """One `slipway-gateway` with its log."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.log: list[dict[str, Any]] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stderr
        async for line in self.process.stderr:
            self.log.append(json.loads(line))

    def log_entries(self, text: str) -> list[dict[str, Any]]:
        return [entry for entry in self.log if text in entry["msg"]]

    def url(self, port: str) -> str:
        host, number = self.log_entries("listening")[0][port][0]
        return f"http://{host}:{number}"

    async def status(self, path: str, port: str = "admin") -> int:
        async with aiohttp.ClientSession() as client, client.get(self.url(port) + path) as answer:
            return answer.status

    async def ended(self) -> int:
        code = await asyncio.wait_for(self.process.wait(), 20)
        await self._reading
        return code

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.ended()


@contextlib.asynccontextmanager
async def gateway(
    *flags: str, ready: bool = True, stdout: IO[bytes] | None = None, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Process]:
    arguments = [
        "-m",
        "slipway_gateway",
        "--host=127.0.0.1",
        "--admin-host=127.0.0.1",
        "--port=0",
        "--admin-port=0",
        *flags,
    ]
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, *arguments),
        cwd=ROOT / "gateway",
        env={**os.environ, **(environment or {})},
        stdout=stdout,
        stderr=asyncio.subprocess.PIPE,
    )
    process = Process(started)
    try:
        await until_async(
            lambda: process.log_entries("listening") and (process.log_entries("routes file") or not ready)
        )
        yield process
    finally:
        await process.kill()


def routes(path: Path, *urls: str, revision: str = "v1", model: str = "chat") -> Path:
    backend = {"revision": revision, "weight": 100, "endpoints": list(urls)}
    path.write_text(yaml.safe_dump({"models": {model: {"salt": "1", "backends": [backend]}}}))
    return path


async def completion(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    if body.get("messages", [{}])[0].get("content") == "fail":
        return web.json_response({"error": {"message": "bad", "type": "x", "param": None, "code": "y"}}, status=400)
    if not body.get("stream"):
        message = {"role": "assistant", "content": "hello"}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return web.json_response(
            {"id": "1", "object": "chat.completion", "created": 0, "model": "chat", "choices": choices}
        )
    out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await out.prepare(request)
    for word in ("hel", "lo"):
        choices = [{"index": 0, "delta": {"content": word}, "finish_reason": None}]
        event = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "chat", "choices": choices}
        await out.write(b"data: " + json.dumps(event).encode() + b"\n\n")
    await out.write(b"data: [DONE]\n\n")
    return out


def without_library(folder: Path) -> dict[str, str]:
    """The environment of a process that finds this tree's code, and no compiled data plane."""
    source = ROOT / "plane" / "slipway_plane"
    shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


async def counter(process: Process, name: str) -> float:
    """A counter or gauge of a gateway, summed over its labels."""
    async with aiohttp.ClientSession() as client, client.get(process.url("admin") + "/metrics") as page:
        lines = (await page.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"slipway_gateway_{name}"))


@pytest.mark.parametrize("has_library", [pytest.param(True, marks=needs_plane), False])
async def test_by_default_the_fast_lane_serves_where_the_library_is_and_python_where_it_is_not(
    tmp_path: Path, has_library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLIPWAY_GATEWAY_PLANE", raising=False)
    environment = {} if has_library else without_library(tmp_path)
    async with (
        upstream(completion) as server,
        gateway("--routes", str(routes(tmp_path / "r.yaml", server.url)), environment=environment) as process,
        aiohttp.ClientSession() as client,
    ):
        for _ in range(3):
            body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
            async with client.post(process.url("api") + "/v1/chat/completions", json=body) as answer:
                assert answer.status == 200 and (await answer.json())["choices"]
        (line,) = process.log_entries("data plane")
        assert (line["level"], line["state"]) == ("info", "on" if has_library else "missing")
        assert has_library or "cannot be loaded" in line["reason"]
        assert await counter(process, f'plane{{state="{line["state"]}"}}') == 1
        assert await counter(process, "requests_total") == 3
        assert await counter(process, "fast_requests_total") == (3 if has_library else 0)


async def test_the_log_names_request_and_revision_and_no_path_forges_a_line(tmp_path: Path) -> None:
    async def broken(_: web.Request) -> web.StreamResponse:
        return web.Response(status=500)

    forged = '/x%0D{"ts":"now","level":"error","msg":"forged"}%C2%85%E2%80%A8'
    async with (
        upstream(broken) as server,
        gateway("--routes", str(routes(tmp_path / "r.yaml", server.url)), "--log-level=debug") as process,
        aiohttp.ClientSession() as client,
    ):
        await client.post(f"{process.url('api')}{forged}", headers={"X-Request-Id": "forger"})
        body = {"model": "chat", "messages": []}
        answer = await client.post(
            process.url("api") + "/v1/chat/completions", json=body, headers={"X-Request-Id": "one"}
        )
        assert answer.status == 500
        await until_async(lambda: process.log_entries("POST /v1/chat"))
        (line,) = process.log_entries("POST /v1/chat")
        assert (line["request_id"], line["revision"], line["code"], line["level"]) == ("one", "v1", 500, "warning")
        (line,) = process.log_entries("POST /x\r")
        assert (line["request_id"], line["level"]) == ("forger", "debug")
    assert all(list(line)[:4] == ["ts", "level", "logger", "msg"] for line in process.log)
    assert not [line for line in process.log if line["msg"] == "forged"]


async def test_openai_client(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    async with (
        upstream(completion) as server,
        gateway("--routes", str(routes(path, server.url))) as process,
        openai.AsyncOpenAI(api_key="k", base_url=process.url("api") + "/v1", max_retries=0) as client,
    ):
        assert [model.id for model in (await client.models.list()).data] == ["chat"]
        ask: Any = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
        whole = await client.chat.completions.create(**ask)
        assert whole.choices[0].message.content == "hello"
        raw = await client.chat.completions.with_raw_response.create(**ask)
        assert raw.headers["x-slipway-revision"] == "v1"
        async with await client.chat.completions.create(**ask, stream=True) as stream:
            assert "".join([part.choices[0].delta.content async for part in stream]) == "hello"
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model="chat", messages=[{"role": "user", "content": "fail"}])
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(**ask | {"model": "nope"})
        assert missing.value.code == "model_not_found"


async def test_reload_and_bad_edit(tmp_path: Path) -> None:
    path = routes(tmp_path / "r.yaml", "http://127.0.0.1:1")
    async with gateway("--routes", str(path)) as process:

        async def listed(model: str) -> bool:
            return await process.status(f"/v1/models/{model}", "api") == 200

        assert await listed("chat")
        path.write_text("models: [")
        await until_async(lambda: process.log_entries("last good one stays"))
        assert await listed("chat") and await process.status("/readyz") == 200
        routes(path, "http://127.0.0.1:1", model="other")
        process.process.send_signal(signal.SIGHUP)
        await until_async(lambda: process.log_entries("loaded: other"))
        assert await listed("other") and not await listed("chat")


async def test_drain_finishes_streams(tmp_path: Path) -> None:
    path = routes(tmp_path / "r.yaml", "")
    async with upstream(streaming(30, 0.1)) as server, aiohttp.ClientSession() as client:
        routes(path, server.url)
        async with gateway("--routes", str(path), "--drain-delay", "1") as process:
            url = process.url("api") + "/v1/completions"
            stream = await client.post(url, json={"model": "chat"})
            await stream.content.readline()
            process.process.send_signal(signal.SIGTERM)
            await until_async(lambda: process.log_entries("draining"))
            assert await process.status("/readyz") == 503
            # Endpoints elsewhere still name this gateway: what comes now is served, on a connection that ends.
            late = await client.post(url, json={"model": "chat"})
            assert late.status == 200 and late.headers["Connection"] == "close"
            await asyncio.sleep(2)
            with pytest.raises(aiohttp.ClientConnectorError):
                await process.status("/v1/models", "api")
            assert await process.status("/healthz") == 200
            for answer in (stream, late):
                assert (await answer.read()).endswith(b"data: [DONE]\n\n")
            assert await process.ended() == 0


@pytest.mark.parametrize("plane", ["off", "auto"])
async def test_the_port_stays_open_while_connections_come_after_the_delay(tmp_path: Path, plane: str) -> None:
    """A node under load sends them here for seconds after the endpoint has gone."""
    path = routes(tmp_path / "r.yaml", "http://127.0.0.1:1")
    async with gateway("--routes", str(path), "--drain-delay", "0.3", f"--plane={plane}") as process:
        process.process.send_signal(signal.SIGTERM)
        await until_async(lambda: process.log_entries("draining"))
        for _ in range(10):
            assert await process.status("/v1/models", "api") == 200
            await asyncio.sleep(0.2)
        assert await process.ended() == 0
        assert process.log_entries("the port closes")[0]["seconds_after_delay"] > 1


async def test_drain_serves_what_follows_a_stream_on_its_connection(tmp_path: Path) -> None:
    """The head of the response kept the connection alive: a client that sent its next request there saw a reset."""
    sessions = aiohttp.ClientSession(), aiohttp.ClientSession()
    async with upstream(streaming(10, 0.05)) as server, sessions[0] as client, sessions[1] as idle:
        path = routes(tmp_path / "r.yaml", server.url)
        async with gateway("--routes", str(path), "--drain-delay", "0") as process:
            url = process.url("api") + "/v1/completions"
            assert (await idle.get(process.url("api") + "/v1/models")).status == 200
            stream = await client.post(url, json={"model": "chat"})
            assert "Connection" not in stream.headers
            process.process.send_signal(signal.SIGTERM)
            await until_async(lambda: process.log_entries("draining"))
            assert (await stream.read()).endswith(b"data: [DONE]\n\n")
            await asyncio.sleep(0.2)
            following = await client.post(url, json={"model": "chat"})
            assert following.headers["Connection"] == "close"
            assert (await following.read()).endswith(b"data: [DONE]\n\n")
            assert await process.ended() == 0
            assert not process.log_entries("requests are cut")


async def test_drain_timeout_cuts(tmp_path: Path) -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/completions":
            return await streaming(1000, 0.1)(request)
        await asyncio.sleep(60)
        return web.Response()

    async with upstream(slow) as server, aiohttp.ClientSession() as client:
        path = routes(tmp_path / "r.yaml", server.url)
        async with gateway("--routes", str(path), "--drain-delay", "0", "--drain-timeout", "0.5") as process:
            stream = await client.post(process.url("api") + "/v1/completions", json={"model": "chat"})
            waiting = asyncio.create_task(client.post(process.url("api") + "/v1/embeddings", json={"model": "chat"}))
            await until_async(lambda: len(server.seen) == 2)
            process.process.send_signal(signal.SIGTERM)
            *_, error, done, _ = (await stream.read()).split(b"\n\n")
            assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "drained" and done == b"data: [DONE]"
            refused = await waiting
            assert refused.status == 503 and (await refused.json())["error"]["code"] == "draining"
            assert await process.ended() == 0
            assert process.log_entries("requests are cut")
        await until_async(lambda: server.cancelled == 2)


DRAIN_DELAY_S = 60


@pytest.mark.parametrize("flags", [(), ("--access-log=stdout",)])
async def test_the_access_log_on_stdout_is_whole_when_the_process_ends(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """Without the flag there is none."""
    with (tmp_path / "stdout").open("wb") as stdout:
        async with (
            upstream(completion) as server,
            gateway(
                *("--routes", str(routes(tmp_path / "r.yaml", server.url)), "--drain-delay=0", *flags),
                stdout=stdout,
            ) as process,
            aiohttp.ClientSession() as client,
        ):
            for model in ("chat", "none", "chat"):
                body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
                (await client.post(process.url("api") + "/v1/chat/completions", json=body)).close()
            process.process.send_signal(signal.SIGTERM)
            assert await process.ended() == 0
    lines = [json.loads(line) for line in (tmp_path / "stdout").read_bytes().splitlines()]
    written = [(200, "chat"), (200, "chat"), (404, None)] if flags else []
    # Those of the fast lane are written some moments after their requests.
    assert sorted((line["status"], line.get("model")) for line in lines) == sorted(written)


async def test_a_gateway_whose_access_log_cannot_be_written_does_not_start(tmp_path: Path) -> None:
    arguments = (
        "--routes",
        str(tmp_path / "r.yaml"),
        f"--access-log={tmp_path}/none/log",
        "--port=0",
        "--admin-port=0",
    )
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "slipway_gateway", *arguments, cwd=ROOT / "gateway", stderr=asyncio.subprocess.PIPE
    )
    _, stderr = await asyncio.wait_for(started.communicate(), 20)
    assert started.returncode == 1 and b"none/log" in stderr


async def test_second_signal_exits_now(tmp_path: Path) -> None:
    path = routes(tmp_path / "r.yaml", "http://127.0.0.1:1")
    async with gateway("--routes", str(path), "--drain-delay", str(DRAIN_DELAY_S)) as process:
        process.process.send_signal(signal.SIGTERM)
        await until_async(lambda: process.log_entries("draining"))
        started = time.monotonic()
        process.process.send_signal(signal.SIGTERM)
        assert await process.ended() == 1
        assert time.monotonic() - started < DRAIN_DELAY_S


async def test_missing_routes_file_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "later.yaml"
    async with gateway("--routes", str(path)) as process:
        assert await process.status("/readyz") == 503
        routes(path, "http://127.0.0.1:1")
        await until_async(lambda: process.log_entries("routes file loaded"))
        assert await process.status("/readyz") == 200


async def test_pure_python_parser_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIOHTTP_NO_EXTENSIONS", "1")
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "slipway_gateway", "--routes=x", cwd=ROOT / "gateway", stderr=asyncio.subprocess.PIPE
    )
    _, stderr = await asyncio.wait_for(started.communicate(), 20)
    assert started.returncode == 1 and b"--allow-pure-python" in stderr
