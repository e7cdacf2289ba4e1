"""One request of a load test: when what of its response came."""

from dataclasses import dataclass


@dataclass(slots=True)
class Sample:
    """Times are seconds since the request began; None: it did not come. `error`: a cause in a few words, or empty.

    `prompt_tokens`, `output_tokens`: as the server counted them; None: it did not.
    """

    latency_s: float = 0.0
    first_s: float | None = None
    last_s: float | None = None
    events: int = 0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    words: int = 0  # of the prompt
    error: str = ""
    is_whole: bool = False  # the stream has its end

    @property
    def itl_s(self) -> float | None:
        """Mean time between two events of the stream; None for less than two."""
        if self.first_s is None or self.last_s is None or self.events < 2:
            return None
        return (self.last_s - self.first_s) / (self.events - 1)
