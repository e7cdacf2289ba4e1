"""OpenAI's endpoints: chat completions, completions, embeddings, models."""

import asyncio
import base64
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from aiohttp import web

from ..engine.request import FinishReason, Logprobs
from ..text.chat_template import ChatTemplateError
from .errors import ApiError, invalid
from .logprobs import of_chat, of_completion
from .resume import Asked, Identity, Progress, asked
from .schemas import ChatRequest, CompletionRequest, EmbeddingRequest, FullSampling, parse, prompts_of
from .service import Delta, Model, Service
from .sse import json_response, stream_events

Indexed = tuple[int, Delta]


class OpenAI:
    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/chat/completions", self.chat),
            web.post("/v1/completions", self.complete),
            web.post("/v1/embeddings", self.embed),
            web.get("/v1/models", self.models),
            web.get("/v1/models/{name:.+}", self.model),
        ]

    async def chat(self, http: web.Request) -> web.StreamResponse:
        ask = await asked(http)
        body = parse(ask.body, ChatRequest)
        check_model(self._service, body.model)
        messages = [message.render() for message in body.messages]
        try:
            text = self._service.model.template.render(messages)
        except ChatTemplateError as error:
            raise invalid(str(error), "messages") from None
        # The template has written the special tokens already.
        prompt = await self._service.encode(text, param="messages", special_tokens=False)
        return await self._answer(http, ask, body, [prompt])

    async def complete(self, http: web.Request) -> web.StreamResponse:
        ask = await asked(http)
        body = parse(ask.body, CompletionRequest)
        check_model(self._service, body.model)
        prompts = [await self._service.encode(prompt, param="prompt") for prompt in prompts_of(body.prompt, "prompt")]
        return await self._answer(http, ask, body, prompts)

    async def embed(self, http: web.Request) -> web.Response:
        body = parse(await http.read(), EmbeddingRequest)
        check_model(self._service, body.model)
        if body.encoding_format not in ("float", "base64"):
            raise invalid("encoding_format must be float or base64.", "encoding_format")
        prompts = [await self._service.encode(text, param="input") for text in prompts_of(body.input, "input")]
        vectors = await self._service.embed(prompts)
        as_text = body.encoding_format == "base64"
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": base64.b64encode(vector.tobytes()).decode() if as_text else vector.tolist(),
            }
            for index, vector in enumerate(vectors)
        ]
        tokens = sum(map(len, prompts))
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return json_response({"object": "list", "data": data, "model": self._service.model.name, "usage": usage})

    async def models(self, _: web.Request) -> web.Response:
        return json_response({"object": "list", "data": [self._card()]})

    async def model(self, http: web.Request) -> web.Response:
        check_model(self._service, http.match_info["name"])
        return json_response(self._card())

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

    async def _answer(
        self, http: web.Request, ask: Asked, body: ChatRequest | CompletionRequest, prompts: list[tuple[int, ...]]
    ) -> web.StreamResponse:
        prompt_tokens = sum(map(len, prompts))
        identity = ask.identity(body)
        progress = ask.progress(identity, streamed=bool(body.stream), prompts=len(prompts) * body.choices)
        shape = (ChatShape if isinstance(body, ChatRequest) else CompletionShape)(self._service.model, identity)
        resumed = ask.resume.tokens if ask.resume else ()
        async with aclosing(generate_all(self._service, prompts, body, resumed)) as deltas:
            if body.stream:
                with_usage = body.stream_options is not None and body.stream_options.include_usage
                chunks = shape.chunks(deltas, prompt_tokens, with_usage=with_usage, progress=progress)
                return await stream_events(http, chunks, progress=progress)
            choices = [Choice() for _ in range(len(prompts) * body.choices)]
            async for index, delta in deltas:
                choices[index].add(delta)
        return json_response(shape.whole(choices, prompt_tokens))


class Choice:
    """One answer as it comes together."""

    def __init__(self) -> None:
        self.text, self.tokens, self.finish = "", 0, FinishReason.ERROR
        self.logprobs: list[Logprobs] = []

    def add(self, delta: Delta) -> None:
        self.text += delta.text
        self.logprobs += [delta.logprobs] if delta.logprobs else []
        self.tokens = delta.tokens
        self.finish = delta.finish or self.finish


class Shape(ABC):
    """What chat completions and completions have in common."""

    id_prefix, whole_object, chunk_object = "", "", ""

    def __init__(self, model: Model, identity: Identity) -> None:
        self._head = {"id": f"{self.id_prefix}-{identity.id}", "created": identity.created, "model": model.name}
        self._tokenizer = model.tokenizer

    @abstractmethod
    def choice(self, index: int, choice: Choice) -> dict[str, Any]: ...

    @abstractmethod
    def delta(self, index: int, delta: Delta) -> dict[str, Any]: ...

    def opening(self) -> dict[str, Any] | None:
        return None

    def whole(self, choices: list[Choice], prompt_tokens: int) -> dict[str, Any]:
        answers = [self.choice(index, choice) for index, choice in enumerate(choices)]
        usage = usage_of(prompt_tokens, sum(choice.tokens for choice in choices))
        return self._head | {"object": self.whole_object, "choices": answers, "usage": usage}

    async def chunks(
        self, deltas: AsyncIterator[Indexed], prompt_tokens: int, *, with_usage: bool, progress: Progress | None
    ) -> AsyncIterator[dict[str, Any]]:
        head = self._head | {"object": self.chunk_object} | ({"usage": None} if with_usage else {})
        tokens: dict[int, int] = {}
        async for index, delta in deltas:
            if not tokens and (opening := self.opening()):
                yield head | {"choices": [opening]}
            tokens[index] = delta.tokens
            if progress:
                progress.saw(delta.token)
            if delta.text or delta.finish or delta.logprobs:
                yield head | {"choices": [self.delta(index, delta)]}
        if with_usage:
            if progress:
                progress.ended()
            yield head | {"choices": [], "usage": usage_of(prompt_tokens, sum(tokens.values()))}


class ChatShape(Shape):
    id_prefix, whole_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def choice(self, index: int, choice: Choice) -> dict[str, Any]:
        message = {"role": "assistant", "content": choice.text}
        told = of_chat(choice.logprobs, self._tokenizer) if choice.logprobs else None
        return {"index": index, "message": message, "logprobs": told, "finish_reason": choice.finish}

    def delta(self, index: int, delta: Delta) -> dict[str, Any]:
        told = of_chat([delta.logprobs], self._tokenizer) if delta.logprobs else None
        return {"index": index, "delta": {"content": delta.text}, "logprobs": told, "finish_reason": delta.finish}

    def opening(self) -> dict[str, Any]:
        return {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}


class CompletionShape(Shape):
    id_prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"

    def __init__(self, model: Model, identity: Identity) -> None:
        super().__init__(model, identity)
        self._offsets: Counter[int] = Counter()  # characters before the next token of each choice

    def choice(self, index: int, choice: Choice) -> dict[str, Any]:
        told = of_completion(choice.logprobs, self._tokenizer) if choice.logprobs else None
        return {"index": index, "text": choice.text, "logprobs": told, "finish_reason": choice.finish}

    def delta(self, index: int, delta: Delta) -> dict[str, Any]:
        told = None
        if delta.logprobs:
            told = of_completion([delta.logprobs], self._tokenizer, self._offsets[index])
            self._offsets[index] += len(told["tokens"][0])
        return {"index": index, "text": delta.text, "logprobs": told, "finish_reason": delta.finish}


async def generate_all(
    service: Service, prompts: list[tuple[int, ...]], sampling: FullSampling, resumed: tuple[int, ...] = ()
) -> AsyncGenerator[Indexed, None]:
    """The deltas of all choices of all prompts as they come. One failure ends all, as does closing the iterator."""
    # A client is in the middle of a resumed answer: it does not wait behind those that have not begun.
    priority = (sampling.priority or 0) - bool(resumed)
    turns = service.turns()
    merged: asyncio.Queue[Indexed | Exception] = asyncio.Queue()

    async def follow(index: int, prompt: tuple[int, ...]) -> None:
        answer = service.generate(prompt, sampling, choice=index % sampling.choices, priority=priority, resumed=resumed)
        try:
            async with turns, aclosing(answer) as deltas:
                async for delta in deltas:
                    merged.put_nowait((index, delta))
        except Exception as error:
            merged.put_nowait(error)

    wanted = [prompt for prompt in prompts for _ in range(sampling.choices)]
    tasks = [asyncio.create_task(follow(index, prompt)) for index, prompt in enumerate(wanted)]
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


def usage_of(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    total = prompt_tokens + completion_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}


def check_model(service: Service, name: str) -> None:
    service.check_open()
    if name != service.model.name:
        message = f"The model {name!r} does not exist here; this server has {service.model.name!r}."
        raise ApiError(404, message, param="model", code="model_not_found")
