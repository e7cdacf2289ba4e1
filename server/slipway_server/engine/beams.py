"""Beam search over the log probabilities of ordinary requests: which sequences to extend, and when to end.

Pure. The rules are those of transformers' `generate(num_beams=width)`, so that the answers are the same.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import nlargest
from operator import itemgetter
from typing import Literal

from .request import FinishReason, Logprobs

EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True, slots=True)
class Beam:
    """The tokens of an answer, or of its beginning, and the sum of their log probabilities."""

    tokens: tuple[int, ...] = ()
    total: float = 0.0
    finish: FinishReason | None = None

    def score(self, length_penalty: float) -> float:
        """The score by which answers of different lengths compare. A `length_penalty` above 0 favours long answers."""
        return self.total / float(len(self.tokens) ** length_penalty)


@dataclass(frozen=True, slots=True)
class BeamRules:
    """The rules of a search for `width` answers.

    `early_stopping`: once there are `width` answers, True ends the search at once, False when better ones are unlikely,
    "never" when they are impossible.
    """

    width: int
    max_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False

    @property
    def alternatives(self) -> int:
        """How many of the likeliest tokens each beam needs: enough remain if all stop tokens are among them."""
        return max(2, 1 + len(self.stop_token_ids)) * self.width


@dataclass(slots=True)
class BeamSearch:
    rules: BeamRules
    running: list[Beam] = field(default_factory=lambda: [Beam()])  # to be extended next, the likeliest first
    answers: list[Beam] = field(default_factory=list)  # at most `width`, the best one first
    done: bool = False

    def advance(self, logprobs: Iterable[Logprobs]) -> None:
        """Extends the beams by one token. `logprobs`: the `alternatives` likeliest tokens after each of `running`."""
        extensions = (
            (beam.total + value, beam, token)
            for beam, after in zip(self.running, logprobs, strict=True)
            for token, value in zip(after.tokens[1:], after.values[1:], strict=True)
        )
        width = self.rules.width
        running: list[Beam] = []
        ended: list[Beam] = []
        for rank, (total, beam, token) in enumerate(nlargest(self.rules.alternatives, extensions, key=itemgetter(0))):
            finish = self._finish(beam, token)
            # Candidates after the first `width` replace those that end. They must not end an answer themselves.
            if finish and rank < width:
                ended.append(Beam((*beam.tokens, token), total, finish))
            elif not finish and len(running) < width:
                running.append(Beam((*beam.tokens, token), total))
        self.answers = sorted(self.answers + ended, key=self._score, reverse=True)[:width]
        self.running = running
        self.done = not running or self._enough()

    def _finish(self, beam: Beam, token: int) -> FinishReason | None:
        if token in self.rules.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(beam.tokens) + 1 >= self.rules.max_tokens else None

    def _score(self, beam: Beam) -> float:
        return beam.score(self.rules.length_penalty)

    def _enough(self) -> bool:
        """Whether there are `width` answers, and by `early_stopping` the likeliest beam cannot displace one of them."""
        rules, best = self.rules, self.running[0]
        if len(self.answers) < rules.width:
            return False
        if rules.early_stopping is True:
            return True
        longest = rules.early_stopping == "never" and rules.length_penalty > 0.0
        length = rules.max_tokens if longest else len(best.tokens)
        return best.total / float(length**rules.length_penalty) <= self._score(self.answers[-1])
