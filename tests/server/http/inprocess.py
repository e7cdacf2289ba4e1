"""The HTTP half of a server in this process, with an engine whose tokens the test chooses: no torch."""

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp.test_utils import TestServer

from slipway_process.model_folder.checkpoint import Checkpoint, read
from slipway_process.serving.probes import Health
from slipway_server.engine.client import EngineClient, QueueLimits
from slipway_server.engine.messages import Commands, Ready, encode
from slipway_server.engine.request import FinishReason, Request, RequestOutput
from slipway_server.http.app import build
from slipway_server.http.requests.prompts import ServedModel
from slipway_server.http.responses.replay import ReplayLimits, ReplayStore
from slipway_server.http.service import ModelService
from slipway_server.metrics import ServerMetrics
from slipway_server.text.template_source import TemplateSource
from slipway_server.text.tokenizer import Tokenizer
from tests.conftest import MODELS

CONTEXT_TOKENS = 512
CHAT = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}<assistant>"


class Scripted(EngineClient):
    """Repeats `tokens` and records its requests. A request that cannot be sent to an engine fails here too."""

    def __init__(self) -> None:
        super().__init__(QueueLimits(256, 1 << 18), slots=32, on_step=lambda _: None)
        self.ready = Ready(
            kv_tokens=CONTEXT_TOKENS, block_tokens=16, load_seconds=0.0, dtype="float32", device="cpu", kernels="torch"
        )
        self.tokens: tuple[int, ...] = (5, 6, 7)
        self.requests: list[Request] = []
        self.cached_tokens: list[int] = []  # of each request
        self.pause_s = 0.0  # between two tokens

    async def stream(self, request: Request, *, admitted: bool = False) -> AsyncGenerator[RequestOutput, None]:
        encode(Commands([request], []))
        self.requests.append(request)
        cached = self.cached_tokens[len(self.requests) - 1] if self.cached_tokens else 0
        yield RequestOutput(request.id, cached_tokens=cached)
        if request.sampling is None:
            yield RequestOutput(request.id, embedding=bytes(16), finish=FinishReason.STOP)
            return
        resumed = len(request.resumed)
        for count in range(resumed + 1, request.sampling.max_tokens + 1):
            token = self.tokens[(count - 1) % len(self.tokens)]
            finish = request.sampling.finish_after(token, count)
            yield RequestOutput(request.id, token, finish=finish)
            if finish:
                return
            await asyncio.sleep(self.pause_s)


class InProcess:
    """One server. `post` gives status and JSON (or text) of an answer. `replay_s`: for which buffers are kept."""

    def __init__(
        self, model: ServedModel, max_body_bytes: int = 8 << 20, *, replay_s: float = 0.0, port: int | None = None
    ) -> None:
        self._replay_s, self._port = replay_s, port
        self.engine, self.metrics = Scripted(), ServerMetrics(model.name)
        health = Health(self.engine.heartbeat, 60.0)
        health.loaded = True
        self.service = ModelService(model, self.engine, self.metrics, health)
        self._max_body_bytes = max_body_bytes

    async def __aenter__(self) -> "InProcess":
        self.app, _ = build(
            self.service, ReplayStore(ReplayLimits(window_s=self._replay_s), self.metrics), self._max_body_bytes
        )
        self.server = TestServer(self.app, port=self._port)
        await self.server.start_server(auto_decompress=False)  # as serve() does
        self.client = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.client.close()
        await self.server.close()
        await self.service.reader.close()
        self.engine.heartbeat.close()

    @property
    def url(self) -> str:
        return str(self.server.make_url("")).rstrip("/")

    async def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.client.post(self.server.make_url(path), data=data, headers=headers) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if answer.content_type == "application/json" else text

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.client.get(self.server.make_url(path)) as answer:
            return answer.status, await answer.json()

    def outcomes(self) -> dict[str, float]:
        """Requests by how they ended."""
        found = [
            (sample.labels["outcome"], sample.value)
            for metric in self.metrics.registry.collect()
            for sample in metric.samples
            if sample.name == "slipway_server_requests_total" and sample.value
        ]
        return dict(found)


def model_of(
    folder: Path = MODELS / "tiny-v1", *, template: str | None = CHAT, task: str = "generate", **config: Any
) -> ServedModel:
    """The tokenizer of a folder, and a config.json with the fields of a test."""
    checkpoint: Checkpoint = read(folder, task=task)
    return ServedModel(
        name="chat",
        version="v1",
        checkpoint=replace(checkpoint, config=checkpoint.config | config),
        context_tokens=CONTEXT_TOKENS,
        tokenizer=Tokenizer(folder),
        template=TemplateSource(template),
    )
