"""Reads bodies: decodes and checks them, and makes prompts of what is in them, where that costs no one else.

What is small costs little and is read here. A template is a stranger's program: chats are rendered in a process. A
large body is read in a process as a whole: no check of its size can show what its parts cost to decode.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec
from msgspec import Struct

from slipway_process import machine
from slipway_process.serving.errors import HttpError, Refusal, queue_full
from slipway_process.serving.turns import QueueRules, TextBusy

from ...text.chat import Chat
from ...text.pool import TextPool, TextTimeout
from ..requests.prompt import Prompt, PromptLimits
from ..requests.prompts import Given, PromptEncoder, ServedModel
from .inputs import INPUTS, read_input
from .messages import (
    MAX_TEXT_BYTES,
    TOO_MUCH,
    Begin,
    BodyRead,
    FromChild,
    Job,
    ReadBody,
    RenderChat,
    Rendered,
    too_much,
)
from .processes import JobKilled, NoProcess, Processes, ProcessRules

S = TypeVar("S", bound=Struct)
T = TypeVar("T")

# A larger body, or one with more values, is read in a process: here it would stop all other requests.
MAX_HERE_BYTES, MAX_HERE_VALUES = MAX_TEXT_BYTES, 1 << 14
# Texts that are encoded at once: a thread would cost as much.
INLINE_CHARACTERS, INLINE_TEXTS = 2048, 16
RENDER_BYTES = 128 << 20  # of memory, of a process that renders small chats
# Of the one that reads large bodies: a byte of text takes up to a hundred bytes while it is tokenized.
READ_BYTES, LEAST_READ_BYTES = 512 << 20, 64 << 20
RENDERERS = ProcessRules(QueueRules(slots=3, share=2, places=128), kept=1)
READERS = ProcessRules(QueueRules(slots=2, share=1, places=16), kept=0)


class RequestReader:
    def __init__(
        self, model: ServedModel, names: Callable[[], frozenset[str]] | None = None, *, log_level: str = "info"
    ) -> None:
        """`names`: of the model and its adapters, as they are when a request comes."""
        self._model, self._log_level = model, log_level
        self._names = names or (lambda: frozenset({model.name}))
        self._encoder = PromptEncoder(model.tokenizer)
        self._pool = TextPool()
        self._renderers = Processes(self._begin("", RENDER_BYTES, niceness=0), RENDERERS)
        self._readers: Processes | None = None

    def _begin(self, folder: str, memory_bytes: int, niceness: int) -> Begin:
        model = self._model
        return Begin(model.name, model.template, folder, memory_bytes, niceness, self._log_level)

    async def warm_up(self) -> None:
        """Start the process that renders chats, where the model has a template."""
        if not self._model.template.missing:
            await self._renderers.warm_up()

    async def close(self) -> None:
        await self._renderers.close()
        if self._readers:
            await self._readers.close()

    async def read(self, body: bytes, kind: type[S], limits: PromptLimits, tenant: str) -> tuple[S, list[Prompt]]:
        """A body as `kind`, without what has become the prompts, and these.

        Raises:
            HttpError: with the name of the field that is wrong or does not fit.
        """
        if not is_small(body):
            return await self._read_aside(body, kind, limits, tenant)
        found = read_input(body, kind, self._model.name, self._names())
        texts = found.texts
        if found.chat:
            self._check_template()
            self._encoder.check_chat(found.chat, limits, found.param)
            text = await self._rendered(found.chat, tenant)
            if text is None:
                return await self._read_aside(body, kind, limits, tenant)
            texts = [text]
        encode = partial(
            self._encoder.prompts,
            texts,
            limits,
            param=found.param,
            special_tokens=found.special_tokens,
            special_names=found.special_names,
        )
        return found.body, encode() if _is_short(texts) else await self._in_thread(encode, found.param, tenant)

    async def names(self, tokens: Sequence[int], tenant: str) -> list[str]:
        """The text of each token."""
        text_of = self._model.tokenizer.text_of
        return await self._in_thread(lambda: list(map(text_of, tokens)), "return_token_strs", tenant)

    async def encode_words(self, words: list[str], tenant: str) -> tuple[tuple[int, ...], ...]:
        """The token ids of each word, as it is written at the beginning of a text and after a space."""
        return await self._in_thread(partial(self._encoder.words, words), "bad_words", tenant) if words else ()

    def _check_template(self) -> None:
        if reason := self._model.template.missing:
            raise HttpError(400, reason, param="messages", code="no_chat_template")

    async def _rendered(self, chat: Chat, tenant: str) -> str | None:
        """The prompt of a chat; None for a long one."""
        answer = await self._in_process(self._renderers, RenderChat(chat), RENDER_BYTES, "messages", tenant)
        assert isinstance(answer, Rendered), "it renders"
        return answer.text

    async def _read_aside(
        self, body: bytes, kind: type[S], limits: PromptLimits, tenant: str
    ) -> tuple[S, list[Prompt]]:
        if self._readers is None:
            # Two of them leave a third: an allocation that fails is one error, the end of the container is many.
            self._memory_bytes = max(LEAST_READ_BYTES, min(READ_BYTES, machine.free_memory_bytes() // 3))
            folder = str(self._model.checkpoint.folder)
            self._readers = Processes(self._begin(folder, self._memory_bytes, niceness=10), READERS)
        job = ReadBody(kind.__name__, body, limits, self._names())
        answer = await self._in_process(self._readers, job, self._memory_bytes, INPUTS[kind], tenant)
        assert isinstance(answer, BodyRead), "it reads"
        return msgspec.msgpack.decode(answer.body, type=kind), [data.prompt for data in answer.prompts]

    async def _in_process(
        self, processes: Processes, job: Job, memory_bytes: int, param: str, tenant: str
    ) -> FromChild:
        try:
            answer = await processes.ask(job, tenant)
        except TextBusy as error:
            raise queue_full(str(error)) from None
        except TextTimeout:
            raise _too_slow(param) from None
        except JobKilled:
            raise HttpError(400, too_much(memory_bytes), param=param, code=TOO_MUCH) from None
        except NoProcess:
            message = "The process that reads requests cannot be started: ask again."
            raise HttpError(503, message, code="no_reader", retry_after_s=2, outcome="error") from None
        if isinstance(answer, Refusal):
            raise answer.error
        return answer

    async def _in_thread(self, work: Callable[[], T], param: str, tenant: str) -> T:
        try:
            return await self._pool.run(work, tenant)
        except TextBusy as error:
            raise queue_full(str(error)) from None
        except TextTimeout:
            raise _too_slow(param) from None


def is_small(body: bytes) -> bool:
    """Whether a body is decoded in a moment, whatever is in it. Marks within texts count too: there may be others."""
    return len(body) <= MAX_HERE_BYTES and sum(map(body.count, (b",", b"[", b"{"))) <= MAX_HERE_VALUES


def _is_short(texts: Sequence[Given]) -> bool:
    return len(texts) <= INLINE_TEXTS and sum(map(len, texts)) <= INLINE_CHARACTERS


def _too_slow(param: str) -> HttpError:
    return HttpError(400, "Its tokens took too long to be made.", param=param, code="prompt_timeout")
