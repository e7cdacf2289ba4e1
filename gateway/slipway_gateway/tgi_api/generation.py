"""Makes a generation, TGI's response, of the response of a completion: whole, or as the events of a stream (pure)."""

import io
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct

from ..wire.errors import tgi_error
from ..wire.json_values import ABSENT, UNREADABLE, is_null, items_of, list_decoder
from ..wire.sse import KEEP_ALIVE
from ..wire.translated_events import TranslatedEvents

# A whole response is decoded on the event loop: with log probabilities it has the tokens of the longest answers.
MAX_RESPONSE_BYTES = 4 << 20
MAX_TEXT_BYTES = 4 << 20  # of a stream, whose last event has the whole text
# vLLM's first event has the tokens of the prompt, too.
MAX_LINE_BYTES = 4 << 20
# By the names of OpenAI's fields, those of TGI's.
_NAMES = {
    "prompt": "inputs", "max_tokens": "max_new_tokens", "structured_outputs": "grammar", "response_format": "grammar",
}  # fmt: skip


class _Logprobs(Struct):
    tokens: list[str] = []
    token_logprobs: list[float | None] = []


class _Choice(Struct):
    text: str = ""
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None
    token_ids: list[int] | None = None  # vLLM's field


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Error(Struct):
    message: str | None = None
    param: str | None = None


class _Completion(Struct):
    """A completion, or a chunk of one."""

    choices: Raw = ABSENT
    usage: _Usage | None = None
    error: _Error | str | None = None

    @property
    def choice(self) -> _Choice | None:
        """The first one, which alone is read. Raises NoCompletion: it is no choice."""
        if is_null(self.choices):
            return None
        try:
            choices = items_of(_FIRST_CHOICE.decode(self.choices), None)
        except UNREADABLE as error:
            raise NoCompletion(str(error)) from None
        return choices[0] if choices else None


class _Refusal(Struct):
    """An error response: nothing else of it is read."""

    error: _Error | str | None = None


_COMPLETION = msgspec.json.Decoder(_Completion)
_REFUSAL = msgspec.json.Decoder(_Refusal)
_FIRST_CHOICE = list_decoder(_Choice | None, None, 1, refuses_more=False)


class NoCompletion(Exception):
    """The server's response is no completion."""


class Wanted(NamedTuple):
    """What of a request shapes its response. `full_text`: the inputs as JSON, where they precede the text."""

    stop: tuple[str, ...] = ()
    seed: int | None = None
    details: bool = False
    full_text: Raw | None = None

    def generated_text(self, text: str) -> Raw:
        """The text as JSON. The inputs are not decoded: they may be long."""
        written = msgspec.json.encode(text)
        return Raw(written if self.full_text is None else bytes(self.full_text)[:-1] + written[1:])


class Token(NamedTuple):
    """What its engine does not report of a token is None."""

    id: int | None
    text: str
    logprob: float | None
    special: bool = False


def error_message(body: bytes, status: int) -> str:
    """The sentence of an error response in OpenAI's shape, with TGI's name of the parameter."""
    try:
        error = _REFUSAL.decode(body).error
    except UNREADABLE:
        error = None
    if isinstance(error, str):
        return error
    message = error.message if error else None
    if error is None or not message:
        return f"The server of this model answered with status {status}."
    return with_tgi_name(error.param, message)


def with_tgi_name(param: str | None, message: str) -> str:
    """The sentence of an error about a parameter of a completion, with TGI's name of it."""
    name = _NAMES.get((param or "").partition(".")[0], "")
    return f"{name}: {message}" if name and name not in message else message


def whole_generation(body: bytes, wanted: Wanted) -> bytes:
    """The generation of a whole completion. Raises NoCompletion."""
    completion = _completion_of(body)
    choice = completion.choice
    if choice is None:
        raise NoCompletion("it has no choice")
    generation: dict[str, Any] = {"generated_text": wanted.generated_text(choice.text)}
    if wanted.details:
        finish = finish_reason(choice.finish_reason, choice.text, wanted.stop)
        tokens = _tokens(choice)
        if tokens and finish == "eos_token":
            tokens[-1] = tokens[-1]._replace(special=True)
        generation["details"] = {
            "finish_reason": finish,
            "generated_tokens": _generated_tokens(completion.usage, len(tokens)),
            "seed": wanted.seed,
            "prefill": [],
            "tokens": [token._asdict() for token in tokens],
        }
    return msgspec.json.encode(generation)


def finish_reason(reason: str | None, text: str, stop: Collection[str]) -> str:
    """TGI's reason. `text`: of the whole answer, or its end. Raises NoCompletion: the answer did not end as one."""
    if reason == "length":
        return "length"
    if reason != "stop":
        raise NoCompletion(f"it ended with the reason {str(reason)[:100]!r}")
    return "stop_sequence" if any(map(text.endswith, stop)) else "eos_token"


class GenerationEvents(TranslatedEvents):
    """Makes the events of a stream of tokens of those of a completion.

    The last token waits for the usage, which follows it at once: its event has the whole text and the details.
    """

    max_line_bytes = MAX_LINE_BYTES

    def __init__(self, wanted: Wanted) -> None:
        super().__init__()
        self._wanted = wanted
        self._text = io.StringIO()  # a list of short texts takes many times their bytes
        self._ends_with_text = False
        self._count = 0
        self._last: Token | None = None
        self._finish_reason: str | None = None
        self._usage: _Usage | None = None

    def _is_complete(self) -> bool:
        return self._last is not None

    def _alive(self) -> bytes:
        return KEEP_ALIVE

    def _of_data(self, data: bytes) -> Iterator[bytes]:
        try:
            chunk = _completion_of(data)
            choice = chunk.choice
        except NoCompletion:
            yield self._unusable("The server of this answer sent an event that is no completion.")
            return
        if chunk.error is not None:
            yield self._broken(chunk.error if isinstance(chunk.error, str) else chunk.error.message or "It failed.")
            return
        self._usage = chunk.usage or self._usage
        if choice is None or self._last is not None:
            return
        self.kept_bytes += len(choice.text.encode())
        if self.kept_bytes > MAX_TEXT_BYTES:
            yield self._unusable("The answer is longer than the gateway can hold.")
            return
        self._text.write(choice.text)
        self._ends_with_text = bool(choice.text)
        tokens = _streamed_tokens(choice)
        if choice.finish_reason is not None:
            self._finish_reason = choice.finish_reason
            self._last = tokens.pop() if tokens else Token(None, "", None)
        for token in tokens:
            yield self._event(token, {"generated_text": None, "details": None})

    def _finish(self) -> Iterator[bytes]:
        if self._last is None:
            yield self._broken("The server of this answer ended its stream too early.")
            return
        text = self._text.getvalue()
        try:
            finish = finish_reason(self._finish_reason, text, self._wanted.stop)
        except NoCompletion as error:
            yield self._broken(f"The answer is not complete: {error}.")
            return
        last = self._last
        if finish == "eos_token" and not self._ends_with_text:
            last = last._replace(special=True)
        self._has_ended = True
        usage = self._usage or _Usage()
        details = {
            "finish_reason": finish,
            "generated_tokens": _generated_tokens(usage, self._count + 1),
            "input_length": usage.prompt_tokens,
            "seed": self._wanted.seed,
        }
        yield self._event(last, {"generated_text": self._wanted.generated_text(text), "details": details})

    def _event(self, token: Token, more: dict[str, Any]) -> bytes:
        self._count += 1
        event = {"index": self._count, "token": token._asdict()} | more
        return b"data:" + msgspec.json.encode(event) + b"\n\n"

    def _error(self, message: str) -> bytes:
        return b"data:" + tgi_error(500, message) + b"\n\n"


def _completion_of(body: bytes) -> _Completion:
    try:
        return _COMPLETION.decode(body)
    except UNREADABLE as error:
        raise NoCompletion(str(error)) from None


def _generated_tokens(usage: _Usage | None, counted: int) -> int:
    return counted if usage is None or usage.completion_tokens is None else usage.completion_tokens


def _tokens(choice: _Choice) -> list[Token]:
    """The tokens of a choice with what its engine reports of them; none where it reports nothing."""
    ids, logprobs = choice.token_ids or [], choice.logprobs or _Logprobs()
    count = max(len(ids), len(logprobs.tokens))
    found = (
        (ids[at] if at < len(ids) else None,
         logprobs.tokens[at] if at < len(logprobs.tokens) else "",
         logprobs.token_logprobs[at] if at < len(logprobs.token_logprobs) else None)
        for at in range(count)
    )  # fmt: skip
    return [Token(*each) for each in found]


def _streamed_tokens(choice: _Choice) -> list[Token]:
    """The tokens of an event. Their texts together are its text: clients put the answer together from them.

    The text of a token may come later, behind its other bytes or where a stop sequence has not begun after all. An end
    token has no text in a completion; it has its own here, as TGI writes it.
    """
    tokens = _tokens(choice)
    if not choice.text:
        is_end = choice.finish_reason == "stop"
        return [token._replace(text=token.text if is_end and at == len(tokens) - 1 else "")
                for at, token in enumerate(tokens)]  # fmt: skip
    if not tokens:
        return [Token(None, choice.text, None)]
    if "".join(token.text for token in tokens) == choice.text:
        return tokens
    return [*(token._replace(text="") for token in tokens[:-1]), tokens[-1]._replace(text=choice.text)]
