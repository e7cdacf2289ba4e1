"""One model as the endpoints see it: prompts in, text deltas or vectors out, with limits, stops and metrics."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import numpy

from ..engine.client import EngineClient, EngineError, QueueFull
from ..engine.request import Event, FinishReason, Logprobs, Request, SamplingParams
from ..models.checkpoint import Checkpoint
from ..telemetry.metrics import Metrics, Timing
from ..text.chat_template import ChatTemplate
from ..text.detokenizer import Detokenizer
from ..text.stops import StopMatcher
from ..text.tokenizer import Tokenizer
from .errors import failed, invalid, lost, queue_full, too_late, too_long, unavailable
from .probes import Health
from .resume import gone
from .schemas import FullSampling, Sampling

Vector = numpy.ndarray

ENDS = {FinishReason.ERROR: failed, FinishReason.LOST: lost, FinishReason.DEADLINE: too_late}
SEED_STRIDE = 0x9E3779B97F4A7C15  # odd and large: seeds of choices do not meet those of neighbouring requests
REPLAY_TURN_TOKENS = 256  # of a resumed answer, between which other requests get a turn


@dataclass(frozen=True, slots=True)
class Delta:
    """What one token adds to an answer: text, perhaps empty; the count so far; the reason when it is the last one."""

    text: str
    tokens: int
    token: int
    finish: FinishReason | None = None
    logprobs: Logprobs | None = None


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    version: str
    checkpoint: Checkpoint
    context_tokens: int
    tokenizer: Tokenizer
    template: ChatTemplate
    loaded_at: int = field(default_factory=lambda: int(time.time()))


class Service:
    def __init__(self, model: Model, engine: EngineClient, metrics: Metrics, health: Health) -> None:
        self.model, self.metrics, self.health = model, metrics, health
        self._engine = engine

    def check_open(self) -> None:
        if self.health.draining:
            raise unavailable("draining", "This server is shutting down: ask another one.")
        if not self.health.loaded:
            raise unavailable("loading", "The model is still loading.")

    @property
    def room_tokens(self) -> int:
        """For a prompt and its answer: the model's context, or a smaller KV cache."""
        ready, context = self._engine.ready, self.model.context_tokens
        return min(context, ready.kv_tokens) if ready and self.model.checkpoint.task == "generate" else context

    def turns(self) -> asyncio.Semaphore:
        """Lets the prompts of one HTTP request take no more than all slots: the queue is for other requests."""
        return asyncio.Semaphore(self._engine.slots)

    async def encode(self, prompt: str | Sequence[int], *, param: str, special_tokens: bool = True) -> tuple[int, ...]:
        """Token ids of a prompt that fits into the context; ids that a client sends must be in the vocabulary."""
        model = self.model
        if isinstance(prompt, str):
            tokens = await model.tokenizer.encode(prompt, special_tokens=special_tokens)
        else:
            tokens = tuple(prompt)
            if max(tokens, default=0) >= model.tokenizer.vocabulary_size:
                raise invalid(f"Token ids must be below {model.tokenizer.vocabulary_size}.", param)
        if not tokens:
            raise invalid("The prompt is empty.", param)
        if len(tokens) + (model.checkpoint.task == "generate") > self.room_tokens:
            raise too_long(
                f"The prompt has {len(tokens)} tokens; this server's {self.room_tokens} tokens of context "
                "must hold it and the answer.",
                param,
            )
        return tokens

    async def generate(
        self,
        prompt: tuple[int, ...],
        sampling: Sampling,
        *,
        choice: int = 0,
        priority: int = 0,
        resumed: tuple[int, ...] = (),
    ) -> AsyncGenerator[Delta, None]:
        """An answer to a prompt, the n-th of `choice`. Deltas of `resumed` tokens come first, without the engine."""
        if self.model.checkpoint.task != "generate":
            raise invalid(f"{self.model.name} is an embedding model: use /v1/embeddings.", "model")
        room = self.room_tokens - len(prompt)
        limit = room if sampling.limit is None else sampling.limit
        if limit > room:
            raise too_long(
                f"The prompt has {len(prompt)} tokens and {limit} are asked for; this server's context is "
                f"{self.room_tokens} tokens, so that {room} are left.",
                "max_tokens",
            )
        params = self._params(sampling, limit, choice)
        if max(resumed, default=0) >= self.model.tokenizer.vocabulary_size:
            raise gone()
        timeout_s = sampling.timeout if isinstance(sampling, FullSampling) else None
        request = Request(f"gen-{uuid.uuid4().hex}", prompt, params, priority, resumed, timeout_s=timeout_s)
        text = _TextOf(Detokenizer(self.model.tokenizer, prompt), StopMatcher(sampling.stops), params.stop_token_ids)
        for count, token in enumerate(resumed, 1):
            delta = text.push(Event(request.id, token, finish=params.finish_after(token, count)))
            yield delta
            if delta.finish:
                return
            if count % REPLAY_TURN_TOKENS == 0:
                await asyncio.sleep(0)
        async with aclosing(self._events(request)) as events:
            async for event in events:
                delta = text.push(event)
                yield delta
                if delta.finish:
                    return

    def _params(self, sampling: Sampling, limit: int, choice: int) -> SamplingParams:
        """With token ids that the model has; each choice draws with a seed of its own."""
        params = sampling.params(limit, self.model.checkpoint.stop_token_ids)
        if isinstance(sampling, FullSampling):
            biased = [token for token, _ in params.logit_bias]
            for param, tokens in (("logit_bias", biased), ("allowed_token_ids", params.allowed_token_ids)):
                self._check_tokens(tokens, param)
            self._check_tokens(sampling.stop_token_ids or (), "stop_token_ids")
            params = replace(params, bad_words=self._spellings(sampling.bad_words or []))
        return replace(params, seed=(params.seed + choice * SEED_STRIDE) % 2**63) if choice else params

    def _check_tokens(self, tokens: Sequence[int], param: str) -> None:
        if max(tokens, default=0) >= self.model.tokenizer.vocabulary_size:
            raise invalid(f"Token ids must be below {self.model.tokenizer.vocabulary_size}.", param)

    def _spellings(self, words: list[str]) -> tuple[tuple[int, ...], ...]:
        """Each word as it is written at a beginning and after a space."""
        variants = (variant for word in words for variant in (word, f" {word}"))
        tokens = (self.model.tokenizer.encode_now(variant, special_tokens=False) for variant in variants)
        return tuple(spelling for spelling in tokens if spelling)

    async def embed(self, prompts: list[tuple[int, ...]]) -> list[Vector]:
        if self.model.checkpoint.task != "embed":
            raise invalid(f"{self.model.name} is a language model: it has no embeddings.", "model")
        turns = self.turns()
        tasks = [asyncio.create_task(self._embed_one(prompt, turns)) for prompt in prompts]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def _embed_one(self, prompt: tuple[int, ...], turns: asyncio.Semaphore) -> Vector:
        request = Request(f"emb-{uuid.uuid4().hex}", prompt)
        async with turns, aclosing(self._events(request)) as events:
            async for event in events:
                if event.embedding is not None:
                    return numpy.frombuffer(event.embedding, dtype=numpy.float32)
        raise failed("The engine ended a request without an embedding.")

    async def _events(self, request: Request) -> AsyncGenerator[Event, None]:
        """The engine's events with their timing; its troubles as answers for the client."""
        timing = Timing(request.known_tokens)
        try:
            async with aclosing(self._engine.stream(request)) as events:
                async for event in events:
                    if event.finish in ENDS:
                        timing.finish = "error"
                        raise ENDS[event.finish](event.error or "The engine failed.")
                    if event.token is None and event.embedding is None:
                        self.metrics.started(timing)
                        continue
                    self.metrics.token(timing)
                    if event.finish:
                        timing.finish = event.finish
                    yield event
        except QueueFull as error:
            raise queue_full(str(error)) from None
        except EngineError as error:
            raise unavailable("loading", str(error)) from None
        finally:
            if timing.started_s is not None:
                self.metrics.ended(timing)


class _TextOf:
    """Events of one request to deltas."""

    def __init__(self, detokenizer: Detokenizer, stops: StopMatcher, stop_token_ids: tuple[int, ...]) -> None:
        self._detokenizer, self._stops, self._stop_token_ids = detokenizer, stops, stop_token_ids
        self._tokens = 0

    def push(self, event: Event) -> Delta:
        assert event.token is not None, "an embedding has no text"
        self._tokens += 1
        text = ""
        if event.token not in self._stop_token_ids:
            text = self._stops.push(self._detokenizer.push(event.token))
        if event.finish and not self._stops.matched:
            text += self._stops.push(self._detokenizer.flush())
        if self._stops.matched:
            return Delta(text, self._tokens, event.token, FinishReason.STOP, event.logprobs)
        if event.finish:
            text += self._stops.flush()
        return Delta(text, self._tokens, event.token, event.finish, event.logprobs)
