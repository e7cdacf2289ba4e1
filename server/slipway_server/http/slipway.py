"""The endpoints beside OpenAI's: /v1/generate and /api/v1, thin adapters over the same deltas."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from aiohttp import web

from slipway_process.json_lists import json_list
from slipway_process.serving.bodies import body_of, json_response
from slipway_process.serving.priority import priority_of

from .openai import check_model
from .requests.sampling import Sampling, sampling_of
from .requests.schemas import ApiGenerateRequest, EmbedRequest, GenerateRequest, NamedGenerateRequest
from .responses.delta import Delta
from .responses.embeddings import VECTORS
from .responses.replay import ReplayStore
from .responses.resume import IncomingRequest, StreamPosition, read_request
from .responses.shapes import Choice
from .responses.sse import stream_events
from .service import ModelService


class Slipway:
    def __init__(self, service: ModelService, replays: ReplayStore) -> None:
        self._service, self._replays = service, replays

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/generate", self.generate),
            web.post("/api/v1/generate", self.api_generate),
            web.post("/api/v1/embed", self.api_embed),
            web.post("/api/v1/models/{name}/generate", self.named_generate),
        ]

    async def generate(self, http: web.Request) -> web.StreamResponse:
        incoming = await read_request(http, self._service.tenants)
        body, [prompt] = await self._service.read(incoming.body, GenerateRequest, incoming.tenant)
        priority = priority_of(http.headers, body.priority)
        identity = incoming.stream_identity(body.seed)
        generation = await self._service.prepare_generation(
            body, body.model, seed=identity.seed, priority=priority, tenant=incoming.tenant
        )
        progress = incoming.track_progress(identity, streamed=bool(body.stream))

        def source(resumed: tuple[int, ...]) -> AsyncGenerator[Delta, None]:
            return self._service.generate(prompt.tokens, generation, resumed=resumed)

        prompt_tokens = len(prompt.tokens)
        answer = self._replays.answer(incoming, identity, source, progress=progress, known=incoming.resumed_tokens)
        async with aclosing(answer) as deltas:
            if body.stream:
                events = typed_events(deltas, prompt_tokens, progress)
                return await stream_events(
                    http, events, done=False, error=typed_error, progress=progress, prompt_tokens=prompt_tokens
                )
            choice = await collect(deltas)
        return json_response(
            {
                "id": f"gen-{time.monotonic_ns():x}",
                "model": body.model,
                "text": choice.text,
                "finish_reason": choice.finish,
                "usage": usage_of(prompt_tokens, choice.tokens),
            }
        )

    async def api_generate(self, http: web.Request) -> web.StreamResponse:
        incoming = await read_request(http, self._service.tenants)
        body, [prompt] = await self._service.read(incoming.body, ApiGenerateRequest, incoming.tenant)
        return await self._api_answer(http, incoming, prompt.tokens, sampling_of(body), body.model)

    async def named_generate(self, http: web.Request) -> web.StreamResponse:
        incoming = await read_request(http, self._service.tenants)
        name = http.match_info["name"]
        check_model(self._service, name)
        body, [prompt] = await self._service.read(incoming.body, NamedGenerateRequest, incoming.tenant)
        return await self._api_answer(http, incoming, prompt.tokens, sampling_of(body), name)

    async def api_embed(self, http: web.Request) -> web.Response:
        tenant = self._service.tenants.of(http.headers)
        _, texts = await self._service.read(await body_of(http), EmbedRequest, tenant)
        prompts = [prompt.tokens for prompt in texts]
        vectors = await self._service.embed(prompts, tenant=tenant)
        return json_response(
            {
                "embeddings": await asyncio.to_thread(json_list, (one.tolist() for one in vectors), VECTORS),
                "dimensions": len(vectors[0]),
                "usage": {"input_tokens": sum(map(len, prompts))},
                "model_version": self._service.model.version,
            }
        )

    async def _api_answer(
        self, http: web.Request, incoming: IncomingRequest, prompt: tuple[int, ...], sampling: Sampling, model: str
    ) -> web.StreamResponse:
        began = time.monotonic()
        priority = priority_of(http.headers)
        identity = incoming.stream_identity(sampling.seed)
        generation = await self._service.prepare_generation(
            sampling, model, seed=identity.seed, priority=priority, tenant=incoming.tenant
        )
        progress = incoming.track_progress(identity, streamed=bool(sampling.stream))

        def source(resumed: tuple[int, ...]) -> AsyncGenerator[Delta, None]:
            return self._service.generate(prompt, generation, resumed=resumed)

        answer = self._replays.answer(incoming, identity, source, progress=progress, known=incoming.resumed_tokens)
        async with aclosing(answer) as deltas:
            if sampling.stream:
                return await stream_events(
                    http, token_events(deltas, progress), progress=progress, prompt_tokens=len(prompt)
                )
            choice = await collect(deltas)
        return json_response(
            {
                "text": choice.text,
                "usage": usage_of(len(prompt), choice.tokens),
                "latency_ms": round((time.monotonic() - began) * 1000, 3),
                "model_version": self._service.model.version,
            }
        )


async def collect(deltas: AsyncIterator[Delta]) -> Choice:
    choice = Choice()
    async for delta in deltas:
        choice.add(delta)
    return choice


async def token_events(deltas: AsyncIterator[Delta], progress: StreamPosition | None) -> AsyncIterator[dict[str, Any]]:
    async for delta in deltas:
        if progress:
            progress.add_token(delta.token)
        if delta.text:
            yield {"token": delta.text}


async def typed_events(
    deltas: AsyncIterator[Delta], prompt_tokens: int, progress: StreamPosition | None
) -> AsyncIterator[dict[str, Any]]:
    async for delta in deltas:
        if progress:
            progress.add_token(delta.token)
        if delta.text:
            yield {"type": "token", "token": delta.text}
        if delta.finish:
            if progress:
                progress.add_end()
            usage = usage_of(prompt_tokens, delta.tokens)
            yield {"type": "done", "usage": usage, "finish_reason": delta.finish}


def typed_error(body: dict[str, Any]) -> dict[str, Any]:
    return {"type": "error"} | body


def usage_of(input_tokens: int, output_tokens: int) -> dict[str, int]:
    return {"input_tokens": input_tokens, "output_tokens": output_tokens}
