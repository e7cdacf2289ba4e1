"""What is asked of the engine and how it ends: pure data."""

from dataclasses import dataclass, field
from enum import StrEnum


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ERROR = "error"
    NON_FINITE = "non_finite"  # the model computed no numbers: a matter of its weights, not of this server
    DEADLINE = "deadline"  # its time was over before its end
    INVALID = "invalid"  # what was asked for cannot be done: the client's to change
    LOST = "lost"  # this server cannot go on; another one could
    CRASHED = "crashed"  # the engine process ended while it computed this: perhaps because of it


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen. Names and meanings are vLLM's."""

    max_tokens: int
    temperature: float = 1.0  # 0: greedy; between 0 and 0.01 it is 0.01, as in vLLM
    top_p: float = 1.0
    top_k: int = 0  # 0: all of the vocabulary
    min_p: float = 0.0  # of the likeliest token's probability
    seed: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0  # over the prompt too
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()  # empty: all
    bad_words: tuple[tuple[int, ...], ...] = ()  # token sequences that must not be completed
    min_tokens: int = 0  # before which no stop token is chosen
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int = -1  # alternatives told for each token; -1: not even the token's own
    prompt_logprobs: int = -1

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def edits_logits(self) -> bool:
        """Whether anything but temperature and truncation changes the distribution."""
        return bool(
            self.frequency_penalty
            or self.presence_penalty
            or self.repetition_penalty != 1.0
            or self.logit_bias
            or self.allowed_token_ids
            or self.bad_words
            or self.min_tokens
        )

    def finish_after(self, token: int, tokens: int) -> FinishReason | None:
        """Whether an answer of so many tokens ends with this one."""
        if token in self.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if tokens >= self.max_tokens else None


@dataclass(frozen=True, slots=True)
class Request:
    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams | None = None  # None: the answer is an embedding of the prompt
    priority: int = 0  # lower runs earlier
    resumed: tuple[int, ...] = ()  # tokens of the answer that are there already: the first one sampled comes after them
    tenant: str = ""  # between whom the engine is fair, and whose prompts share a cache
    weight: float = 1.0  # of the tenant
    timeout_s: float | None = None  # from its arrival to its end

    @property
    def known_tokens(self) -> int:
        """What goes through the model before the first new token."""
        return len(self.prompt) + len(self.resumed)

    @property
    def kv_tokens(self) -> int:
        """The most tokens that this request can ever keep in the KV cache; the last one of an answer is not put in."""
        return len(self.prompt) + self.sampling.max_tokens - 1 if self.sampling else 0


@dataclass(slots=True, eq=False)
class Sequence:
    """A request that was admitted, and how far it has come."""

    request: Request
    arrival: int = 0
    deadline_s: float = float("inf")
    slot: int = -1  # -1: it waits, for the first time or again
    rank: int = 0  # class of priority that it was admitted with: its own, or a higher one after a long wait
    computed: int = 0  # tokens whose keys and values are in the cache
    charged: int = 0  # tokens that its tenant has paid for
    cached: int = 0  # prompt tokens that the prefix cache spared, at its first admission
    blocks: list[int] = field(default_factory=list)
    digests: list[bytes] = field(
        default_factory=list
    )  # of its full blocks, as far as they were asked for: text only grows
    named: int = 0  # of its blocks: those that have a digest as their name, or share the block that has
    output: list[int] = field(default_factory=list)
    started: bool = False
    told: int = 0  # prompt tokens after the first one whose probabilities were told: once, whatever starts over

    def __post_init__(self) -> None:
        self.output = self.output or list(self.request.resumed)

    @property
    def decoding(self) -> bool:
        """All but its last token went through the model."""
        return 0 < self.computed == self.length - 1

    @property
    def tells_prompt(self) -> bool:
        """Whether there are prompt tokens left to tell with their probabilities: these must go through the model."""
        sampling = self.request.sampling
        return sampling is not None and sampling.prompt_logprobs >= 0 and self.told < len(self.request.prompt) - 1

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

    @property
    def tokens(self) -> int:
        return self.end - self.start

    @property
    def prompt_rows(self) -> range:
        """Positions after which a prompt token is to be told with its probability."""
        sequence = self.sequence
        if not sequence.tells_prompt:
            return range(0)
        return range(max(self.start, sequence.told), min(self.end, len(sequence.request.prompt) - 1))


# Token ids with their log probabilities, the chosen one first, then the likeliest; and the chosen one's rank from 1.
@dataclass(frozen=True, slots=True)
class Logprobs:
    tokens: tuple[int, ...]
    values: tuple[float, ...]
    rank: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a step computed for one work: a token, an embedding, or neither: then the numbers were not finite.

    `stuck`: the request's own rules allow no token at all.
    """

    token: int | None = None
    embedding: bytes | None = None
    logprobs: Logprobs | None = None
    prompt_logprobs: tuple[Logprobs, ...] = ()  # of the prompt token after each of `Work.prompt_rows`
    stuck: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """What a step did for one request: a token, an embedding (float32 bytes), an end, or several of these."""

    id: str
    token: int | None = None
    embedding: bytes | None = None
    finish: FinishReason | None = None
    error: str | None = None
    logprobs: Logprobs | None = None
    prompt_logprobs: tuple[Logprobs, ...] = ()

    @property
    def starts(self) -> bool:
        """Nothing but that it runs from now on."""
        return (self.token, self.embedding, self.finish, self.prompt_logprobs) == (None, None, None, ())
