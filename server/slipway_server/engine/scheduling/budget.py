"""How many tokens a step may take, so that the time between two tokens of an answer stays within its target."""

from dataclasses import dataclass

# Up to this many requests in the server, a decoding step takes `decode_s`. With more requests, steps get longer: the
# fixed cost of a step is spread over more tokens, and the requests wait less for their first tokens.
FEW_REQUESTS = 8
# Factor of older measurements at each new one: the fit follows a change of load within some tens of steps.
FADE = 0.95


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


@dataclass(slots=True)
class TokenBudget:
    """Fits seconds = a + b * tokens to recent steps and solves for the tokens of a step that takes its target time."""

    least: int  # prompt tokens beside the decodes of a step: prompts progress, however slow the machine is
    most: int
    times: StepTimes
    _shrunk: int = 0  # how many tokens fewer than `most` a step has memory for
    _weight: float = 0.0
    _tokens: float = 0.0
    _seconds: float = 0.0
    _tokens_squared: float = 0.0
    _tokens_seconds: float = 0.0

    def tokens(self, decodes: int = 0, requests: int = 0) -> int:
        """The tokens of the next step, at most `most`. It has `decodes` answers; `requests` requests run or wait."""
        target_s, least = self.times.target_s(decodes, requests), decodes + self.least
        most = max(self.least, self.most - self._shrunk)
        if target_s == 0.0:
            return most
        if self._weight == 0.0:
            return min(most, 4 * least)
        mean_tokens, mean_seconds = self._tokens / self._weight, self._seconds / self._weight
        variance = self._tokens_squared / self._weight - mean_tokens**2
        covariance = self._tokens_seconds / self._weight - mean_tokens * mean_seconds
        # Steps of equal size do not determine the slope: time is then assumed proportional to tokens.
        slope = covariance / variance if variance > 1.0 and covariance > 0.0 else mean_seconds / mean_tokens
        fitting = mean_tokens + (target_s - mean_seconds) / max(slope, 1e-9)
        return int(min(most, max(least, fitting)))

    def shrink(self, tokens: int) -> None:
        """Limits the next step to `tokens`, as more did not fit in memory. Each later step may have one more."""
        self._shrunk = max(self._shrunk, self.most - tokens)

    def observe(self, tokens: int, seconds: float) -> None:
        """Adds a measured step to the fit. Steps without a prefill count, too."""
        self._shrunk = max(0, self._shrunk - 1)
        self._weight = self._weight * FADE + 1.0
        self._tokens = self._tokens * FADE + tokens
        self._seconds = self._seconds * FADE + seconds
        self._tokens_squared = self._tokens_squared * FADE + tokens * tokens
        self._tokens_seconds = self._tokens_seconds * FADE + tokens * seconds
