"""What each kind of body has for the model: a chat for its template, or texts and token ids (pure)."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from slipway_process.serving.bodies import decoded
from slipway_process.serving.errors import invalid

from ...text.chat import Chat
from ..requests.bodies import checked_body, prompts_of
from ..requests.fields import MAX_PROMPTS
from ..requests.messages import Message
from ..requests.prompts import Given, wrong_model
from ..requests.schemas import (
    ApiGenerateRequest,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    EmbedRequest,
    GenerateRequest,
    NamedGenerateRequest,
    TokenizeRequest,
)
from ..response_api.items import messages_of
from ..response_api.schema import ResponsesRequest, checked_messages

S = TypeVar("S", bound=Struct)
Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ModelInput(Generic[S]):
    """`body` without what has become the input: that may be large, and the rest lives as long as the answer.

    `param`: the field of the input. `special_tokens`, `special_names`: as of `PromptEncoder.prompts`.
    """

    body: S
    param: str
    chat: Chat | None = None
    texts: Sequence[Given] = ()
    special_tokens: bool = True
    special_names: bool = False


def read_input(body: bytes, kind: type[S], served: str, names: Collection[str]) -> ModelInput[S]:
    """Decodes and checks a body. `served`: the name of the model here; `names`: that one, and those of its adapters.

    Raises:
        HttpError: with the name of the field that is wrong.
    """
    fields = decoded(body)
    request = checked_body(fields, kind)
    model_input: ModelInput[S] = KINDS[kind](request, fields)
    if (name := getattr(request, "model", None)) is not None and name not in names:
        raise wrong_model(name, served)
    return model_input


def check_answers(num_answers: int) -> None:
    if num_answers > MAX_PROMPTS:
        raise invalid(f"{num_answers} answers are requested at once; {MAX_PROMPTS} is the limit.", "n")


def _chat(body: ChatRequest, fields: Fields) -> ModelInput[ChatRequest]:
    body.check()
    left = replace(body, messages=_NO_MESSAGES, documents=None, chat_template_kwargs=None)
    return ModelInput(left, "messages", _chat_of(body, fields["messages"]), special_tokens=body.add_special_tokens)


def _chat_of(body: ChatRequest, messages: list[dict[str, Any]]) -> Chat:
    """`messages`: as the client sent them, with fields that `body.messages` lacks."""
    return Chat(
        messages=messages,
        tools=body.tool_use.for_template(),
        tools_optional=body.tool_use.must_call,
        documents=body.documents,
        reasoning_effort=body.reasoning_effort,
        variables=body.chat_template_kwargs or {},
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
    )


def _responses(body: ResponsesRequest, _: Fields) -> ModelInput[ResponsesRequest]:
    body.check()
    messages = messages_of(body.instructions, body.input)
    checked_messages(messages)
    chat = body.chat()
    chat.check()
    left = replace(body, input="", chat_template_kwargs=None)
    return ModelInput(left, "messages", _chat_of(chat, messages), special_tokens=chat.add_special_tokens)


def _completion(body: CompletionRequest, _: Fields) -> ModelInput[CompletionRequest]:
    body.check()
    texts = prompts_of(body.prompt, "prompt")
    check_answers(len(texts) * body.candidates)
    return ModelInput(replace(body, prompt=""), "prompt", texts=texts, special_tokens=body.add_special_tokens)


def _embedding(body: EmbeddingRequest, _: Fields) -> ModelInput[EmbeddingRequest]:
    texts = prompts_of(body.input, "input")
    return ModelInput(replace(body, input=""), "input", texts=texts, special_tokens=body.add_special_tokens)


def _embed(body: EmbedRequest, _: Fields) -> ModelInput[EmbedRequest]:
    return ModelInput(replace(body, inputs=[""]), "inputs", texts=body.inputs)


def _generate(body: GenerateRequest, _: Fields) -> ModelInput[GenerateRequest]:
    return ModelInput(replace(body, prompt=""), "prompt", texts=[body.prompt])


def _api_generate(body: ApiGenerateRequest, _: Fields) -> ModelInput[ApiGenerateRequest]:
    return ModelInput(replace(body, prompt=""), "prompt", texts=[body.prompt])


def _named_generate(body: NamedGenerateRequest, _: Fields) -> ModelInput[NamedGenerateRequest]:
    return ModelInput(replace(body, prompt=""), "prompt", texts=[body.prompt])


def _tokenize(body: TokenizeRequest, fields: Fields) -> ModelInput[TokenizeRequest]:
    body.check()
    if body.prompt is not None:
        special = body.add_special_tokens is not False
        return ModelInput(replace(body, prompt=""), "prompt", texts=[body.prompt], special_tokens=special)
    chat = body.chat(body.model or "")
    left = replace(body, messages=_NO_MESSAGES, chat_template_kwargs=None)
    return ModelInput(left, "messages", _chat_of(chat, fields["messages"]), special_tokens=chat.add_special_tokens)


def _detokenize(body: DetokenizeRequest, _: Fields) -> ModelInput[DetokenizeRequest]:
    return ModelInput(replace(body, tokens=[]), "tokens", texts=[body.tokens], special_names=True)


_NO_MESSAGES = [Message(role="user")]  # in place of those of a request
# The field that is the input of each kind, where there are two the longer one.
INPUTS: dict[type[Struct], str] = {
    ChatRequest: "messages",
    ResponsesRequest: "messages",
    CompletionRequest: "prompt",
    EmbeddingRequest: "input",
    EmbedRequest: "inputs",
    GenerateRequest: "prompt",
    ApiGenerateRequest: "prompt",
    NamedGenerateRequest: "prompt",
    TokenizeRequest: "prompt",
    DetokenizeRequest: "tokens",
}
KINDS: dict[type[Struct], Callable[[Any, Fields], ModelInput[Any]]] = {
    ChatRequest: _chat,
    ResponsesRequest: _responses,
    CompletionRequest: _completion,
    EmbeddingRequest: _embedding,
    EmbedRequest: _embed,
    GenerateRequest: _generate,
    ApiGenerateRequest: _api_generate,
    NamedGenerateRequest: _named_generate,
    TokenizeRequest: _tokenize,
    DetokenizeRequest: _detokenize,
}
