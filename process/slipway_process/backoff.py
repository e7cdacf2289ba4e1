"""Exponential backoff: how long to wait after failures in a row (pure: the caller counts them, and sleeps)."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """`initial_s` after the first failure, then `factor` times as long after each further one, `most_s` at most.

    `jitter`: the part of a delay, from 0 to 1, that is left to chance, so that those who failed together do not return
    together.
    """

    initial_s: float
    most_s: float
    factor: float = 2.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if not (0.0 < self.initial_s <= self.most_s and self.factor > 1.0 and 0.0 <= self.jitter <= 1.0):
            raise ValueError(f"{self}: a delay has to grow from above 0 up to most_s, with a jitter from 0 to 1")

    def delay_s(self, failures: float, chance: float = 1.0) -> float:
        """The delay after so many failures in a row; none without one. `chance`: from 0 to 1, 1 for the whole delay."""
        if failures <= 0:
            return 0.0
        # Beyond this many steps the delay stays the same, and the power of a large number would overflow.
        steps = math.ceil(math.log(self.most_s / self.initial_s, self.factor))
        delay_s = min(self.most_s, self.initial_s * math.pow(self.factor, min(failures - 1, steps)))
        return delay_s * (1.0 - self.jitter + self.jitter * chance)
