"""The bodies that clients send: decoded, checked, and refused by the name of the field."""

import re
import secrets
from dataclasses import replace
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from ..engine.beams import EarlyStopping
from ..engine.request import SamplingParams
from .errors import ApiError, invalid

MAX_STOPS, MAX_CHOICES, MAX_LOGPROBS = 16, 64, 20
MAX_BEST_OF = 20  # OpenAI's own limit
MAX_BEAMS = 20
# Fields that change which tokens are likely, or end answers by their text, with the values that do not.
WITHOUT_BEAMS: dict[str, tuple[Any, ...]] = {
    name: {"top_p": (1.0,), "top_k": (-1,), "repetition_penalty": (1.0,)}.get(name, ())
    for name in (
        *("stream", "stop", "temperature", "top_p", "top_k", "min_p", "min_tokens", "repetition_penalty"),
        *("frequency_penalty", "presence_penalty", "logit_bias", "bad_words", "allowed_token_ids"),
    )
}
MAX_PROMPTS = 2048  # OpenAI's own limit for embeddings

Positive = Annotated[int, Meta(ge=1)]
Temperature = Annotated[float, Meta(ge=0.0, le=2.0)]
TopP = Annotated[float, Meta(gt=0.0, le=1.0)]
TopK = Annotated[int, Meta(ge=-1)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Stop = str | list[str] | None
TokenId = Annotated[int, Meta(ge=0)]
Tokens = list[TokenId]
# A text, several, the token ids of one, or of several. msgspec knows one kind of list in a union: see `prompts_of`.
Prompts = str | Annotated[list[str | TokenId | Tokens], Meta(min_length=1, max_length=MAX_PROMPTS)]


class StreamOptions(Struct):
    include_usage: bool = False


class Sampling(Struct, kw_only=True):
    """The fields that every generating endpoint shares."""

    max_tokens: Positive | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    seed: Seed | None = None
    stop: Stop = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    ignore_eos: bool = False
    stream: bool | None = False

    @property
    def limit(self) -> int | None:
        return self.max_tokens

    @property
    def stops(self) -> tuple[str, ...]:
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        if len(stops) > MAX_STOPS:
            raise invalid(f"At most {MAX_STOPS} stop strings are allowed.", "stop")
        if "" in stops:
            raise invalid("A stop string must not be empty.", "stop")
        return stops

    def settle_seed(self) -> int:
        """The client's seed, or one that is drawn once and kept: whoever goes on with the answer needs it."""
        if self.seed is None:
            self.seed = secrets.randbits(63)
        return self.seed

    def params(self, max_tokens: int, stop_token_ids: tuple[int, ...]) -> SamplingParams:
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=self.top_p or 1.0,
            top_k=max(0, self.top_k or 0),
            seed=self.settle_seed(),
            frequency_penalty=self.frequency_penalty or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            stop_token_ids=() if self.ignore_eos else stop_token_ids,
        )


class FullSampling(Sampling, kw_only=True):
    """OpenAI's further fields, and vLLM's."""

    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0.0, le=10.0)] | None = None
    logit_bias: Annotated[dict[str, Annotated[float, Meta(ge=-100.0, le=100.0)]], Meta(max_length=1024)] | None = None
    allowed_token_ids: Annotated[Tokens, Meta(min_length=1)] | None = None
    bad_words: Annotated[list[str], Meta(max_length=256)] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    stop_token_ids: Annotated[Tokens, Meta(max_length=256)] | None = None
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None
    timeout: Annotated[float, Meta(gt=0.0)] | None = None  # seconds to the end of the answer
    prompt_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    use_beam_search: bool | None = None
    length_penalty: Annotated[float, Meta(ge=-10.0, le=10.0)] | None = None
    early_stopping: EarlyStopping | None = None

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def candidates(self) -> int:
        """Answers to generate for each prompt, of which `choices` are told."""
        return self.choices

    @property
    def beams(self) -> int:
        """Sequences that a beam search keeps, of which `choices` are told."""
        return self.choices

    @property
    def told_logprobs(self) -> int:
        """Alternatives to tell for each token; -1: nothing."""
        return -1

    @property
    def told_prompt_logprobs(self) -> int:
        """Alternatives to tell for each token of the prompt; -1: nothing."""
        return -1 if self.prompt_logprobs is None else self.prompt_logprobs

    def check(self) -> None:
        """Raises ApiError for fields that do not go together."""
        if self.stream and self.prompt_logprobs is not None:
            raise invalid("prompt_logprobs are not told in streams.", "prompt_logprobs")
        if self.use_beam_search:
            self._check_beams()
        elif self.length_penalty not in (None, 1.0) or self.early_stopping:
            param = "early_stopping" if self.early_stopping else "length_penalty"
            raise invalid(f"{param} is for beam search: set use_beam_search.", param)

    def _check_beams(self) -> None:
        """Refuses what a beam search would have to pass over: it draws nothing and follows the model alone."""
        if not 2 <= self.beams <= MAX_BEAMS:
            raise invalid(f"Beam search needs n or best_of between 2 and {MAX_BEAMS}: its number of beams.", "n")
        if self.limit == 0:
            raise invalid("Beam search needs max_tokens of at least 1.", "max_tokens")
        for name, nothing in WITHOUT_BEAMS.items():
            value = getattr(self, name, None)
            if value and value not in nothing:
                raise invalid(f"{name} does not go with beam search.", name)
        if self.told_logprobs >= 0 or self.told_prompt_logprobs >= 0:
            raise invalid("Log probabilities are not told of a beam search.", "logprobs")

    def params(self, max_tokens: int, stop_token_ids: tuple[int, ...]) -> SamplingParams:
        params = Sampling.params(self, max_tokens, stop_token_ids)
        return replace(
            params,
            min_p=self.min_p or 0.0,
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            logit_bias=tuple((_token_id(token), bias) for token, bias in (self.logit_bias or {}).items()),
            allowed_token_ids=tuple(self.allowed_token_ids or ()),
            min_tokens=self.min_tokens or 0,
            stop_token_ids=(*params.stop_token_ids, *(self.stop_token_ids or ())),
            # Candidates are compared by what their tokens' probabilities were.
            logprobs=max(self.told_logprobs, 0 if self.candidates > self.choices else -1),
            prompt_logprobs=self.told_prompt_logprobs,
        )


def _token_id(text: str) -> int:
    if not text.isdecimal():
        raise invalid(f"logit_bias names {text!r}, which is not a token id.", "logit_bias")
    return int(text)


class Message(Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None

    def render(self) -> dict[str, str]:
        return {"role": self.role, "content": _text_of(self.content)}


class ChatRequest(FullSampling, kw_only=True):
    model: str
    messages: Annotated[list[Message], Meta(min_length=1)]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    max_completion_tokens: Positive | None = None
    stream_options: StreamOptions | None = None

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def told_logprobs(self) -> int:
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs needs logprobs to be true.", "top_logprobs")
        return self.top_logprobs or 0 if self.logprobs else -1


class CompletionRequest(FullSampling, kw_only=True):
    model: str
    prompt: Prompts
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_BEST_OF)] | None = None
    stream_options: StreamOptions | None = None

    @property
    def limit(self) -> int | None:
        return 16 if self.max_tokens is None else self.max_tokens  # OpenAI's default here, and nowhere else

    @property
    def candidates(self) -> int:
        return self.choices if self.use_beam_search else self.beams

    @property
    def beams(self) -> int:
        return self.best_of or self.choices

    @property
    def told_logprobs(self) -> int:
        return -1 if self.logprobs is None else self.logprobs

    @property
    def told_prompt_logprobs(self) -> int:
        return max(super().told_prompt_logprobs, self.told_logprobs if self.echo else -1)

    def check(self) -> None:
        super().check()
        if self.max_tokens == 0 and not self.echo and self.prompt_logprobs is None:
            raise invalid("max_tokens can be 0 only with echo or prompt_logprobs.", "max_tokens")
        if self.beams < self.choices:
            raise invalid(f"best_of must be at least n, which is {self.choices}.", "best_of")
        if self.candidates == self.choices:
            return
        if self.stream:
            raise invalid("best_of above n cannot be streamed: the best answer is known at the end.", "best_of")
        if self.temperature == 0.0:
            raise invalid("best_of above n needs a temperature above 0: greedy answers are all the same.", "best_of")


class EmbeddingRequest(Struct, kw_only=True):
    model: str
    input: Prompts
    encoding_format: str = "float"


class GenerateRequest(Sampling, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/generate."""

    model: str
    prompt: str
    priority: int = 0


class ApiGenerateRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /api/v1/generate."""

    model: str
    prompt: str
    max_tokens: Positive | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    stream: bool = False


class NamedGenerateRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /api/v1/models/{name}/generate."""

    prompt: str
    max_tokens: Positive | None = None
    stream: bool = False


class EmbedRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /api/v1/embed."""

    model: str
    inputs: Annotated[list[str], Meta(min_length=1, max_length=MAX_PROMPTS)]


# Fields of OpenAI's and vLLM's APIs that would change the answer and that this server does not implement, with the
# values that ask for nothing. A kind of request that has the field itself takes it. Everything else that is unknown
# changes no output, and is accepted.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "echo": (False,),
    "suffix": ("",),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "truncate_prompt_tokens": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "dimensions": (),
}

S = TypeVar("S", bound=Struct)


def parse(body: bytes, kind: type[S]) -> S:
    """The body as `kind`; on OpenAI's endpoints (those that allow unknown fields) also checks UNSUPPORTED."""
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(f"The body is not JSON: {error}.") from None
    if not isinstance(fields, dict):
        raise invalid("The body must be a JSON object.")
    if not kind.__struct_config__.forbid_unknown_fields:
        _refuse_unsupported(fields, kind)
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise _named(str(error)) from None


def prompts_of(given: Prompts, param: str) -> list[str | Tokens]:
    if isinstance(given, str):
        return [given]
    ids = [item for item in given if isinstance(item, int)]
    if ids and len(ids) < len(given):
        raise invalid(f"{param} mixes token ids with other things.", param)
    return [ids] if ids else [item for item in given if not isinstance(item, int)]


def _refuse_unsupported(fields: dict[str, Any], kind: type[Struct]) -> None:
    for name, neutral in UNSUPPORTED.items():
        value = None if name in kind.__struct_fields__ else fields.get(name)
        if value is not None and not any(value == allowed and type(value) is type(allowed) for allowed in neutral):
            # 1.0 for 1 asks for nothing either; True for 1 is a mistake.
            if isinstance(value, float) and value in neutral:
                continue
            raise ApiError(400, f"{name} is not supported by this server.", param=name, code="unsupported_parameter")


def _named(message: str) -> ApiError:
    """msgspec says "Expected `int`, got `str` - at `$.max_tokens`"; clients want the name of the field beside it."""
    quoted = re.search(r"(?:required|unknown) field `([^`]+)`", message)
    path = re.search(r"at `\$\.?([^`\[.]*)", message)
    param = (path.group(1) if path else "") or (quoted.group(1) if quoted else "") or None
    return invalid(f"{message}.", param)


def _text_of(content: str | list[dict[str, Any]] | None) -> str:
    if not isinstance(content, list):
        return content or ""
    texts = []
    for part in content:
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise invalid(f"Content of type {part.get('type')!r} is not supported: text only.", "messages")
        texts.append(part["text"])
    return "\n".join(texts)
