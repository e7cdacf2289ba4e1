"""One served model: prompts in, text deltas or vectors out, with limits, stop strings and metrics."""

import asyncio
import time
import uuid
from array import array
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from msgspec import Struct

from slipway_process.serving.errors import (
    HttpError,
    contradictory,
    engine_crashed,
    failed,
    invalid,
    lost,
    non_finite,
    queue_full,
    too_late,
    too_long,
    unavailable,
)
from slipway_process.serving.probes import Health
from slipway_process.serving.restarts import EngineError
from slipway_process.serving.tenant import Tenants
from slipway_process.serving.tracing import Timing, Tracing

from ..engine.adapters.catalog import UnknownAdapter
from ..engine.beams import Beam, BeamRules, BeamSearch
from ..engine.client import EngineClient, QueueFull, RequestRefused
from ..engine.request import FinishReason, Logprobs, Request, RequestOutput, SamplingParams
from ..metrics import ServerMetrics
from ..text.detokenizer import detokenizer
from ..text.stops import StopMatcher
from ..text.tokenizer import Tokenizer
from .reading.reader import RequestReader
from .requests.prompt import Prompt, PromptLimits
from .requests.prompts import ServedModel, check_tokens, wrong_model
from .requests.sampling import Sampling
from .requests.schemas import FullSampling
from .requests.structured import unusable
from .requests.tools import PLAIN_ANSWERS, AnswerPlan
from .responses.delta import Delta
from .responses.resume import stream_gone

# Not numpy's: importing that would be a third of this process's start.
Vector: TypeAlias = "array[float]"
T = TypeVar("T")
S = TypeVar("S", bound=Struct)

ERRORS = {
    FinishReason.ERROR: failed,
    FinishReason.NON_FINITE: non_finite,
    FinishReason.INVALID: contradictory,
    FinishReason.LOST: lost,
    FinishReason.CRASHED: engine_crashed,
    FinishReason.DEADLINE: too_late,
}
SEED_STRIDE = 0x9E3779B97F4A7C15  # odd and large: seeds of choices do not meet those of neighbouring requests
TOKENS_PER_YIELD = 256  # of a resumed answer, before other requests get the event loop


@dataclass(frozen=True, slots=True)
class Generation:
    """How each answer of a request is generated; made by `ModelService.prepare_generation`, which checks it."""

    sampling: Sampling
    seed: int
    priority: int = 0
    tenant: str = ""
    bad_words: tuple[tuple[int, ...], ...] = ()
    answers: AnswerPlan = PLAIN_ANSWERS
    model: str = ""  # name of an adapter, or of the model itself


class ModelService:
    def __init__(
        self,
        model: ServedModel,
        engine: EngineClient,
        metrics: ServerMetrics,
        health: Health,
        tracing: Tracing | None = None,
        tenants: Tenants | None = None,
        *,
        log_level: str = "info",
    ) -> None:
        """`tenants`: verifies the tenant of a request. Without it no tenant is accepted."""
        self.tenants = tenants or Tenants(unproved=metrics.unproved_tenant)
        self.model, self.metrics, self.health, self.tracing = model, metrics, health, tracing or Tracing()
        self._engine, self.adapters = engine, engine.adapters
        self.reader = RequestReader(model, lambda: self.names, log_level=log_level)

    def check_open(self) -> None:
        if self.health.draining:
            raise unavailable("draining", "This server is shutting down: ask another one.")
        if not self.health.loaded:
            raise unavailable(*self.health.why_not_loaded)

    @property
    def names(self) -> frozenset[str]:
        """What `model` of a request may be: the model's name and those of its adapters."""
        return self.adapters.names | {self.model.name}

    @property
    def max_context_tokens(self) -> int:
        """Most tokens of a prompt and its answer: the model's context, or the KV cache where that is smaller."""
        ready, context = self._engine.ready, self.model.context_tokens
        return min(context, ready.kv_tokens) if ready and self.model.checkpoint.task == "generate" else context

    def slots(self) -> asyncio.Semaphore:
        """A semaphore for the prompts of one HTTP request: they take all slots at most, and no place in the queue."""
        return asyncio.Semaphore(self._engine.slots)

    @property
    def vocabulary_size(self) -> int:
        """Token ids must be below: the rows of the model's embedding, as the engine reports them once it is ready."""
        return getattr(self._engine.ready, "vocab_size", 0) or self.model.embedding_rows

    async def read(self, body: bytes, kind: type[S], tenant: str) -> tuple[S, list[Prompt]]:
        """A body as `kind`, and its prompts, which fit into the context; ids are in the vocabulary of the model.

        Raises:
            HttpError: with the name of the field that is wrong or does not fit.
        """
        self.check_open()
        answers = self.model.checkpoint.task == "generate"
        limits = PromptLimits(self.max_context_tokens, self.vocabulary_size, answer=answers)
        return await self.reader.read(body, kind, limits, tenant)

    async def read_texts(self, body: bytes, kind: type[S], tenant: str) -> tuple[S, Prompt]:
        """As `read`, where the model computes nothing: its context bounds the text, and ids are the tokenizer's."""
        self.check_open()
        limits = PromptLimits(self.model.context_tokens, self.model.tokenizer.vocabulary_size, may_be_empty=True)
        request, [prompt] = await self.reader.read(body, kind, limits, tenant)
        return request, prompt

    async def prepare_generation(
        self,
        sampling: Sampling,
        model: str,
        *,
        seed: int,
        priority: int = 0,
        tenant: str = "",
        answers: AnswerPlan = PLAIN_ANSWERS,
    ) -> Generation:
        """How to generate the answers. Raises HttpError with the field's name for token ids that the model lacks.

        `model`: the name of an adapter, or of the model itself.
        """
        if not isinstance(sampling, FullSampling):
            return Generation(sampling, seed, priority, tenant, model=model)
        biased = [int(token) for token in sampling.logit_bias or ()]
        allowed, stop_token_ids = sampling.allowed_token_ids or (), sampling.stop_token_ids or ()
        fields = {"logit_bias": biased, "allowed_token_ids": allowed, "stop_token_ids": stop_token_ids}
        for param, tokens in fields.items():
            check_tokens(tokens, param, self.vocabulary_size)
        bad_words = await self.reader.encode_words(sampling.bad_words or [], tenant)
        return Generation(sampling, seed, priority, tenant, bad_words, answers, model)

    async def generate(
        self, prompt: tuple[int, ...], generation: Generation, *, choice: int = 0, resumed: tuple[int, ...] = ()
    ) -> AsyncGenerator[Delta, None]:
        """The deltas of answer number `choice` to a prompt. `resumed` tokens come first, without the engine."""
        with self._using_model(generation.model):
            request = self._request(prompt, generation, choice=choice, resumed=resumed)
            async with aclosing(self._deltas(request, generation, resumed)) as deltas:
                async for delta in deltas:
                    yield delta

    @contextmanager
    def _using_model(self, name: str) -> Iterator[None]:
        """Keeps the adapter of this name until its request has ended. Raises HttpError where it is gone."""
        try:
            with self.adapters.using(name if name != self.model.name else "") as digest:
                if digest:
                    self.metrics.adapter_requested(name)
                yield
        except UnknownAdapter:
            raise wrong_model(name, self.model.name) from None

    async def _deltas(
        self, request: Request, generation: Generation, resumed: tuple[int, ...]
    ) -> AsyncGenerator[Delta, None]:
        text = _DeltaBuilder(request, generation, self.model.tokenizer)
        for count, token in enumerate(resumed, 1):
            assert request.sampling is not None, "it is to generate"
            delta = text.add(RequestOutput(request.id, token, finish=request.sampling.finish_after(token, count)))
            yield delta
            if delta.finish:
                return
            if count % TOKENS_PER_YIELD == 0:
                await asyncio.sleep(0)
        async with aclosing(self._events(request)) as events:
            async for event in events:
                if event.token is None:  # a part of the prompt
                    text.add_prompt(event)
                    continue
                delta = text.add(event)
                yield delta
                if delta.finish:
                    return

    def _request(
        self, prompt: tuple[int, ...], generation: Generation, *, choice: int = 0, resumed: tuple[int, ...] = ()
    ) -> Request:
        """The engine's request. Raises HttpError for one that this model or its context cannot answer."""
        if self.model.checkpoint.task != "generate":
            raise invalid(f"{self.model.name} is an embedding model: use /v1/embeddings.", "model")
        sampling, remaining = generation.sampling, self.max_context_tokens - len(prompt)
        limit = remaining if sampling.limit is None else sampling.limit
        if limit > remaining:
            raise too_long(
                f"The prompt has {len(prompt)} tokens and {limit} more are requested; this server's context is "
                f"{self.max_context_tokens} tokens, so that {remaining} are left.",
                "max_tokens",
            )
        params = self._params(generation, max(1, limit), choice)
        if resumed:
            params = replace(params, prompt_logprobs=-1)  # the client has them
        if max(resumed, default=0) >= self.vocabulary_size:
            raise stream_gone()
        timeout_s = sampling.timeout if isinstance(sampling, FullSampling) else None
        name = f"gen-{uuid.uuid4().hex}"
        tenant = generation.tenant
        weight = self.tenants.weight_of(tenant)
        adapter = self.adapters.digest_of("" if generation.model == self.model.name else generation.model)
        return Request(name, prompt, params, generation.priority, resumed, tenant, weight, timeout_s, adapter)

    def _params(self, generation: Generation, limit: int, choice: int) -> SamplingParams:
        """Sampling parameters of one choice, each of which has its own seed."""
        # A generation_config.json may name tokens of the tokenizer's that the model has no row for.
        stop_token_ids = tuple(token for token in self.model.checkpoint.stop_token_ids if token < self.vocabulary_size)
        params = generation.sampling.params(limit, stop_token_ids, generation.seed)
        seed = (params.seed + choice * SEED_STRIDE) % 2**63 if choice else params.seed
        return replace(
            params, bad_words=generation.bad_words, seed=seed, grammar=generation.answers.grammar or params.grammar
        )

    async def beams(self, prompt: tuple[int, ...], generation: Generation) -> list[tuple[Beam, str]]:
        """The best answers of a beam search and their texts. Each step requests one token after each beam.

        The engine has the tokens that beams share with earlier steps in its prefix cache.
        """
        with self._using_model(generation.model):
            return await self._search(self._request(prompt, generation), generation)

    async def _search(self, request: Request, generation: Generation) -> list[tuple[Beam, str]]:
        sampling, params = generation.sampling, request.sampling
        assert params is not None and isinstance(sampling, FullSampling), "it is to generate, with beams"
        rules = BeamRules(
            sampling.beams,
            params.max_tokens,
            frozenset(params.stop_token_ids),
            1.0 if sampling.length_penalty is None else sampling.length_penalty,
            sampling.early_stopping or False,
        )
        search, timing = BeamSearch(rules), Timing(request.known_tokens)
        end_s = None if request.timeout_s is None else time.monotonic() + request.timeout_s
        with self._timed(timing):
            while not search.done:
                left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
                step = replace(request, timeout_s=left_s)
                steps = [self._extend_beam(step, beam, rules.alternatives, timing) for beam in search.running]
                search.advance(await gather_all(steps))
                self.metrics.token(timing)
            timing.finish = search.answers[0].finish or FinishReason.STOP
        answers = search.answers[: sampling.choices]
        return [(beam, self._beam_text(request, generation, beam)) for beam in answers]

    async def _extend_beam(self, request: Request, beam: Beam, alternatives: int, timing: Timing) -> Logprobs:
        """The likeliest tokens after a beam. A search that has begun is not refused when the queue is full."""
        grammar = request.sampling.grammar if request.sampling else None
        params = SamplingParams(
            len(beam.tokens) + 1,
            temperature=0.0,
            logprobs=alternatives,
            grammar=grammar,
            logprobs_of_allowed=grammar is not None,
        )
        step = replace(request, id=f"beam-{uuid.uuid4().hex}", sampling=params, resumed=beam.tokens)
        async with aclosing(self._engine_events(step, admitted=bool(beam.tokens))) as events:
            async for event in events:
                if event.logprobs:
                    return event.logprobs
                if timing.started_s is None:
                    self.metrics.started(timing)
        raise failed("The engine ended a request without a token.")

    def _beam_text(self, request: Request, generation: Generation, beam: Beam) -> str:
        text, last = _DeltaBuilder(request, generation, self.model.tokenizer), len(beam.tokens) - 1
        events = (
            RequestOutput("", token, finish=beam.finish if at == last else None) for at, token in enumerate(beam.tokens)
        )
        return "".join(text.add(event).text for event in events)

    async def embed(self, prompts: list[tuple[int, ...]], *, tenant: str = "") -> list[Vector]:
        if self.model.checkpoint.task != "embed":
            raise invalid(f"{self.model.name} is a language model: it has no embeddings.", "model")
        slots = self.slots()
        return await gather_all([self._embed_one(prompt, slots, tenant) for prompt in prompts])

    async def _embed_one(self, prompt: tuple[int, ...], slots: asyncio.Semaphore, tenant: str) -> Vector:
        request = Request(f"emb-{uuid.uuid4().hex}", prompt, tenant=tenant, weight=self.tenants.weight_of(tenant))
        async with slots, aclosing(self._events(request)) as events:
            async for event in events:
                if event.embedding is not None:
                    return array("f", event.embedding)
        raise failed("The engine ended a request without an embedding.")

    async def _events(self, request: Request) -> AsyncGenerator[RequestOutput, None]:
        """The engine's events of a request. Records its timing."""
        timing = Timing(request.known_tokens)
        with self._timed(timing):
            async with aclosing(self._engine_events(request)) as events:
                async for event in events:
                    if event.starts:
                        self.metrics.started(timing)
                    if event.token is not None or event.embedding is not None:
                        self.metrics.token(timing)
                    if event.finish:
                        timing.finish = event.finish
                    yield event

    async def _engine_events(self, request: Request, *, admitted: bool = False) -> AsyncGenerator[RequestOutput, None]:
        """The engine's events. Its errors become HTTP errors."""
        try:
            async with aclosing(self._engine.stream(request, admitted=admitted)) as events:
                async for event in events:
                    if event.finish is FinishReason.GRAMMAR:
                        raise unusable(event.error or "", param_of_grammar(request))
                    if event.finish in ERRORS:
                        raise ERRORS[event.finish](event.error or "The engine failed.")
                    yield event
        except QueueFull as error:
            raise queue_full(str(error)) from None
        except RequestRefused as error:
            raise contradictory(str(error)) from None
        except EngineError:
            raise unavailable(*self.health.why_not_loaded) from None

    @contextmanager
    def _timed(self, timing: Timing) -> Iterator[None]:
        """Records a request that has run once, however it ends."""
        try:
            yield
        except HttpError:
            timing.finish = "error"
            raise
        finally:
            if timing.started_s is not None:
                self.metrics.ended(timing)
            self.tracing.phases(timing)


def param_of_grammar(request: Request) -> str:
    """The field that a request's grammar came with."""
    grammar = request.sampling.grammar if request.sampling else None
    return grammar.param if grammar else ""


async def gather_all(works: Sequence[Coroutine[None, None, T]]) -> list[T]:
    """All results, or the first failure, which cancels the others."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


class _DeltaBuilder:
    """Builds deltas from a request's tokens. For max_tokens 0 it generates one token and does not return it."""

    def __init__(self, request: Request, generation: Generation, tokenizer: Tokenizer) -> None:
        assert request.sampling is not None, "an embedding has no text"
        sampling, form = generation.sampling, generation.answers.form
        full = sampling if isinstance(sampling, FullSampling) else None
        self._include_stop = full is not None and full.include_stop_str_in_output
        skips = full is None or full.skip_special_tokens
        self._detokenizer = detokenizer(tokenizer, request.prompt, skip_special_tokens=skips, markers=form.markers)
        self._answer = form.parser() if form.one_call else None
        self._stops = StopMatcher(sampling.stop_strings, include=self._include_stop)
        self._stop_token_ids, self._min_tokens = request.sampling.stop_token_ids, request.sampling.min_tokens
        self._tokens, self._discard = 0, sampling.limit == 0
        # To go with the next delta.
        self._prompt_logprobs: tuple[Logprobs, ...] = ()
        self._cached_tokens = 0

    def add_prompt(self, event: RequestOutput) -> None:
        self._prompt_logprobs += event.prompt_logprobs
        self._cached_tokens += event.cached_tokens

    def add(self, event: RequestOutput) -> Delta:
        assert event.token is not None, "an embedding has no text"
        self.add_prompt(event)
        prompt = self._prompt_logprobs, self._cached_tokens
        self._prompt_logprobs, self._cached_tokens = (), 0
        if self._discard:
            return Delta("", 0, event.token, FinishReason.LENGTH, None, *prompt)
        drafted = event.accepted, event.rejected
        self._tokens += 1
        text, finish = self._text(event.token, last=event.finish is not None), event.finish
        if self._stops.matched or self._has_its_call(text):
            finish = FinishReason.STOP
        return Delta(text, self._tokens, event.token, finish, event.logprobs, *prompt, *drafted)

    def _has_its_call(self, text: str) -> bool:
        """Whether the answer has ended with the only call that it may have."""
        if self._answer is None:
            return False
        self._answer.push(text)
        return self._answer.ended

    def _text(self, token: int, *, last: bool) -> str:
        text, may_end = "", self._tokens > self._min_tokens
        if self._include_stop or token not in self._stop_token_ids:
            text = self._stops.push(self._detokenizer.push(token), may_end=may_end)
        if last and not self._stops.matched:
            text += self._stops.push(self._detokenizer.flush(), may_end=may_end)
        if last and not self._stops.matched:
            text += self._stops.flush()
        return text
