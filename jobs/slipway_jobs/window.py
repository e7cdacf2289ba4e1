"""How many requests of one tenant may be in flight: more while they succeed, half as many after a refusal (pure)."""

from dataclasses import dataclass

FIRST, LEAST = 4.0, 1.0
PAUSE_S = 1.0
MAX_PAUSE_S = 60.0


@dataclass(slots=True)
class Window:
    """The window of one tenant: additive increase, multiplicative decrease."""

    limit: float
    size: float = FIRST
    running: int = 0
    paused_until_s: float = 0.0
    shrunk_s: float = float("-inf")
    pause_s: float = PAUSE_S

    def room(self, now_s: float) -> int:
        return 0 if now_s < self.paused_until_s else max(0, int(self.size) - self.running)

    def begun(self) -> None:
        self.running += 1

    def succeeded(self) -> None:
        self.running -= 1
        self.size = min(self.limit, self.size + 1 / self.size)
        self.pause_s = PAUSE_S

    def broke(self) -> None:
        self.running -= 1

    def refused(self, began_s: float, now_s: float, retry_after_s: float | None = None) -> float:
        """Halves and pauses the window, unless the request began before the last halving. Returns seconds to wait."""
        self.running -= 1
        if began_s >= self.shrunk_s:
            self.shrunk_s = now_s
            self.size = max(LEAST, self.size / 2)
            wait_s = min(MAX_PAUSE_S, self.pause_s if retry_after_s is None else max(retry_after_s, 0.05))
            self.pause_s = min(MAX_PAUSE_S, self.pause_s * 2)
            self.paused_until_s = now_s + wait_s
        return max(0.0, self.paused_until_s - now_s)
