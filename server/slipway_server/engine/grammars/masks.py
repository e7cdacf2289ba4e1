"""Masks of sequences with grammars: the grammar process computes them beside the model, and the sampler reads them.

At every step, the number of tokens that a sequence's matcher has consumed is compared with the sequence's output. So
preemptions, repeated steps, answers resumed from another pod and a new grammar process need no special handling.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy
from numpy.typing import NDArray

from ..request import FinishReason, Grammar, Request, RequestOutput, ScheduledSequence, Sequence
from .client import GrammarProcess, GrammarsGone
from .messages import (
    SEQUENCES_PER_ADVANCE,
    TOKENS_PER_ADVANCE,
    Advance,
    Advances,
    Drop,
    FromGrammars,
    Hello,
    Masked,
    Prepare,
    Prepared,
    digest_of,
)

# How long a step waits for late masks: the first value when it can sample other sequences, else the second one. A
# sequence whose mask comes still later gets no token in this step.
PATIENCE_S, IDLE_PATIENCE_S = 0.02, 0.25
# A sequence whose last mask took longer comes after the others, and a step that can sample others does not wait for it.
SLOW_S = 0.003
PREPARE_S = 60.0  # for a grammar to be compiled, including the start of the process
MAX_KNOWN = 1024  # grammars that are remembered as compiled: new requests with them do not wait
TOO_COMPLEX = "The grammar took too much to be followed: make it smaller."
NO_ANSWER = "The process that computes grammars did not answer."


@dataclass(slots=True)
class _Followed:
    """What the engine knows of a sequence with a grammar."""

    number: int
    grammar: Grammar
    digest: bytes
    row: int
    sent: int = 0  # output tokens that the process has been sent
    ready: int = -1  # the mask in `row` is for the token after this many output tokens; -1: there is no mask
    awaited: int = -1  # the same of the mask that is being computed; -1: none is
    slow: bool = False
    refusal: str = ""


@dataclass(slots=True)
class _Held:
    """Requests that wait for their grammar to be compiled."""

    grammar: Grammar
    since_s: float
    requests: list[Request] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Mask:
    """`row` has a bit for each token that may come next; or `refusal` is why the sequence ends.

    With neither (-1 and ""), the mask is late and the sequence gets no token in this step.
    """

    row: int = -1
    refusal: str = ""


class Masks:
    def __init__(self, process: GrammarProcess, rows: int) -> None:
        """`rows`: of the process's masks, at least twice the scheduler's slots.

        A preempted sequence keeps its row until another sequence needs it.
        """
        self._process = process
        self._free_rows = list(range(rows))
        self._retired: dict[int, int] = {}  # rows of sequences that are gone, whose masks are still being computed
        self._followed: dict[str, _Followed] = {}
        self._by_number: dict[int, _Followed] = {}
        self._held: dict[bytes, _Held] = {}
        self._known: dict[bytes, None] = {}
        self._prepared: list[Request] = []
        self._refused: list[RequestOutput] = []
        self._numbers = 0
        self._unavailable = ""

    def fileno(self) -> int:
        """The descriptor that is readable when `take_prepared` may return something."""
        return self._process.fileno()

    def stop(self) -> None:
        self._process.stop()

    # --- requests -----------------------------------------------------------------------------------------------------

    def hold(self, request: Request, grammar: Grammar) -> None:
        """Holds the request until its grammar is compiled; `take_prepared` returns it then."""
        digest = digest_of(grammar)
        if self._unavailable:
            self._refuse([request], self._unavailable)
        elif digest in self._known:
            self._prepared.append(request)
        elif digest in self._held:
            self._held[digest].requests.append(request)
        else:
            self._held[digest] = _Held(grammar, time.monotonic(), [request])
            self._request_grammar(digest, grammar)

    def take_prepared(self) -> tuple[list[Request], list[RequestOutput]]:
        """Requests whose grammar is compiled, and final outputs for requests that cannot run; each only once."""
        if self._process.started:
            self._receive(0.0)
            self._give_up(time.monotonic())
        prepared, self._prepared = self._prepared, []
        refused, self._refused = self._refused, []
        return prepared, refused

    def forget(self, request_id: str) -> None:
        """Drops what is kept for a request that has ended, and frees its row."""
        for held in self._held.values():
            held.requests = [request for request in held.requests if request.id != request_id]
        self._prepared = [request for request in self._prepared if request.id != request_id]
        if followed := self._followed.pop(request_id, None):
            self._release(followed)

    def _request_grammar(self, digest: bytes, grammar: Grammar) -> None:
        if not self._process.started:
            self._process.start()
        if self._process.serves:
            self._process.send(Prepare(self._process.generation, digest, grammar.kind, grammar.text))

    def _refuse(self, requests: Iterable[Request], reason: str, finish: FinishReason = FinishReason.GRAMMAR) -> None:
        self._refused += [RequestOutput(request.id, finish=finish, error=reason) for request in requests]

    def _give_up(self, now_s: float) -> None:
        for digest in [digest for digest, held in self._held.items() if now_s - held.since_s > PREPARE_S]:
            self._refuse(self._held.pop(digest).requests, NO_ANSWER, FinishReason.ERROR)

    # --- a step -------------------------------------------------------------------------------------------------------

    @property
    def bits(self) -> NDArray[numpy.int32]:
        """The masks [rows, words of 32 tokens]. The row that a `Mask` names is valid until the next `begin`."""
        return self._process.bits

    def begin(self, batch: Iterable[ScheduledSequence]) -> None:
        """Has the grammar process compute the next masks of these sequences, and returns at once.

        Called after sampling, so that masks are computed while the engine prepares its next step; and before a step,
        for sequences that join or start over.
        """
        needed = [(item.sequence, grammar) for item in batch if (grammar := grammar_of(item))]
        if not needed:
            return
        running = {sequence.request.id for sequence, _ in needed}
        followed = [(self._follow(sequence, grammar, running), sequence) for sequence, grammar in needed]
        advances: list[Advance] = []
        for one, sequence in sorted(followed, key=lambda pair: pair[0].slow):
            advances += self._advance(one, sequence)
        self._send(advances)

    def _send(self, advances: list[Advance]) -> None:
        """Sends the advances in as few messages as the limits allow."""
        together: list[Advance] = []
        tokens = 0
        for one in advances:
            if tokens + len(one.tokens) > TOKENS_PER_ADVANCE or len(together) == SEQUENCES_PER_ADVANCE:
                self._process.send(Advances(self._process.generation, together))
                together, tokens = [], 0
            together.append(one)
            tokens += len(one.tokens)
        if together:
            self._process.send(Advances(self._process.generation, together))

    def collect(self, batch: Iterable[ScheduledSequence]) -> dict[str, Mask]:
        """The masks of this step by request ID. Waits for late ones; `Mask()` stands for one that is still missing."""
        needed = {item.sequence.request.id: item.sequence for item in batch if grammar_of(item)}
        if not needed:
            return {}
        others = any(item.samples and not grammar_of(item) for item in batch)
        self._wait_for([self._followed[name] for name in needed], others=others)
        return {name: self._mask(self._followed[name], sequence) for name, sequence in needed.items()}

    def _follow(self, sequence: Sequence, grammar: Grammar, running: set[str]) -> _Followed:
        name = sequence.request.id
        if name not in self._followed:
            if not self._free_rows:
                self._make_room(running)
            self._numbers += 1
            one = _Followed(self._numbers, grammar, digest_of(grammar), self._free_rows.pop())
            self._followed[name] = self._by_number[one.number] = one
        return self._followed[name]

    def _make_room(self, running: set[str]) -> None:
        """Frees the rows of sequences that are not in this step; their matchers start over later."""
        for name in [name for name in self._followed if name not in running]:
            self._release(self._followed.pop(name))
        while not self._free_rows:  # masks for sequences that are gone are still computed in all rows
            self._receive(IDLE_PATIENCE_S)

    def _advance(self, one: _Followed, sequence: Sequence) -> list[Advance]:
        """What the process must be sent to compute the mask of the sequence's next token; [] if it needs nothing."""
        length = len(sequence.output)
        if one.refusal or one.ready == length or one.awaited >= 0 or not self._process.serves:
            return []
        if one.sent > length:
            one.sent = 0  # never in practice: tokens are not taken back
        one.awaited, one.ready = length, -1
        starts = range(one.sent, max(length, one.sent + 1), TOKENS_PER_ADVANCE)
        one.sent = length
        return [
            Advance(one.number, one.digest, one.row, start, sequence.output[start:end], mask=end >= length)
            for start, end in ((start, start + TOKENS_PER_ADVANCE) for start in starts)
        ]

    def _wait_for(self, needed: list[_Followed], *, others: bool) -> None:
        def late() -> list[_Followed]:
            return [one for one in needed if one.awaited >= 0 and not one.refusal]

        began_s = time.monotonic()
        while waiting := late():
            rest = others or len(waiting) < len(needed)
            patience_s = PATIENCE_S if rest else IDLE_PATIENCE_S
            left_s = began_s + patience_s - time.monotonic()
            if left_s <= 0 or (rest and all(one.slow for one in waiting)):
                self._receive(0.0)
                return
            self._receive(left_s)

    def _mask(self, one: _Followed, sequence: Sequence) -> Mask:
        if one.refusal:
            return Mask(refusal=one.refusal)
        if one.ready != len(sequence.output):
            return Mask()
        return Mask(one.row)

    # --- what the process says ----------------------------------------------------------------------------------------

    def _receive(self, timeout_s: float) -> None:
        try:
            messages = self._process.receive(timeout_s)
        except GrammarsGone:
            self._end_all(NO_ANSWER)
            return
        for message in messages:
            self._apply(message)

    def _apply(self, message: FromGrammars) -> None:
        if isinstance(message, Hello):
            self._begin_again(message)
        elif isinstance(message, Prepared):
            self._grammar_prepared(message)
        else:
            for one in message.sequences:
                self._masked(one)

    def _begin_again(self, hello: Hello) -> None:
        """Sends a new process the grammars again; `begin` then sends the tokens. The culprit's sequence is refused."""
        if hello.refusal:
            self._end_all(hello.refusal)
            return
        self._known.clear()
        self._free_rows += self._retired.values()
        self._retired.clear()
        for one in self._followed.values():
            one.sent, one.ready, one.awaited = 0, -1, -1
            if one.number == hello.culprit:
                one.refusal = TOO_COMPLEX
            else:
                self._request_grammar(one.digest, one.grammar)
        for digest, held in self._held.items():
            self._request_grammar(digest, held.grammar)

    def _end_all(self, reason: str) -> None:
        self._unavailable = reason
        for held in self._held.values():
            self._refuse(held.requests, reason)
        self._held.clear()
        # No process is left that computes masks in these rows.
        self._free_rows += self._retired.values()
        self._retired.clear()
        for one in self._followed.values():
            one.refusal, one.awaited = reason, -1

    def _grammar_prepared(self, message: Prepared) -> None:
        held = self._held.pop(message.digest, None)
        if message.refusal:
            self._known.pop(message.digest, None)
            self._refuse(held.requests if held else [], message.refusal)
            return
        self._known[message.digest] = None
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._prepared += held.requests if held else []

    def _masked(self, message: Masked) -> None:
        if (row := self._retired.pop(message.sequence, None)) is not None:
            self._free_rows.append(row)
            return
        one = self._by_number.get(message.sequence)
        if one is None or one.awaited < 0:
            return
        one.awaited, one.slow, one.refusal = -1, message.seconds > SLOW_S, message.refusal
        if message.missing:
            # The process has evicted the grammar: it is compiled again, and the sequence starts over.
            one.sent = 0
            self._known.pop(one.digest, None)
            self._request_grammar(one.digest, one.grammar)
        elif not message.refusal:
            one.ready = message.position

    def _release(self, one: _Followed) -> None:
        del self._by_number[one.number]
        if one.awaited >= 0:
            self._retired[one.number] = one.row
        else:
            self._free_rows.append(one.row)
        if self._process.serves:
            self._process.send(Drop(self._process.generation, [one.number]))


def grammar_of(scheduled: ScheduledSequence) -> Grammar | None:
    """The grammar of a sequence that gets a token in this step; None without a grammar or without a token."""
    sampling = scheduled.sequence.request.sampling
    return sampling.grammar if scheduled.samples and sampling else None
