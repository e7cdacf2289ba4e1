"""How many requests of one tenant may be in flight: more while they succeed, half as many after a refusal (pure)."""

from dataclasses import dataclass

from slipway_process.backoff import Backoff

FIRST, LEAST = 4.0, 1.0
BACKOFF = Backoff(1.0, 60.0)
LEAST_PAUSE_S = 0.05


@dataclass(slots=True)
class Window:
    """The window of one tenant: additive increase, multiplicative decrease."""

    limit: float
    size: float = FIRST
    running: int = 0
    paused_until_s: float = 0.0
    shrunk_s: float = float("-inf")
    halvings: int = 0  # since the last success

    def room(self, now_s: float) -> int:
        return 0 if now_s < self.paused_until_s else max(0, int(self.size) - self.running)

    def begun(self) -> None:
        self.running += 1

    def succeeded(self) -> None:
        self.running -= 1
        self.size = min(self.limit, self.size + 1 / self.size)
        self.halvings = 0

    def broke(self) -> None:
        self.running -= 1

    def refused(self, began_s: float, now_s: float, retry_after_s: float | None = None) -> float:
        """Halves and pauses the window, unless the request began before the last halving. Returns seconds to wait."""
        self.running -= 1
        if began_s >= self.shrunk_s:
            self.shrunk_s = now_s
            self.size = max(LEAST, self.size / 2)
            self.halvings += 1
            pause_s = BACKOFF.delay_s(self.halvings) if retry_after_s is None else max(LEAST_PAUSE_S, retry_after_s)
            self.paused_until_s = now_s + min(BACKOFF.most_s, pause_s)
        return max(0.0, self.paused_until_s - now_s)
