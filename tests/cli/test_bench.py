"""`slipway bench` against a real gateway with an upstream that has slots, and `slipway size` with its report."""

import asyncio
import contextlib
import importlib.util
import json
import math
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from slipway_cli.bench.load import Load, Window
from slipway_cli.commands.root import cli
from slipway_cli.sizing import report
from tests.gateway.harness import Gateway, Upstream, gateway, upstream

pytestmark = pytest.mark.integration

SLOTS = 4
QUICK = ("--step-seconds", "0.4", "--max-seconds", "60", "--max-requests", "2000", "--timeout", "20s")


@dataclass
class Engine:
    """Streams of a token each `token_s`. With more than `slots` at the same time the last one waits for `wait_s`."""

    token_s: float = 0.01
    slots: int = SLOTS
    wait_s: float = 1.2
    fails_after: int | None = None  # requests
    most_at_once: int = 0
    at_once: int = 0
    prompts: list[str] = field(default_factory=list)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.prompts.append(body["messages"][0]["content"])
        if self.fails_after is not None and len(self.prompts) > self.fails_after:
            return web.json_response({"error": {"message": "no", "code": "engine_broken"}}, status=500)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        if self.at_once > self.slots:
            await asyncio.sleep(self.wait_s)
        return await self._stream(request, body)

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for _ in range(body["max_tokens"]):
            await asyncio.sleep(self.token_s)
            await answer.write(_event({"choices": [{"index": 0, "delta": {"content": "a"}}]}))
        self.at_once -= 1  # before the client can send its next request
        words = len(self.prompts[-1].split())
        usage = {"prompt_tokens": 10 + 2 * words, "completion_tokens": body["max_tokens"]}
        await answer.write(_event({"choices": [], "usage": usage}))
        await answer.write(b"data: [DONE]\n\n")
        return answer


def _event(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


@contextlib.asynccontextmanager
async def serving(handler: Any) -> AsyncIterator[tuple[Gateway, Upstream]]:
    async with upstream(handler) as server, gateway() as edge:
        edge.route(("r1", 100, [server.url]))
        yield edge, server


async def slipway(*arguments: object) -> Result:
    """The command in a thread of its own: gateway and upstream are in this one."""
    return await asyncio.to_thread(CliRunner().invoke, cli, [str(argument) for argument in arguments])


async def test_the_concurrency_at_which_requests_begin_to_wait_is_found(tmp_path: Path) -> None:
    """With more than four in progress requests wait for longer than the objective, so four is the most that holds."""
    engine, file, picture = Engine(token_s=0.002), tmp_path / "report.json", tmp_path / "bench.svg"
    async with serving(engine.serve) as (edge, server):
        found = await slipway(
            *("bench", "--url", edge.url, "--model", "default/chat", "--slo", "ttftP95=1s", *QUICK),
            *("--step-seconds", 0.5, "--refinements", 1),
            *("--prompt-tokens", "100-300", "--output-tokens", "10", "--max-concurrency", 8, "--save", file),
            *("--picture", picture, "-o", "json"),
        )
        assert found.exit_code == 0, (found.stdout, found.stderr, found.exception)
        sent = len(server.seen)
    seen = json.loads(found.stdout)
    assert seen["best"]["concurrency"] == SLOTS
    assert seen["limit"] == "ttftP95"
    assert [row["concurrency"] for row in seen["table"]] == [1, 2, 4, 8, 6]
    assert engine.most_at_once <= 8, "it goes no further than the first step that fails"
    assert len({prompt.split()[0] for prompt in engine.prompts}) == len(engine.prompts) == sent
    assert picture.read_text().lstrip().startswith("<?xml")
    saved = report.read(file.read_bytes())
    assert saved.tokens == "counted"
    best = next(step for step in saved.steps if step.concurrency == SLOTS)
    prompt_tokens = best.prompt_tokens / len(best.latency_ms)
    assert 150 < prompt_tokens < 250, "lengths are in tokens of the server, which has two for a word"
    assert all(latency >= 20 for latency in best.latency_ms), "ten tokens of 2 ms"
    rate = seen["best"]["rate"]
    assert 1 < rate <= SLOTS / 0.02
    answered = await slipway("size", "--from", file, "--rate", 10 * rate, "--utilization", 100, "--spare", 1,
                             "--price-hour", 2, "-o", "json")  # fmt: skip
    assert answered.exit_code == 0, answered.stderr
    size = json.loads(answered.stdout)
    assert size["answer"]["pods"] == 11
    assert size["answer"]["cost"]["hour"] == 22
    assert size["capacity"]["basis"] == "Measured"


async def test_errors_end_it_with_what_there_is(tmp_path: Path) -> None:
    engine = Engine(token_s=0.001, fails_after=40)
    async with serving(engine.serve) as (edge, server):
        found = await slipway(
            *("bench", "--url", edge.url, "--model", "default/chat", "--slo", "latencyP99=10s", *QUICK),
            *("--output-tokens", "5", "--max-concurrency", 8),
        )
        assert found.exit_code in (0, 1), found.stderr
        assert "limit: errors:" in found.stdout
        assert "500 engine_broken" in found.stdout
        assert len(server.seen) < 400, "a server that fails is not flooded"


async def test_a_stream_that_breaks_off_is_no_whole_response() -> None:
    """A server that dies after the first token would otherwise be the fastest one."""

    async def serve(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        await answer.write(_event({"choices": [{"index": 0, "delta": {"content": "a"}}]}))
        return answer

    async with upstream(serve) as server:
        found = await slipway("bench", "--url", server.url, "--model", "a/chat", "--slo", "ttftP95=1s", *QUICK)
    assert found.exit_code == 1 and "failed: the stream broke off" in str(found.exception)


async def test_files_that_cannot_be_written_lose_no_measurement(tmp_path: Path) -> None:
    engine = Engine(token_s=0.001)
    async with serving(engine.serve) as (edge, _):
        found = await slipway(
            *("bench", "--url", edge.url, "--model", "default/chat", "--slo", "ttftP95=10s", *QUICK),
            *("--output-tokens", "5", "--max-concurrency", 1, "--save", tmp_path / "absent" / "report.json"),
        )
    assert found.exit_code == 1 and "report.json cannot be written" in str(found.exception)
    assert "best: 1 in progress" in found.stdout


async def test_a_picture_without_matplotlib_is_refused_before_any_load(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    async with serving(engine.serve) as (edge, _):
        arguments = ("--model", "default/chat", "--slo", "ttftP95=1s", "--picture", "a.svg")
        found = await slipway("bench", "--url", edge.url, *arguments)
    assert found.exit_code == 1 and "needs matplotlib" in str(found.exception)
    assert not engine.prompts


async def test_it_sends_no_more_requests_than_it_may() -> None:
    engine = Engine(token_s=0.0, slots=64)
    async with serving(engine.serve) as (edge, server):
        found = await slipway(
            *("bench", "--url", edge.url, "--model", "default/chat", "--slo", "latencyP99=60s"),
            *("--output-tokens", "2", "--max-concurrency", 8, "--max-requests", 200, "--refinements", 1),
            *("--step-seconds", 5, "--max-seconds", 60),
        )
        assert found.exit_code == 0, (found.stdout, found.stderr)
        assert len(server.seen) <= 202, "two more show how many tokens a word has"
    assert "limit: not reached" in found.stdout or "limit: throughput" in found.stdout


async def test_a_hung_server_ends_with_the_time_and_holds_nothing() -> None:
    hangs = asyncio.Event()
    engine = Engine(token_s=0.001)

    async def serve(request: web.Request) -> web.StreamResponse:
        if len(engine.prompts) >= 20:
            await hangs.wait()
        return await engine.serve(request)

    async with serving(serve) as (edge, _):
        found = await slipway(
            *("bench", "--url", edge.url, "--model", "default/chat", "--slo", "ttftP95=10s", "--timeout", "60s"),
            *("--output-tokens", "5", "--max-concurrency", 1, "--step-seconds", 0.5, "--refinements", 0),
            *("--max-seconds", 2),
        )
        hangs.set()
    assert found.exit_code == 1, found.stdout
    assert "no step holds the objectives" in str(found.exception)


async def test_a_classic_model_is_measured_by_latency(tmp_path: Path) -> None:
    async def serve(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.005)
        return web.json_response({"outputs": []})

    body = tmp_path / "body.json"
    body.write_text(json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}]}))
    file = tmp_path / "report.json"
    async with serving(serve) as (edge, server):
        found = await slipway(
            *("bench", "--url", edge.url, "--model", "default/chat", "--slo", "latencyP99=5s", *QUICK),
            *("--body", body, "--max-concurrency", 2, "--save", file),
        )
        assert found.exit_code == 0, (found.stdout, found.stderr)
        assert {request.path for request in server.seen} == {"/v2/models/chat/infer"}
    answered = await slipway("size", "--from", file, "--rate", 1, "--price-hour", 1)
    assert "for 1,000 requests" in answered.stdout
    assert "million" not in answered.stdout


@pytest.mark.parametrize("ticks", range(4))
async def test_an_interruption_that_comes_with_a_change_is_not_lost(ticks: int) -> None:
    """`asyncio.wait_for` loses it before Python 3.12."""
    async with asyncio.TaskGroup() as group:
        load, window = Load(group, cast(Any, None), 1, math.inf), Window(1, 1.0)
        waiting = group.create_task(load._change(window, 60))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        window.changed.set()
        for _ in range(ticks):
            await asyncio.sleep(0)
        has_ended = waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert has_ended or waiting.cancelled()


async def test_an_interruption_prints_what_there_is(tmp_path: Path) -> None:
    engine = Engine(slots=64, wait_s=20)
    async with serving(engine.serve) as (edge, _):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "slipway_cli", "bench", "--url", edge.url, "--model", "default/chat"),
            *("--slo", "ttftP95=10s", "--output-tokens", "5", "--step-seconds", "0.5", "--max-concurrency", "64"),
            *("--max-seconds", "500"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert process.stderr
        async for line in process.stderr:
            if line.startswith(b"1 in progress"):
                break
        engine.slots = 0  # the next step takes longer than the signal
        process.send_signal(signal.SIGINT)
        output, _ = await process.communicate()
    assert process.returncode == 130
    assert output.startswith(b"IN PROGRESS")
    assert b"best: 1 in progress" in output or b"best: 2 in progress" in output


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("--model", "absent", "--slo", "ttftP95=1s"), 1, "the first request of absent"),
        (("--model", "chat",), 2, "write --slo with ttftP95"),
        (("--model", "chat", "--slo", "ttftP95=1"), 2, "is no time like 800ms or 2s"),
        (("--model", "chat", "--slo", "ttftP95=1s", "--max-seconds", "10"), 2, "and --max-seconds is 10"),
        (("--model", "chat", "--slo", "ttftP95=1s", "--max-requests", "10"), 2, "and --max-requests is 10"),
        (("--model", "chat", "--slo", "ttftP95=1s", "--prompt-tokens", "9-1"), 2, "the first number is at least 1"),
        (("--model", "chat", "--slo", "ttftP95=1s", "--picture", "a.gif"), 1, "ends in .svg or .png"),
        (("chat", "--model", "chat", "--slo", "ttftP95=1s"), 2, "give a NAME, or --model MODEL"),
        (("--model", "chat", "--slo", "ttftP95=1s", "--url", "ftp://a"), 1, "is no URL of a gateway"),
    ],
)  # fmt: skip
async def test_what_cannot_be_measured_is_named_before_any_load(
    arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    engine = Engine()
    async with serving(engine.serve) as (edge, _):
        found = await slipway("bench", "--url", edge.url, *arguments)
    assert found.exit_code == code
    assert sentence in found.stderr + str(found.exception)
    assert not engine.prompts
