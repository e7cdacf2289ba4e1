"""A rate limit with a burst of one second (pure)."""


class RateLimit:
    """A token bucket: `take` takes a token if there is one. `now_s`: seconds of the caller's clock."""

    __slots__ = ("_at_s", "_tokens")

    def __init__(self, now_s: float, per_s: int) -> None:
        self._at_s = now_s
        self._tokens = float(max(1, per_s))

    def take(self, now_s: float, per_s: int, *, spare: bool = False) -> bool:
        """Whether one more call may be made now. `spare`: only if half of the burst is left for others."""
        burst = float(max(1, per_s))
        self._tokens = min(burst, self._tokens + per_s * max(0.0, now_s - self._at_s))
        self._at_s = now_s
        if self._tokens < (1.0 + burst / 2 if spare else 1.0):
            return False
        self._tokens -= 1.0
        return True
