"""Turns what clients send (texts, token ids, chats) into prompts of token ids that fit, beside the event loop."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from ...models.checkpoint import Checkpoint
from ...text.answers.selection import CONTENT_ONLY, AnswerFormats
from ...text.chat_template import OWN_VARIABLES, ChatTemplate, ChatTemplateError
from ...text.pool import TextBusy, TextPool, TextTimeout
from ...text.tokenizer import Tokenizer
from ..errors import HttpError, invalid, queue_full, too_long
from .bodies import unsupported
from .messages import template_messages
from .schemas import ChatRequest

T = TypeVar("T")

INLINE_CHARACTERS = 2048  # that are encoded at once: a thread would cost as much


@dataclass(frozen=True, slots=True)
class Prompt:
    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ServedModel:
    name: str
    version: str
    checkpoint: Checkpoint
    context_tokens: int
    tokenizer: Tokenizer
    template: ChatTemplate
    formats: AnswerFormats = CONTENT_ONLY
    loaded_at: int = field(default_factory=lambda: int(time.time()))

    @property
    def embedding_rows(self) -> int:
        """The size of the model's vocabulary by config.json. A tokenizer may have more tokens."""
        config = self.checkpoint.config
        text = config.get("text_config")
        rows = config.get("vocab_size") or (text.get("vocab_size") if isinstance(text, dict) else None)
        return rows if isinstance(rows, int) and rows > 0 else self.tokenizer.vocabulary_size


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """`max_context_tokens`: of a prompt and its answer together. `vocabulary`: token ids must be below."""

    max_context_tokens: int
    vocabulary: int


class Prompts:
    """Makes prompts for one model. Raises HttpError, with the field's name, for prompts that it cannot take."""

    def __init__(self, model: ServedModel, pool: TextPool | None = None) -> None:
        self._model, self._pool = model, pool or TextPool()

    async def chat(self, body: ChatRequest, messages: list[dict[str, Any]], limits: PromptLimits | None) -> Prompt:
        """The prompt of a chat. `messages`: as the client sent them, with fields that `body.messages` lacks.

        Without `limits` the prompt may have any length.
        """
        template = self._model.template
        if template.problem:
            raise HttpError(400, template.problem, param="messages", code="no_chat_template")
        variables = self._variables(body)
        developer = "developer" if template.mentions("developer") else "system"
        render = partial(
            template.render,
            tools=body.tool_use.for_template(),
            documents=body.documents,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            variables=variables,
        )

        def work() -> Prompt:
            try:
                text = render(template_messages(messages, developer=developer))
            except ChatTemplateError:
                # Some templates join the arguments of calls to other texts.
                if not any(message.get("tool_calls") for message in messages):
                    raise
                text = render(template_messages(messages, developer=developer, arguments_as_text=True))
            return Prompt(text, self._model.tokenizer.encode_now(text, special_tokens=body.add_special_tokens))

        try:
            prompt = await self._run_in_pool(work, "messages")
        except ChatTemplateError as error:
            raise invalid(str(error), "messages") from None
        if limits:
            self._check(prompt.tokens, "messages", limits)
        return prompt

    def _variables(self, body: ChatRequest) -> dict[str, Any]:
        """The template's variables. Refuses those that the template does not use, which would be ignored silently."""
        template, given = self._model.template, dict(body.chat_template_kwargs or {})
        for name in given:
            if name in OWN_VARIABLES or not template.names(name, tools=bool(body.tools)):
                sentence = f"The chat template of {self._model.name} has no variable {name!r} to be set."
                raise unsupported("chat_template_kwargs", sentence)
        if body.reasoning_effort is not None:
            given.setdefault("reasoning_effort", body.reasoning_effort)
        for name in ("tools", "documents", "reasoning_effort"):
            # A call that must come follows the tool's schema, also where the template does not show it to the model.
            needed = getattr(body, name) and not (name == "tools" and body.tool_use.must_call)
            if needed and not template.names(name, tools=bool(body.tools)):
                raise unsupported(name, f"{name} is not supported: the chat template of {self._model.name} has none.")
        return given

    async def encode_all(
        self, given: Sequence[str | Sequence[int]], limits: PromptLimits, *, param: str, special_tokens: bool = True
    ) -> list[Prompt]:
        """Prompts that fit into the context, each with the text as the client wrote it."""

        def work() -> list[Prompt]:
            return [self._prompt(item, limits, param, special_tokens) for item in given]

        return work() if sum(map(len, given)) < INLINE_CHARACTERS else await self._run_in_pool(work, param)

    async def encode(self, text: str, *, special_tokens: bool) -> tuple[int, ...]:
        """The token ids of a text of any length."""
        encode = partial(self._model.tokenizer.encode_now, text, special_tokens=special_tokens)
        return await self._run_in_pool(encode, "prompt")

    async def names(self, tokens: Sequence[int]) -> list[str]:
        """The text of each token."""
        return await self._run_in_pool(lambda: list(map(self._model.tokenizer.text_of, tokens)), "return_token_strs")

    async def decode(self, tokens: list[int]) -> str:
        """The text of tokens, special ones by their names."""
        decode = partial(self._model.tokenizer.decode, tokens, skip_special_tokens=False)
        return await self._run_in_pool(decode, "tokens")

    async def encode_words(self, words: list[str]) -> tuple[tuple[int, ...], ...]:
        """The token ids of each word, as it is written at the beginning of a text and after a space."""

        def work() -> tuple[tuple[int, ...], ...]:
            variants = (variant for word in words for variant in (word, f" {word}"))
            tokens = (self._model.tokenizer.encode_now(variant, special_tokens=False) for variant in variants)
            return tuple(dict.fromkeys(spelling for spelling in tokens if spelling))

        return await self._run_in_pool(work, "bad_words") if words else ()

    def _prompt(self, given: str | Sequence[int], limits: PromptLimits, param: str, special_tokens: bool) -> Prompt:
        tokenizer = self._model.tokenizer
        if isinstance(given, str):
            prompt = Prompt(given, tokenizer.encode_now(given, special_tokens=special_tokens))
            self._check(prompt.tokens, param, limits)
            return prompt
        self._check(given, param, limits)
        return Prompt(tokenizer.decode(list(given)), tuple(given))

    def _check(self, tokens: Sequence[int], param: str, limits: PromptLimits) -> None:
        if not tokens:
            raise invalid("The prompt is empty.", param)
        if len(tokens) + (self._model.checkpoint.task == "generate") > limits.max_context_tokens:
            raise too_long(
                f"The prompt has {len(tokens)} tokens; this server's {limits.max_context_tokens} tokens of context "
                "must hold it and the answer.",
                param,
            )
        check_tokens(tokens, param, limits.vocabulary)

    async def _run_in_pool(self, work: Callable[[], T], param: str) -> T:
        try:
            return await self._pool.run(work)
        except TextBusy as error:
            raise queue_full(str(error)) from None
        except TextTimeout:
            raise HttpError(400, "Its tokens took too long to be made.", param=param, code="prompt_timeout") from None


def check_tokens(tokens: Sequence[int], param: str, vocabulary: int) -> None:
    """Raises HttpError for ids outside the vocabulary: the model has no embedding for them."""
    if (highest := max(tokens, default=0)) >= vocabulary:
        raise invalid(f"Token ids must be below {vocabulary}; {highest} is not.", param)
