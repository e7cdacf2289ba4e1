"""The request bodies of all protocols: they validate requests and make the schema of GET /openapi.json."""

from dataclasses import replace
from typing import Annotated, Literal

from msgspec import Meta, Struct

from slipway_process.serving.bodies import CallerName, ModelName
from slipway_process.serving.errors import invalid

from ...engine.request import SamplingParams
from ...sampling import Alternatives, Count, Positive
from .bodies import unsupported
from .fields import BestOf, Metadata, Objects, Priority, Prompts, Stop, TemplateVariables, Texts, Tokens
from .messages import Messages
from .sampling import FIELDS, ApiGenerateFields, NamedGenerateFields, Sampling, StreamOptions, strings_of
from .structured import Structured
from .tools import ToolChoice, Tools, ToolUse

MAX_BEAMS = 20


class FullSampling(Structured, kw_only=True):
    """What the sampling fields of OpenAI's endpoints mean, and which go together."""

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def candidates(self) -> int:
        """Answers to generate for each prompt. `choices` of them are returned."""
        return self.choices

    @property
    def beams(self) -> int:
        """The number of beams. `choices` of the answers are returned."""
        return self.choices

    @property
    def token_logprobs(self) -> int:
        """Alternatives to return for each token; -1: no log probabilities."""
        return -1

    @property
    def prompt_token_logprobs(self) -> int:
        """Alternatives to return for each token of the prompt; -1: no log probabilities."""
        return -1 if self.prompt_logprobs is None else self.prompt_logprobs

    def check(self) -> None:
        """Raises HttpError for fields that do not go together."""
        if self.stream and self.prompt_logprobs is not None:
            raise invalid("prompt_logprobs are not available in streams.", "prompt_logprobs")
        if self.stream_options is not None:
            self._check_stream_options(self.stream_options)
        if self.min_tokens and self.limit is not None and self.min_tokens > self.limit:
            raise invalid(f"min_tokens must be at most max_tokens, which is {self.limit}.", "min_tokens")
        if self.grammar and self.ignore_eos:
            raise invalid(
                f"ignore_eos does not go with {self.grammar.param}, which says where an answer ends.", "ignore_eos"
            )
        if self.use_beam_search:
            self._check_beams()
        elif self.length_penalty not in (None, 1.0) or self.early_stopping:
            param = "early_stopping" if self.early_stopping else "length_penalty"
            raise invalid(f"{param} is for beam search: set use_beam_search.", param)

    def _check_stream_options(self, options: StreamOptions) -> None:
        if not self.stream:
            raise invalid("stream_options are for streams: set stream.", "stream_options")
        for name in ("include_obfuscation", "continuous_usage_stats"):
            if getattr(options, name):
                raise unsupported("stream_options", f"{name} is not supported by this server.")

    def _check_beams(self) -> None:
        """Refuses fields that a beam search would ignore: it draws no tokens, and follows the model's scores alone."""
        if not 2 <= self.beams <= MAX_BEAMS:
            raise invalid(f"Beam search needs n or best_of between 2 and {MAX_BEAMS}: its number of beams.", "n")
        if self.limit == 0:
            raise invalid("Beam search needs max_tokens of at least 1.", "max_tokens")
        for name, field in FIELDS.items():
            value = getattr(self, name)
            if field.beams is not None and value and value not in field.beams:
                raise invalid(f"{name} does not go with beam search.", name)
        if self.token_logprobs >= 0 or self.prompt_token_logprobs >= 0:
            raise invalid("Log probabilities are not available with beam search.", "logprobs")

    def params(self, max_tokens: int, stop_token_ids: tuple[int, ...], seed: int) -> SamplingParams:
        params = Sampling.params(self, max_tokens, stop_token_ids, seed)
        return replace(
            params,
            stop_token_ids=(*params.stop_token_ids, *(self.stop_token_ids or ())),
            # best_of compares candidates by the log probabilities of their tokens.
            logprobs=max(self.token_logprobs, 0 if self.candidates > self.choices else -1),
            prompt_logprobs=self.prompt_token_logprobs,
            grammar=self.grammar,
        )


class ChatRequest(FullSampling, kw_only=True):
    """POST /v1/chat/completions."""

    model: ModelName
    messages: Messages
    user: CallerName | None = None
    prompt_cache_key: CallerName | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    max_completion_tokens: Positive | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    documents: Objects | None = None
    metadata: Metadata | None = None
    safety_identifier: CallerName | None = None
    reasoning_effort: Annotated[str, Meta(min_length=1, max_length=32)] | None = None
    chat_template_kwargs: TemplateVariables | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def tool_use(self) -> ToolUse:
        return ToolUse(self.tools or (), self.tool_choice, self.parallel_tool_calls is not False)

    @property
    def token_logprobs(self) -> int:
        return self.top_logprobs or 0 if self.logprobs else -1

    def check(self) -> None:
        super().check()
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs needs logprobs to be true.", "top_logprobs")
        if self.continue_final_message and self.add_generation_prompt:
            message = "continue_final_message does not go with add_generation_prompt: set that one to false."
            raise invalid(message, "continue_final_message")
        self.tool_use.check(grammar=self.grammar, ignore_eos=self.ignore_eos, beams=bool(self.use_beam_search))


class CompletionRequest(FullSampling, kw_only=True):
    """POST /v1/completions."""

    model: ModelName
    prompt: Prompts
    user: CallerName | None = None
    max_tokens: Count | None = None
    logprobs: Alternatives | None = None
    echo: bool | None = None
    best_of: BestOf | None = None
    return_token_ids: bool | None = None  # vLLM's; those of the prompt come from /tokenize
    add_special_tokens: bool = True

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
    def token_logprobs(self) -> int:
        return -1 if self.logprobs is None else self.logprobs

    @property
    def prompt_token_logprobs(self) -> int:
        return max(super().prompt_token_logprobs, self.token_logprobs if self.echo else -1)

    def check(self) -> None:
        super().check()
        if self.max_tokens == 0 and not self.echo and self.prompt_logprobs is None:
            raise invalid("max_tokens can be 0 only with echo or prompt_logprobs.", "max_tokens")
        if self.return_token_ids and self.use_beam_search:
            raise invalid("return_token_ids does not go with beam search.", "return_token_ids")
        if self.beams < self.choices:
            raise invalid(f"best_of must be at least n, which is {self.choices}.", "best_of")
        if self.candidates == self.choices:
            return
        if self.stream:
            raise invalid("best_of above n cannot be streamed: the best answer is known at the end.", "best_of")
        if self.temperature == 0.0:
            raise invalid("best_of above n needs a temperature above 0: greedy answers are all the same.", "best_of")


class EmbeddingRequest(Struct, kw_only=True):
    """POST /v1/embeddings."""

    model: ModelName
    input: Prompts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Positive | None = None
    user: CallerName | None = None
    add_special_tokens: bool = True


class TokenizeRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /tokenize: a prompt, or a chat. By default special tokens are added to a prompt alone."""

    model: ModelName | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    chat_template_kwargs: TemplateVariables | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    def check(self) -> None:
        """Raises HttpError for fields that do not go together."""
        if (self.prompt is None) == (self.messages is None):
            raise invalid("Give either a prompt or messages.", "prompt")
        if self.prompt is not None:
            for name in ("tools", "chat_template_kwargs", "continue_final_message"):
                if getattr(self, name):
                    raise invalid(f"{name} is for messages.", name)

    def chat(self, model: str) -> ChatRequest:
        """The chat completion whose prompt is to be tokenized."""
        body = ChatRequest(
            model=model,
            messages=self.messages or [],
            tools=self.tools,
            tool_choice="none",
            chat_template_kwargs=self.chat_template_kwargs,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            add_special_tokens=bool(self.add_special_tokens),
        )
        body.check()
        return body


class DetokenizeRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /detokenize."""

    model: ModelName | None = None
    tokens: Tokens


class GenerateRequest(Sampling, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/generate."""

    model: ModelName
    prompt: str
    priority: Priority = 0
    stop_tokens: Stop = None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (*strings_of(self.stop), *strings_of(self.stop_tokens))


class ApiGenerateRequest(ApiGenerateFields, kw_only=True, forbid_unknown_fields=True):
    """POST /api/v1/generate."""

    model: ModelName
    prompt: str
    stream: bool = False
    stop_tokens: Stop = None


class NamedGenerateRequest(NamedGenerateFields, kw_only=True, forbid_unknown_fields=True):
    """POST /api/v1/models/{name}/generate."""

    prompt: str
    stream: bool = False
    stop_tokens: Stop = None


class EmbedRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /api/v1/embed."""

    model: ModelName
    inputs: Texts
