"""What is asked of the engine and how it ends: pure data."""

from dataclasses import dataclass, field
from enum import StrEnum


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ERROR = "error"
    LOST = "lost"  # this server cannot go on; another one could


@dataclass(frozen=True, slots=True)
class SamplingParams:
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all of the vocabulary
    seed: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    stop_token_ids: tuple[int, ...] = ()

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def finish_after(self, token: int, tokens: int) -> FinishReason | None:
        """Whether an answer of so many tokens ends with this one."""
        if token in self.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if tokens >= self.max_tokens else None

    @property
    def penalised(self) -> bool:
        return self.frequency_penalty != 0.0 or self.presence_penalty != 0.0


@dataclass(frozen=True, slots=True)
class Request:
    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams | None = None  # None: the answer is an embedding of the prompt
    priority: int = 0  # lower runs earlier
    resumed: tuple[int, ...] = ()  # tokens of the answer that are there already: the first one sampled comes after them

    @property
    def known_tokens(self) -> int:
        """What goes through the model before the first new token."""
        return len(self.prompt) + len(self.resumed)

    @property
    def kv_tokens(self) -> int:
        """The most tokens that this request can ever keep in the KV cache."""
        return len(self.prompt) + self.sampling.max_tokens if self.sampling else 0


@dataclass(slots=True)
class Sequence:
    """A request that holds a slot, and how far it has come."""

    request: Request
    slot: int
    computed: int = 0  # tokens whose keys and values are in the cache
    output: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.output = self.output or list(self.request.resumed)

    @property
    def decoding(self) -> bool:
        """All but its last token went through the model."""
        return 0 < self.computed == self.length - 1

    @property
    def length(self) -> int:
        return len(self.request.prompt) + len(self.output)

    def tokens(self, start: int, end: int) -> list[int]:
        prompt = self.request.prompt
        if start >= len(prompt):
            return self.output[start - len(prompt) : end - len(prompt)]
        return [*prompt[start:end], *self.output[: max(0, end - len(prompt))]]


@dataclass(frozen=True, slots=True)
class Work:
    """One sequence's share of a step: the tokens [start, end), and whether its next token is sampled after them."""

    sequence: Sequence
    start: int
    end: int
    samples: bool


@dataclass(frozen=True, slots=True)
class Event:
    """What a step did for one request: a token, an embedding (float32 bytes), an end, or several of these."""

    id: str
    token: int | None = None
    embedding: bytes | None = None
    finish: FinishReason | None = None
    error: str | None = None
