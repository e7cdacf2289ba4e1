"""How many tokens a step may take, so that the time between two tokens of an answer stays within its target."""

from dataclasses import dataclass, field

from .step_fit import StepFit

# Up to this many requests in the server, a decoding step takes `decode_s`. With more requests, steps get longer: the
# fixed cost of a step is spread over more tokens, and the requests wait less for their first tokens.
FEW_REQUESTS = 8
# Of the steps with answers, this share shall stay within their target, whatever slows the machine down for moments.
ON_TIME = 0.98
SLOWNESS, SLOWNESS_STEP = 1.25, 0.05  # before the first step; how fast it is corrected
MOST_SLOWNESS = 2.0  # a machine with long pauses gets no shorter steps than this: its prompts would never end


@dataclass(frozen=True, slots=True)
class StepTimes:
    """How long a step may take."""

    prefill_s: float  # while no answer waits for its next token, on average; 0: no limit
    decode_s: float  # while answers wait for their next token, with up to FEW_REQUESTS requests: ON_TIME of the steps

    def target_s(self, decodes: int, requests: int) -> float:
        """The target of a step with `decodes` answers while `requests` requests run or wait; 0: no limit."""
        if not decodes:
            return self.prefill_s
        return min(self.prefill_s, self.decode_s * max(1.0, requests / FEW_REQUESTS))


CPU_TIMES, GPU_TIMES = StepTimes(0.4, 0.18), StepTimes(0.05, 0.05)  # where settings name none


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
    # How many times its estimate a step takes, exceeded by 1 - ON_TIME of them: 1.05 on a quiet machine, 1.5 on others.
    _slowness: float = SLOWNESS

    def tokens(self, load: StepLoad) -> int:
        """The tokens of the next step, its decodes among them; at most `most`."""
        target_s, least = self.times.target_s(load.decodes, load.requests), load.decodes + self.least
        most = max(self.least, self.most - self._shrunk)
        if target_s == 0.0:
            return most
        cost = self._fit.cost()
        if cost is None:
            return min(most, 4 * least)
        if load.decodes:
            target_s /= self._slowness
        decoding_s = cost.seconds(load.decodes, load.decode_context)
        fitting = load.decodes + cost.tokens_within(target_s - decoding_s, load.prefill_context)
        return int(min(most, max(least, fitting)))

    def shrink(self, tokens: int) -> None:
        """Limits the next step to `tokens`, as more did not fit in memory. Each later step may have one more."""
        self._shrunk = max(self._shrunk, self.most - tokens)

    def observe(self, tokens: int, pairs: int, seconds: float) -> None:
        """Adds a measured step to the fit; `pairs` as in StepCost. Steps without a prefill count, too."""
        self._shrunk = max(0, self._shrunk - 1)
        cost = self._fit.cost()
        # After a change of load, the fit may estimate no time at all for a small step.
        if cost and (estimate_s := cost.seconds(tokens, pairs)) > 0.0:
            late = seconds > self._slowness * estimate_s
            # Up and down balance where 1 - ON_TIME of the steps are late (a Robbins-Monro estimate of the quantile).
            slowness = self._slowness + SLOWNESS_STEP * (late - (1.0 - ON_TIME))
            self._slowness = min(MOST_SLOWNESS, max(1.0, slowness))
        self._fit.observe(tokens, pairs, seconds)
