"""Requests, sequences and their results: pure data."""

from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import Final

from ..sampling import NEUTRAL, OF_LOGITS, SamplingValues

PENDING: Final = -1  # in an output: a token that the device has drawn and that the host has not read yet


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ERROR = "error"
    NON_FINITE = "non_finite"  # the model computed NaN or infinity: a fault of its weights, not of this server
    DEADLINE = "deadline"  # its timeout passed before it was complete
    INVALID = "invalid"  # its parameters contradict each other: the client has to change them
    LOST = "lost"  # this server cannot continue; another one can
    GRAMMAR = "grammar"  # its grammar cannot be used: the client has to change it
    CRASHED = "crashed"  # the engine process ended while it computed this request, perhaps because of it


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer must be. `kind`: json_schema, regex, choice (a JSON list of texts) or grammar (Lark or EBNF)."""

    kind: str
    text: str
    param: str = ""  # the request's field that it came with


_rules_of_logits = attrgetter(*OF_LOGITS)
_NO_RULES = tuple(NEUTRAL[name] for name in OF_LOGITS)


@dataclass(frozen=True, slots=True)
class SamplingParams(SamplingValues):
    """How tokens are chosen, with what no field of a request says as it is."""

    grammar: Grammar | None = None  # only tokens that it allows are chosen
    logprobs_of_allowed: bool = False  # only tokens that the grammar allows are alternatives

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def draws_only(self) -> bool:
        """Whether the model's logits serve only to draw a token: unedited, without log probabilities or a grammar."""
        return not self.edits_logits and self.logprobs < 0 and self.grammar is None

    @property
    def edits_logits(self) -> bool:
        """Whether anything but temperature and truncation changes the distribution."""
        return bool(_rules_of_logits(self) != _NO_RULES)

    def finish_after(self, token: int, tokens: int) -> FinishReason | None:
        """Why an answer of `tokens` tokens, of which `token` is the last one, ends; None when it goes on."""
        if token in self.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if tokens >= self.max_tokens else None


@dataclass(frozen=True, slots=True)
class Request:
    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams | None = None  # None: the answer is an embedding of the prompt
    priority: int = 0  # lower runs earlier
    resumed: tuple[int, ...] = ()  # output tokens that are already known: sampling continues after them
    tenant: str = ""  # the engine is fair between tenants, and only requests of one tenant share cached prefixes
    weight: float = 1.0  # of the tenant
    timeout_s: float | None = None  # from its arrival to its end
    adapter: str = ""  # digest of its adapter; empty: the model itself answers

    @property
    def known_tokens(self) -> int:
        """Tokens that are computed before the first new token is sampled."""
        return len(self.prompt) + len(self.resumed)

    @property
    def kv_tokens(self) -> int:
        """The most tokens that this request can hold in the KV cache. The last output token is never written to it."""
        return len(self.prompt) + self.sampling.max_tokens - 1 if self.sampling else 0


@dataclass(slots=True, eq=False)
class Sequence:
    """An admitted request and its progress."""

    request: Request
    arrival: int = 0
    deadline_s: float = float("inf")
    slot: int = -1  # -1: it waits, for the first time or after a preemption
    rank: int = 0  # priority class at its admission: its own, or a higher one after a long wait
    num_computed_tokens: int = 0  # tokens whose keys and values are in the cache
    num_charged_tokens: int = 0  # tokens that its tenant was charged for
    block_table: list[int] = field(default_factory=list)
    allocation: int = 0  # number of the block manager's allocation that `block_table` belongs to
    block_hashes: list[bytes] = field(default_factory=list)  # of its first full blocks
    num_cached_blocks: int = 0  # its first blocks that are in the prefix cache
    output: list[int] = field(default_factory=list)
    draw: bytes = b""  # its sampling parameters as kernels read them; set when its first token is drawn
    started: bool = False
    num_prompt_logprobs: int = 0  # prompt tokens whose log probabilities were returned; a preemption keeps them

    def __post_init__(self) -> None:
        self.output = self.output or list(self.request.resumed)

    @property
    def decoding(self) -> bool:
        """Whether all its tokens but the last one are computed: it then gets one token per step."""
        return 0 < self.num_computed_tokens == self.length - 1

    @property
    def needs_prompt_logprobs(self) -> bool:
        """Whether log probabilities of prompt tokens are missing: these tokens must be computed, cached or not."""
        sampling = self.request.sampling
        if sampling is None or sampling.prompt_logprobs < 0:
            return False
        return self.num_prompt_logprobs < len(self.request.prompt) - 1

    @property
    def length(self) -> int:
        return len(self.request.prompt) + len(self.output)

    @property
    def ends_by_length(self) -> bool:
        """Whether it has `max_tokens` output tokens, of which the last one may be PENDING."""
        return self.request.sampling is not None and len(self.output) >= self.request.sampling.max_tokens

    def tokens(self, start: int, end: int) -> list[int]:
        prompt = self.request.prompt
        if start >= len(prompt):
            return self.output[start - len(prompt) : end - len(prompt)]
        return [*prompt[start:end], *self.output[: max(0, end - len(prompt))]]


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """A sequence's share of a batch: the tokens [start, end), and whether its next token is sampled after them.

    `drafts`: the last of these tokens, which the sequence does not have yet. Each is kept if it is what is sampled
    after the tokens before it.
    """

    sequence: Sequence
    start: int
    end: int
    samples: bool
    drafts: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        return self.end - self.start

    @property
    def pairs(self) -> int:
        """How many pairs of tokens its attention computes: each token with itself and all before it."""
        return self.tokens * (self.start + self.end + 1) // 2

    @property
    def draws_only(self) -> bool:
        """Whether its step yields nothing for it, or only a drawn token: see `SamplingParams.draws_only`."""
        sampling = self.sequence.request.sampling
        if sampling is None or self.drafts or self.prompt_logprob_positions:
            return False
        return not self.samples or sampling.draws_only

    @property
    def ids(self) -> list[int]:
        """Its tokens."""
        return [*self.sequence.tokens(self.start, self.end - len(self.drafts)), *self.drafts]

    @property
    def sampled_positions(self) -> range:
        """Positions whose logits a token is sampled from: its last one, and one more for each draft."""
        return range(self.end - 1 - len(self.drafts), self.end) if self.samples else range(0)

    @property
    def sampled_sequences(self) -> list[Sequence]:
        """The sequence as it is at each of `sampled_positions`: with the drafts before it."""
        sequence = self.sequence
        drafted = (
            Sequence(sequence.request, output=[*sequence.output, *self.drafts[: at + 1]], draw=sequence.draw)
            for at in range(len(self.drafts))
        )
        return [sequence, *drafted]

    def with_drafts(self, drafts: tuple[int, ...]) -> "ScheduledSequence":
        """The same with these drafts in place of its own."""
        if not self.drafts:
            return self
        end = self.end - len(self.drafts) + len(drafts)
        return ScheduledSequence(self.sequence, self.start, end, self.samples, drafts)

    @property
    def first_half(self) -> "ScheduledSequence":
        """The first half of its tokens, without sampling; a later step computes the others. Or all but the drafts."""
        if self.drafts:
            return ScheduledSequence(self.sequence, self.start, self.end - len(self.drafts), samples=self.samples)
        return ScheduledSequence(self.sequence, self.start, self.start + self.tokens // 2, samples=False)

    @property
    def prompt_logprob_positions(self) -> range:
        """Positions whose logits give the log probability of the prompt token after them."""
        sequence = self.sequence
        if not sequence.needs_prompt_logprobs:
            return range(0)
        return range(max(self.start, sequence.num_prompt_logprobs), min(self.end, len(sequence.request.prompt) - 1))


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Token ids with their log probabilities: the chosen one, then the likeliest; and the chosen one's rank from 1."""

    tokens: tuple[int, ...]
    values: tuple[float, ...]
    rank: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a step computed for one sequence: a token or an embedding; neither when the numbers were not finite.

    `no_token_allowed`: the request's own rules forbid every token. `late`: its grammar's mask came too late, so that it
    has no token in this step. `refusal`: why its grammar cannot be followed. `following`: what came after this token
    and after each of these, where tokens were drafted. `spoiled`: numbers of its drafts were not finite, and might have
    changed its own: it has no token in this step.
    """

    token: int | None = None
    embedding: bytes | None = None
    logprobs: Logprobs | None = None
    prompt_logprobs: tuple[Logprobs, ...] = ()  # of the prompt tokens after `prompt_logprob_positions`
    no_token_allowed: bool = False
    late: bool = False
    refusal: str = ""
    following: tuple["Sampled", ...] = ()
    spoiled: bool = False


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A step's result for one request: a token, an embedding (float32 bytes), its end, or several of these."""

    id: str
    token: int | None = None
    embedding: bytes | None = None
    finish: FinishReason | None = None
    error: str | None = None
    logprobs: Logprobs | None = None
    prompt_logprobs: tuple[Logprobs, ...] = ()
    cached_tokens: int = 0  # prompt tokens that the prefix cache held; only in the event that `starts`
    accepted: int = 0  # 1 for a token that was drafted
    # Tokens that were drafted in its place and after it, in a step's first event; each later one that is kept takes
    # itself off again: -1.
    rejected: int = 0

    @property
    def starts(self) -> bool:
        """Whether the event only marks that the request was scheduled for the first time."""
        return (self.token, self.embedding, self.finish, self.prompt_logprobs) == (None, None, None, ())
