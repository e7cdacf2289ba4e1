"""How many tokens a step may take, so that the time between two tokens of an answer stays within its target."""

from dataclasses import dataclass, field

from .step_fit import StepFit

# Up to this many requests in the server, a decoding step takes `decode_s`. With more requests, steps get longer: the
# fixed cost of a step is spread over more tokens, and the requests wait less for their first tokens.
FEW_REQUESTS = 8


@dataclass(frozen=True, slots=True)
class StepTimes:
    """How long a step may take."""

    prefill_s: float  # while no answer waits for its next token; 0: no limit
    decode_s: float  # while answers wait for their next token, with up to FEW_REQUESTS requests

    def target_s(self, decodes: int, requests: int) -> float:
        """The target of a step with `decodes` answers while `requests` requests run or wait; 0: no limit."""
        if not decodes:
            return self.prefill_s
        return min(self.prefill_s, self.decode_s * max(1.0, requests / FEW_REQUESTS))


CPU_TIMES, GPU_TIMES = StepTimes(0.4, 0.135), StepTimes(0.05, 0.05)  # where settings name none


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What the next step is made of.

    decodes: answers that it should be short for, and that take a token each.
    requests: that run or wait.
    decode_context: tokens that the decodes attend to, all together.
    prefill_context: computed tokens of the running prefill that has the most. Which prompts get the step's tokens is
        not known yet.
    """

    decodes: int = 0
    requests: int = 0
    decode_context: int = 0
    prefill_context: int = 0


@dataclass(slots=True)
class TokenBudget:
    """Solves for the tokens of a step that takes its target time, by a fit to the steps before."""

    least: int  # prompt tokens beside the decodes of a step: prompts progress, however slow the machine is
    most: int
    times: StepTimes
    _shrunk: int = 0  # how many tokens fewer than `most` a step has memory for
    _fit: StepFit = field(default_factory=StepFit)

    def tokens(self, load: StepLoad) -> int:
        """The tokens of the next step, its decodes among them; at most `most`."""
        target_s, least = self.times.target_s(load.decodes, load.requests), load.decodes + self.least
        most = max(self.least, self.most - self._shrunk)
        if target_s == 0.0:
            return most
        cost = self._fit.cost()
        if cost is None:
            return min(most, 4 * least)
        decoding_s = cost.fixed + cost.each * load.decodes + cost.pair * load.decode_context
        fitting = load.decodes + cost.tokens_within(target_s - decoding_s, load.prefill_context)
        return int(min(most, max(least, fitting)))

    def shrink(self, tokens: int) -> None:
        """Limits the next step to `tokens`, as more did not fit in memory. Each later step may have one more."""
        self._shrunk = max(self._shrunk, self.most - tokens)

    def observe(self, tokens: int, pairs: int, seconds: float) -> None:
        """Adds a measured step to the fit; `pairs` as in StepCost. Steps without a prefill count, too."""
        self._shrunk = max(0, self._shrunk - 1)
        self._fit.observe(tokens, pairs, seconds)
