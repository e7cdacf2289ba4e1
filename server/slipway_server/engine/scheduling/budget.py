"""How many tokens a step may take, so that the time between two tokens of an answer stays within its target."""

from dataclasses import dataclass

# Requests in the server up to which a step is as short as the setting says. What a step costs however few tokens it has
# is shared by more of them in longer steps; without those, a crowd would wait longer for its first tokens.
FEW_REQUESTS = 8
# Factor of older measurements at each new one: the fit follows a change of load within some tens of steps.
FADE = 0.95


@dataclass(frozen=True, slots=True)
class StepTimes:
    """How long a step may take."""

    prefill_s: float  # while no answer waits for its next token; 0: any time
    decode_s: float  # while some do, and there are few requests

    def target_s(self, decodes: int, requests: int) -> float:
        """With so many answers in the step, of so many requests that run or wait."""
        if not decodes:
            return self.prefill_s
        return min(self.prefill_s, self.decode_s * max(1.0, requests / FEW_REQUESTS))


@dataclass(slots=True)
class TokenBudget:
    """Fits seconds = a + b * tokens to recent steps and solves for the tokens of a step of so many seconds."""

    least: int  # of prompts, beside the decodes of a step: prompts go on, however slow the machine is
    most: int
    times: StepTimes
    _shrunk: int = 0  # tokens below `most` that a step has room for
    _weight: float = 0.0
    _tokens: float = 0.0
    _seconds: float = 0.0
    _tokens_squared: float = 0.0
    _tokens_seconds: float = 0.0

    def tokens(self, decodes: int = 0, requests: int = 0) -> int:
        """For the next step, which has so many decodes of so many requests that run or wait; at most `most`."""
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
        """There was no memory for a step of more tokens. Each step from then on may have one more, up to `most`."""
        self._shrunk = max(self._shrunk, self.most - tokens)

    def observe(self, tokens: int, seconds: float) -> None:
        """Adds a measured step to the fit. Steps without a prefill count, too."""
        self._shrunk = max(0, self._shrunk - 1)
        self._weight = self._weight * FADE + 1.0
        self._tokens = self._tokens * FADE + tokens
        self._seconds = self._seconds * FADE + seconds
        self._tokens_squared = self._tokens_squared * FADE + tokens * tokens
        self._tokens_seconds = self._tokens_seconds * FADE + tokens * seconds
