"""Answers in OpenAI's shapes: whole ones and chunks of chat completions and of completions."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from itertools import chain
from typing import Any

from slipway_process.json_lists import json_list

from ...engine.request import FinishReason, Logprobs
from ...text.answers.answer import AnswerForm
from ..requests.prompt import Prompt
from ..requests.prompts import ServedModel
from ..requests.schemas import ChatRequest, CompletionRequest
from .delta import Delta
from .logprobs import TextOffsets, format_chat_logprobs, format_completion_logprobs, format_prompt_logprobs
from .message import MessageParser
from .resume import Identity, StreamPosition

IndexedDelta = tuple[int, Delta]


class Choice:
    """One answer, to which deltas are added until it is complete."""

    def __init__(self) -> None:
        self.text, self.tokens, self.cached_tokens, self.finish = "", 0, 0, FinishReason.ERROR
        self.accepted = self.rejected = 0  # drafted tokens
        self.token_ids: list[int] = []
        self.logprobs: list[Logprobs] = []
        self.prompt_logprobs: tuple[Logprobs, ...] = ()

    def add(self, delta: Delta) -> None:
        self.text += delta.text
        self.logprobs += [delta.logprobs] if delta.logprobs else []
        self.prompt_logprobs += delta.prompt_logprobs
        if delta.tokens:  # else the token is computed and not returned
            self.token_ids.append(delta.token)
        self.tokens = delta.tokens
        self.cached_tokens += delta.cached_tokens
        self.accepted += delta.accepted
        self.rejected += delta.rejected
        self.finish = delta.finish or self.finish

    @property
    def num_logprobs(self) -> int:
        """The log probabilities that it shows, alternatives too."""
        return sum(len(item.tokens) for item in chain(self.logprobs, self.prompt_logprobs))

    @property
    def score(self) -> float:
        """Mean log probability of its tokens, by which OpenAI's best_of compares."""
        return sum(item.values[0] for item in self.logprobs) / max(1, len(self.logprobs))


def best(choices: list[Choice], *, count: int) -> list[Choice]:
    """The `count` choices with the highest scores, the best one first; equal ones in their order."""
    return sorted(choices, key=lambda choice: -choice.score)[:count]


class Shape(ABC):
    """What chat completions and completions have in common."""

    id_prefix, whole_object, chunk_object = "", "", ""

    def __init__(self, model: ServedModel, name: str, identity: Identity, prompts: list[Prompt]) -> None:
        """`name`: of the adapter that answers, or of the model itself."""
        self._head = {"id": f"{self.id_prefix}-{identity.id}", "created": identity.created, "model": name}
        self._tokenizer = model.tokenizer
        self._prompts, self._speculates = prompts, model.speculates

    @property
    def prompt_tokens(self) -> int:
        return sum(len(prompt.tokens) for prompt in self._prompts)

    @abstractmethod
    def choice(self, index: int, choice: Choice) -> dict[str, Any]: ...

    @abstractmethod
    def delta(self, index: int, delta: Delta) -> dict[str, Any]: ...

    def is_sent(self, choice: dict[str, Any]) -> bool:
        """Whether a streamed choice has something for the client."""
        return bool(choice["text"] or choice["finish_reason"] or choice["logprobs"])

    def opening(self, index: int, delta: Delta) -> dict[str, Any] | None:
        """The chunk before the first delta of a choice."""
        return None

    async def _opening(self, index: int, delta: Delta) -> dict[str, Any] | None:
        """As `opening`; log probabilities of a prompt are formatted in a thread, and other requests go on meanwhile."""
        if delta.prompt_logprobs:
            return await asyncio.to_thread(self.opening, index, delta)
        return self.opening(index, delta)

    def usage(
        self, completion_tokens: Sequence[int], cached_tokens: Sequence[int], *, accepted: int = 0, rejected: int = 0
    ) -> dict[str, Any]:
        """Token counts of all answers, also of those that are not returned.

        Of a prompt with several answers the cached tokens of the first one count: the others find in the cache what
        the first one has just computed. `accepted`, `rejected`: drafted tokens, which are only shown where there are
        any; the rejected ones are no completion tokens.
        """
        answers = max(1, len(cached_tokens) // len(self._prompts))
        usage = usage_of(self.prompt_tokens, sum(completion_tokens), sum(cached_tokens[::answers]))
        if self._speculates:
            drafted = {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}
            usage["completion_tokens_details"] = drafted
        return usage

    def whole(self, choices: list[Choice], usage: dict[str, Any]) -> dict[str, Any]:
        # Each choice is JSON before the next one is made: there may be many with log probabilities.
        answers = json_list((self.choice(index, choice) for index, choice in enumerate(choices)), piece=1)
        return self._head | {"object": self.whole_object, "choices": answers, "usage": usage}

    async def chunks(
        self, deltas: AsyncIterator[IndexedDelta], *, with_usage: bool, progress: StreamPosition | None
    ) -> AsyncIterator[dict[str, Any]]:
        head = self._head | {"object": self.chunk_object} | ({"usage": None} if with_usage else {})
        tokens: dict[int, int] = {}
        cached: dict[int, int] = {}
        accepted = rejected = 0
        async for index, delta in deltas:
            if index not in tokens and (opening := await self._opening(index, delta)):
                yield head | {"choices": [opening]}
            tokens[index] = delta.tokens
            cached[index] = cached.get(index, 0) + delta.cached_tokens
            accepted, rejected = accepted + delta.accepted, rejected + delta.rejected
            if progress:
                progress.add_token(delta.token)
            choice = self.delta(index, delta)
            if self.is_sent(choice):
                yield head | {"choices": [choice]}
        if with_usage:
            if progress:
                progress.add_end()
            cached_tokens = [cached[index] for index in sorted(cached)]
            usage = self.usage(list(tokens.values()), cached_tokens, accepted=accepted, rejected=rejected)
            yield head | {"choices": [], "usage": usage}


class ChatShape(Shape):
    id_prefix, whole_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(
        self, model: ServedModel, identity: Identity, prompts: list[Prompt], body: ChatRequest, form: AnswerForm
    ) -> None:
        super().__init__(model, body.model, identity, prompts)
        self._body, self._form, self._seed = body, form, identity.id
        self._parsers: dict[int, MessageParser] = {}  # of streamed choices

    def whole(self, choices: list[Choice], usage: dict[str, Any]) -> dict[str, Any]:
        answer = super().whole(choices, usage)
        if (count := self._body.prompt_logprobs) is not None:
            logprobs = choices[0].prompt_logprobs
            answer["prompt_logprobs"] = format_prompt_logprobs(logprobs, self._tokenizer, count)
        return answer

    def choice(self, index: int, choice: Choice) -> dict[str, Any]:
        parser = self._parser(index)
        message = parser.message(choice.text)
        logprobs = format_chat_logprobs(choice.logprobs, self._tokenizer) if choice.logprobs else None
        finish = parser.finish_reason(choice.finish)
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish}

    def delta(self, index: int, delta: Delta) -> dict[str, Any]:
        if (parser := self._parsers.get(index)) is None:
            parser = self._parsers[index] = self._parser(index)
        part = parser.delta(delta.text, last=delta.finish is not None)
        logprobs = format_chat_logprobs([delta.logprobs], self._tokenizer) if delta.logprobs else None
        finish = parser.finish_reason(delta.finish)
        return {"index": index, "delta": part, "logprobs": logprobs, "finish_reason": finish}

    def is_sent(self, choice: dict[str, Any]) -> bool:
        delta = choice["delta"]
        return bool(choice["finish_reason"] or choice["logprobs"] or delta.get("content") or delta.keys() - {"content"})

    def _parser(self, index: int) -> MessageParser:
        return MessageParser(self._form.parser(f"{self._seed}.{index}"))

    def opening(self, index: int, delta: Delta) -> dict[str, Any]:
        return {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }


class CompletionShape(Shape):
    id_prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"

    def __init__(self, model: ServedModel, identity: Identity, prompts: list[Prompt], body: CompletionRequest) -> None:
        super().__init__(model, body.model, identity, prompts)
        self._body = body
        self._offsets: dict[int, TextOffsets] = {}  # of the next token of each choice

    def choice(self, index: int, choice: Choice) -> dict[str, Any]:
        text, logprobs = (
            choice.text,
            self._completion_logprobs(index, choice.logprobs, choice.prompt_logprobs, is_first=True),
        )
        if self._body.echo:
            text = self._prompt(index).text + text
        answer = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": choice.finish}
        if self._body.return_token_ids:
            answer["token_ids"] = choice.token_ids
        if (count := self._body.prompt_logprobs) is not None:
            answer["prompt_logprobs"] = format_prompt_logprobs(choice.prompt_logprobs, self._tokenizer, count)
        return answer

    def delta(self, index: int, delta: Delta) -> dict[str, Any]:
        logprobs = self._completion_logprobs(index, [delta.logprobs], ()) if delta.logprobs else None
        if self._body.logprobs is not None and logprobs is None:
            # Resumed from another server, which sent the log probabilities of this token.
            self._offsets_of(index).push(delta.token)
        part = {"index": index, "text": delta.text, "logprobs": logprobs, "finish_reason": delta.finish}
        if self._body.return_token_ids:
            part["token_ids"] = [delta.token] if delta.tokens else []
        return part

    def is_sent(self, choice: dict[str, Any]) -> bool:
        return super().is_sent(choice) or bool(choice.get("token_ids"))

    def opening(self, index: int, delta: Delta) -> dict[str, Any] | None:
        if not self._body.echo:
            return None
        logprobs = self._completion_logprobs(index, [], delta.prompt_logprobs, is_first=True)
        self._offsets[index] = TextOffsets(self._tokenizer)
        for token in self._prompt(index).tokens:
            self._offsets[index].push(token)
        return {"index": index, "text": self._prompt(index).text, "logprobs": logprobs, "finish_reason": None}

    def _prompt(self, index: int) -> Prompt:
        return self._prompts[index // self._body.choices]

    def _completion_logprobs(
        self, index: int, logprobs: list[Logprobs], prompt_logprobs: tuple[Logprobs, ...], *, is_first: bool = False
    ) -> dict[str, Any] | None:
        if self._body.logprobs is None:
            return None
        echoed = is_first and bool(self._body.echo)
        first = self._prompt(index).tokens[0] if echoed else None
        items = [*(prompt_logprobs if echoed else ()), *logprobs]
        offsets = self._offsets_of(index)
        return format_completion_logprobs(items, self._tokenizer, self._body.logprobs, offsets=offsets, first=first)

    def _offsets_of(self, index: int) -> TextOffsets:
        return self._offsets.setdefault(index, TextOffsets(self._tokenizer))


def usage_of(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
