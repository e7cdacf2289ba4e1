"""What crosses between the process that serves and one that reads: messages in msgpack behind their sizes."""

import struct
from array import array
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from slipway_process.serving.errors import Refusal

from ...text.chat import Chat
from ...text.template_source import TemplateSource
from ..requests.prompt import Prompt, PromptLimits

SIZE: Final = struct.Struct(">Q")
MAX_MESSAGE_BYTES: Final = 256 << 20
TOO_MUCH: Final = "prompt_memory"  # code of the error for what needs more memory than it may take
MAX_TEXT_BYTES: Final = 512 << 10  # of a prompt that is tokenized where requests are served


class Begin(Struct, frozen=True, tag=True):
    """To the child: the model, and what it may take. `folder`: of tokenizer.json; "" for one that only renders.

    `niceness`: one that reads large bodies leaves the cores to streams where these need them.
    """

    model: str
    template: TemplateSource
    folder: str
    memory_bytes: int
    niceness: int
    log_level: str


class RenderChat(Struct, frozen=True, tag=True):
    """To the child: a small chat. The answer is Rendered."""

    chat: Chat


class ReadBody(Struct, frozen=True, tag=True):
    """To the child: a whole body. `kind`: the name of its type. `names`: what its `model` may be.

    The answer is BodyRead.
    """

    kind: str
    body: bytes
    limits: PromptLimits
    names: frozenset[str]


class Ready(Struct, frozen=True, tag=True):
    """From the child: it has loaded the tokenizer, where it needs one, and takes jobs."""


class Rendered(Struct, frozen=True, tag=True):
    """From the child: the prompt of a chat; None for one of more than MAX_TEXT_BYTES."""

    text: str | None


class PromptData(Struct, frozen=True, array_like=True):
    text: str
    tokens: bytes

    @classmethod
    def of(cls, prompt: Prompt) -> "PromptData":
        return cls(prompt.text, array("I", prompt.tokens).tobytes())

    @property
    def prompt(self) -> Prompt:
        tokens = array("I")
        tokens.frombytes(self.tokens)
        return Prompt(self.text, tuple(tokens))


class BodyRead(Struct, frozen=True, tag=True):
    """From the child: what is left of the body, in msgpack, and the prompts that were in it."""

    body: bytes
    prompts: list[PromptData]


Job = RenderChat | ReadBody
ToChild = Begin | RenderChat | ReadBody
FromChild = Ready | Rendered | BodyRead | Refusal

to_child: Final[msgspec.msgpack.Decoder[ToChild]] = msgspec.msgpack.Decoder(ToChild)
from_child: Final[msgspec.msgpack.Decoder[FromChild]] = msgspec.msgpack.Decoder(FromChild)
_encoder: Final = msgspec.msgpack.Encoder()


def encode(message: ToChild | FromChild) -> Sequence[bytes]:
    data = _encoder.encode(message)
    return SIZE.pack(len(data)), data


def too_much(memory_bytes: int) -> str:
    return f"This request needs more than the {memory_bytes >> 20} MiB of memory that one may take: make it smaller."
