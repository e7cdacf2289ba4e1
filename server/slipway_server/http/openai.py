"""OpenAI's endpoints: chat completions, completions, embeddings, models."""

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from aiohttp import web

from slipway_process.serving.bodies import body_of, json_response
from slipway_process.serving.errors import invalid
from slipway_process.serving.priority import priority_of

from ..engine.adapters.catalog import CatalogEntry
from .reading.inputs import check_answers
from .requests.prompt import Prompt
from .requests.prompts import wrong_model
from .requests.schemas import ChatRequest, CompletionRequest, EmbeddingRequest, FullSampling
from .requests.tools import PLAIN_ANSWERS, AnswerPlan, begin_answer, plan_answers
from .responses.delta import Delta
from .responses.embeddings import check_dimensions, embedding_data
from .responses.replay import ReplayStore
from .responses.resume import Identity, IncomingRequest, StreamPosition, read_request
from .responses.shapes import ChatShape, Choice, CompletionShape, IndexedDelta, best
from .responses.sse import stream_events
from .service import Generation, ModelService

MAX_RESPONSE_LOGPROBS = 1 << 19
MANY_LOGPROBS = 1 << 14  # making so many takes less than a tenth of a second of a core
ASSUMED_TOKENS = 4096  # of an answer without max_tokens, to bound its log probabilities


class OpenAI:
    def __init__(self, service: ModelService, replays: ReplayStore) -> None:
        self._service, self._replays = service, replays
        # One at a time, also where clients left: each thread that computes makes the loop wait for the interpreter.
        self._long_answers = ThreadPoolExecutor(1, "long answers")

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/chat/completions", self.chat),
            web.post("/v1/completions", self.complete),
            web.post("/v1/embeddings", self.embed),
            web.get("/v1/models", self.models),
            web.get("/v1/models/{name:.+}", self.model),
        ]

    async def chat(self, http: web.Request) -> web.StreamResponse:
        incoming = await read_request(http, self._service.tenants)
        body, [prompt] = await self._service.read(incoming.body, ChatRequest, incoming.tenant)
        formats = self._service.model.formats
        plan = plan_answers(body.tool_use, formats, body.grammar)
        return await self._answer(http, incoming, body, [prompt], begin_answer(plan, formats, prompt.text))

    async def complete(self, http: web.Request) -> web.StreamResponse:
        incoming = await read_request(http, self._service.tenants)
        body, prompts = await self._service.read(incoming.body, CompletionRequest, incoming.tenant)
        return await self._answer(http, incoming, body, prompts)

    async def embed(self, http: web.Request) -> web.Response:
        tenant = self._service.tenants.of(http.headers)
        body, texts = await self._service.read(await body_of(http), EmbeddingRequest, tenant)
        check_dimensions(body.dimensions, self._service.model.checkpoint.config)
        prompts = [prompt.tokens for prompt in texts]
        vectors = await self._service.embed(prompts, tenant=tenant)
        # Thousands of vectors take a while: other requests go on meanwhile.
        data = await asyncio.to_thread(embedding_data, vectors, body.dimensions, body.encoding_format)
        tokens = sum(map(len, prompts))
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return json_response({"object": "list", "data": data, "model": self._service.model.name, "usage": usage})

    async def models(self, _: web.Request) -> web.Response:
        return json_response(self.listing())

    def listing(self) -> dict[str, Any]:
        """The model and its adapters; threads call it, too."""
        return {"object": "list", "data": [self._card(), *map(self._adapter_card, self._service.adapters.entries)]}

    async def model(self, http: web.Request) -> web.Response:
        name = http.match_info["name"]
        check_model(self._service, name)
        entry = self._service.adapters.find(name)
        return json_response(self._adapter_card(entry) if entry else self._card())

    def _card(self) -> dict[str, Any]:
        model = self._service.model
        return {
            "id": model.name,
            "object": "model",
            "created": model.loaded_at,
            "owned_by": "slipway",
            "max_model_len": model.context_tokens,
            "version": model.version,
        }

    def _adapter_card(self, entry: CatalogEntry) -> dict[str, Any]:
        """As vLLM's, and what a router needs: `digest` of the adapter's files, and whether it is loaded now."""
        more = {"root": entry.path, "parent": self._service.model.name, "digest": entry.digest, "loaded": entry.loaded}
        return self._card() | {"id": entry.name, "created": entry.created} | more

    async def _answer(
        self,
        http: web.Request,
        incoming: IncomingRequest,
        body: ChatRequest | CompletionRequest,
        prompts: list[Prompt],
        answers: AnswerPlan = PLAIN_ANSWERS,
    ) -> web.StreamResponse:
        num_answers = len(prompts) * body.candidates
        check_answers(num_answers)
        check_logprobs(body, [len(prompt.tokens) for prompt in prompts], self._service.max_context_tokens)
        priority = priority_of(http.headers, body.priority)
        identity = incoming.stream_identity(body.seed)
        generation = await self._service.prepare_generation(
            body, body.model, seed=identity.seed, priority=priority, tenant=incoming.tenant, answers=answers
        )
        # An answer without tokens has no position to resume after.
        progress = incoming.track_progress(
            identity, streamed=bool(body.stream) and body.limit != 0, prompts=num_answers
        )
        model = self._service.model
        shape = (
            ChatShape(model, identity, prompts, body, generation.answers.form)
            if isinstance(body, ChatRequest)
            else CompletionShape(model, identity, prompts, body)
        )
        texts = [prompt.tokens for prompt in prompts]
        if body.use_beam_search:
            deltas_of_all = search_beams(self._service, texts, generation, body)
        elif progress:
            deltas_of_all = resumable(self._service, self._replays, texts[0], generation, incoming, identity, progress)
        else:
            deltas_of_all = generate_all(self._service, texts, generation, body)
        async with aclosing(deltas_of_all) as deltas:
            if body.stream:
                with_usage = body.stream_options is not None and body.stream_options.include_usage
                chunks = shape.chunks(deltas, with_usage=with_usage, progress=progress)
                return await stream_events(http, chunks, progress=progress, prompt_tokens=shape.prompt_tokens)
            choices = [Choice() for _ in range(num_answers)]
            async for index, delta in deltas:
                choices[index].add(delta)
        selected = select_choices(choices, body)
        usage = shape.usage(
            [choice.tokens for choice in choices],
            [choice.cached_tokens for choice in choices],
            accepted=sum(choice.accepted for choice in choices),
            rejected=sum(choice.rejected for choice in choices),
        )
        if not (num_logprobs := sum(choice.num_logprobs for choice in selected)):
            return json_response(shape.whole(selected, usage))
        # There may be hundreds of thousands of them: other requests go on meanwhile.
        threads = self._long_answers if num_logprobs > MANY_LOGPROBS else None
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(threads, lambda: json_response(shape.whole(selected, usage)))


async def resumable(
    service: ModelService,
    replays: ReplayStore,
    prompt: tuple[int, ...],
    generation: Generation,
    incoming: IncomingRequest,
    identity: Identity,
    progress: StreamPosition,
) -> AsyncGenerator[IndexedDelta, None]:
    """The deltas of one answer that its client can resume."""

    def source(resumed: tuple[int, ...]) -> AsyncGenerator[Delta, None]:
        # A client that resumes an answer has some of it: it does not wait behind answers that have not begun.
        raised = replace(generation, priority=generation.priority - bool(resumed))
        return service.generate(prompt, raised, resumed=resumed)

    sampling = generation.sampling
    with_logprobs = isinstance(sampling, FullSampling) and sampling.token_logprobs >= 0
    known = incoming.delivered_tokens if with_logprobs else incoming.resumed_tokens
    answer = replays.answer(incoming, identity, source, progress=progress, known=known)
    async with aclosing(answer) as deltas:
        async for delta in deltas:
            yield 0, delta


def select_choices(choices: list[Choice], body: FullSampling) -> list[Choice]:
    """For each prompt the best `n` of its candidates."""
    if body.candidates == body.choices:
        return choices
    groups = (choices[start : start + body.candidates] for start in range(0, len(choices), body.candidates))
    return [choice for group in groups for choice in best(group, count=body.choices)]


async def generate_all(
    service: ModelService, prompts: list[tuple[int, ...]], generation: Generation, sampling: FullSampling
) -> AsyncGenerator[IndexedDelta, None]:
    """The deltas of all choices of all prompts as they come. One failure ends all, as does closing the iterator."""
    slots = service.slots()
    merged: asyncio.Queue[IndexedDelta | Exception] = asyncio.Queue()

    async def generate_one(index: int, prompt: tuple[int, ...]) -> None:
        choice = index % sampling.candidates
        answer = service.generate(prompt, generation, choice=choice)
        try:
            async with slots, aclosing(answer) as deltas:
                async for delta in deltas:
                    merged.put_nowait((index, delta))
        except Exception as error:
            merged.put_nowait(error)

    num_answers = [prompt for prompt in prompts for _ in range(sampling.candidates)]
    tasks = [asyncio.create_task(generate_one(index, prompt)) for index, prompt in enumerate(num_answers)]
    left = len(tasks)
    try:
        while left:
            item = await merged.get()
            if isinstance(item, Exception):
                raise item
            left -= item[1].finish is not None
            yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def search_beams(
    service: ModelService, prompts: list[tuple[int, ...]], generation: Generation, sampling: FullSampling
) -> AsyncGenerator[IndexedDelta, None]:
    """The answers of a beam search for each prompt, each as one delta; one search after the other."""
    for number, prompt in enumerate(prompts):
        answers = await service.beams(prompt, generation)
        for index, (beam, text) in enumerate(answers):
            yield number * sampling.choices + index, Delta(text, len(beam.tokens), beam.tokens[-1], beam.finish)


def check_logprobs(body: FullSampling, prompt_tokens: list[int], context_tokens: int) -> None:
    """Raises HttpError for more log probabilities than a response may have. `prompt_tokens`: one number a prompt."""
    limit = ASSUMED_TOKENS if body.limit is None else body.limit
    answer_tokens = sum(min(limit, max(0, context_tokens - tokens)) for tokens in prompt_tokens)
    of_prompts = sum(prompt_tokens) * body.candidates * (body.prompt_token_logprobs + 1)
    of_answers = answer_tokens * body.candidates * (body.token_logprobs + 1)
    if max(of_prompts, of_answers) <= MAX_RESPONSE_LOGPROBS:
        return
    param = "prompt_logprobs" if of_prompts > of_answers and body.prompt_logprobs is not None else "logprobs"
    raise invalid(
        f"The response could have {max(of_prompts, of_answers)} log probabilities in all; "
        f"{MAX_RESPONSE_LOGPROBS} is the limit: lower n, max_tokens or {param}.",
        param,
    )


def check_model(service: ModelService, name: str) -> None:
    service.check_open()
    if name not in service.names:
        raise wrong_model(name, service.model.name)
