"""How many tokens a step may take, so that the time between two tokens of an answer stays within its target."""

from dataclasses import dataclass

# Factor of older measurements at each new one: the fit follows a change of load within some tens of steps.
FADE = 0.95


@dataclass(slots=True)
class TokenBudget:
    """Fits seconds = a + b * tokens to recent steps and solves for the tokens of a step of `target_s` seconds."""

    least: int
    most: int
    target_s: float  # 0: always `most`
    _weight: float = 0.0
    _tokens: float = 0.0
    _seconds: float = 0.0
    _tokens_squared: float = 0.0
    _tokens_seconds: float = 0.0

    def tokens(self) -> int:
        """For the next step, between `least` and `most`."""
        if self.target_s == 0.0:
            return self.most
        if self._weight == 0.0:
            return max(self.least, min(self.most, 4 * self.least))
        mean_tokens, mean_seconds = self._tokens / self._weight, self._seconds / self._weight
        variance = self._tokens_squared / self._weight - mean_tokens**2
        covariance = self._tokens_seconds / self._weight - mean_tokens * mean_seconds
        # Steps of equal size do not determine the slope: time is then assumed proportional to tokens.
        slope = covariance / variance if variance > 1.0 and covariance > 0.0 else mean_seconds / mean_tokens
        fitting = mean_tokens + (self.target_s - mean_seconds) / max(slope, 1e-9)
        return int(max(self.least, min(self.most, fitting)))

    def observe(self, tokens: int, seconds: float) -> None:
        """Adds a measured step to the fit. Steps without a prefill count, too."""
        self._weight = self._weight * FADE + 1.0
        self._tokens = self._tokens * FADE + tokens
        self._seconds = self._seconds * FADE + seconds
        self._tokens_squared = self._tokens_squared * FADE + tokens * tokens
        self._tokens_seconds = self._tokens_seconds * FADE + tokens * seconds
