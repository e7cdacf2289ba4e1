"""POST /v1/responses: a chat completion in the shape of OpenAI's Responses API."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from aiohttp import web

from slipway_process.serving.bodies import json_response
from slipway_process.serving.errors import HttpError
from slipway_process.serving.priority import priority_of

from ..openai import generate_all, resumable
from ..requests.prompt import Prompt
from ..requests.schemas import ChatRequest
from ..requests.tools import AnswerPlan, begin_answer, plan_answers
from ..responses.replay import ReplayStore
from ..responses.resume import Identity, IncomingRequest, StreamPosition, read_request
from ..responses.shapes import IndexedDelta
from ..responses.sse import stream_events
from ..service import ModelService
from .builder import Event, ResponseBuilder
from .schema import ResponsesRequest, renamed


class Responses:
    def __init__(self, service: ModelService, replays: ReplayStore) -> None:
        self._service, self._replays = service, replays

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/responses", self.create)]

    async def create(self, http: web.Request) -> web.StreamResponse:
        incoming = await read_request(http, self._service.tenants)
        try:
            return await self._answer(http, incoming)
        except HttpError as error:
            raise renamed(error) from None

    async def _answer(self, http: web.Request, incoming: IncomingRequest) -> web.StreamResponse:
        body, [prompt] = await self._service.read(incoming.body, ResponsesRequest, incoming.tenant)
        chat, formats = body.chat(), self._service.model.formats
        plan = begin_answer(plan_answers(chat.tool_use, formats, chat.grammar), formats, prompt.text)
        identity = incoming.stream_identity(chat.seed)
        progress = incoming.track_progress(identity, streamed=bool(chat.stream))
        deltas = await self._deltas(http, incoming, chat, prompt, plan, identity, progress)
        answer = plan.form.parser(f"{identity.id}.0")
        builder = ResponseBuilder(body, body.model, identity, answer, len(prompt.tokens))
        async with aclosing(deltas):
            if body.stream:
                return await stream_events(
                    http,
                    _groups(builder, deltas, progress),
                    done=False,
                    error=lambda failure: builder.failure(failure["error"]),
                    progress=progress,
                    prompt_tokens=len(prompt.tokens),
                )
            async for _, delta in deltas:
                builder.add(delta)
        return json_response(builder.response)

    async def _deltas(
        self,
        http: web.Request,
        incoming: IncomingRequest,
        chat: ChatRequest,
        prompt: Prompt,
        plan: AnswerPlan,
        identity: Identity,
        progress: StreamPosition | None,
    ) -> AsyncGenerator[IndexedDelta, None]:
        generation = await self._service.prepare_generation(
            chat,
            chat.model,
            seed=identity.seed,
            priority=priority_of(http.headers, chat.priority),
            tenant=incoming.tenant,
            answers=plan,
        )
        if progress is None:
            return generate_all(self._service, [prompt.tokens], generation, chat)
        return resumable(self._service, self._replays, prompt.tokens, generation, incoming, identity, progress)


async def _groups(
    builder: ResponseBuilder, deltas: AsyncIterator[IndexedDelta], progress: StreamPosition | None
) -> AsyncIterator[list[Event]]:
    """Yield the events of each token in one list: a stream is resumed before or after all of them."""
    begun = False
    async for _, delta in deltas:
        # Only with the first token: before it an error can still be an HTTP status.
        opening = [] if begun else builder.begin()
        begun = True
        if opening:
            yield opening
        if progress:
            progress.add_token(delta.token)
        if events := builder.add(delta):
            yield events
