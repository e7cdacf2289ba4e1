"""How many tokens a step may take, so that those who wait for their next token wait no longer than they should."""

from dataclasses import dataclass

# Of the older measurements after each new one: a change of load is followed within some tens of steps.
FADE = 0.95


@dataclass(slots=True)
class TokenBudget:
    """Fits seconds = a + b * tokens to the last steps and asks which number of tokens takes `target_s`."""

    least: int
    most: int
    target_s: float  # 0: always `most`
    _weight: float = 0.0
    _tokens: float = 0.0
    _seconds: float = 0.0
    _tokens2: float = 0.0
    _both: float = 0.0

    def tokens(self) -> int:
        """For the next step, between `least` and `most`."""
        if self.target_s == 0.0:
            return self.most
        if self._weight == 0.0:
            return max(self.least, min(self.most, 4 * self.least))
        mean_tokens, mean_seconds = self._tokens / self._weight, self._seconds / self._weight
        variance = self._tokens2 / self._weight - mean_tokens**2
        covariance = self._both / self._weight - mean_tokens * mean_seconds
        # Steps of one size say nothing of the slope: then time is taken to grow with the tokens alone.
        slope = covariance / variance if variance > 1.0 and covariance > 0.0 else mean_seconds / mean_tokens
        fitting = mean_tokens + (self.target_s - mean_seconds) / max(slope, 1e-9)
        return int(max(self.least, min(self.most, fitting)))

    def observe(self, tokens: int, seconds: float) -> None:
        """What a step took. Steps without a prefill say how long decoding takes and are part of the fit."""
        values = (1.0, tokens, seconds, tokens * tokens, tokens * seconds)
        names = ("_weight", "_tokens", "_seconds", "_tokens2", "_both")
        for name, value in zip(names, values, strict=True):
            setattr(self, name, getattr(self, name) * FADE + value)
