"""Seconds of a step as a function of what it computes, fitted to the steps so far (pure)."""

import math
from dataclasses import dataclass, field

# Factor of older measurements at each new one: the fit follows a change of load within some tens of steps.
FADE = 0.95
# Where tokens and pairs are as correlated as this, the fit cannot separate them: all time is attributed to the tokens.
MOST_CORRELATED = 0.98


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step: `fixed` + `each` * tokens + `pair` * pairs.

    A pair is a token of the step and one that it attends to, itself or an earlier one of its sequence.
    """

    fixed: float
    each: float
    pair: float

    def seconds(self, tokens: float, pairs: float) -> float:
        return self.fixed + self.each * tokens + self.pair * pairs

    def scaled(self, factor: float) -> "StepCost":
        return StepCost(self.fixed * factor, self.each * factor, self.pair * factor)

    def tokens_within(self, seconds: float, context: float) -> float:
        """How many tokens of a sequence after `context` others take `seconds`, which do not include `fixed`; 0 or more.

        n tokens have n * context + n² / 2 pairs.
        """
        if seconds <= 0.0:
            return 0.0
        first = self.each + self.pair * context
        root = math.sqrt(first * first + 2.0 * self.pair * seconds)
        return 2.0 * seconds / max(first + root, 1e-12)


@dataclass(slots=True)
class StepFit:
    """Weighted least squares over recent steps.

    `fade`: factor of older measurements at each new one. `least_variance`: of the tokens of steps, which determine a
    slope only above it.
    """

    fade: float = FADE
    least_variance: float = 1.0
    _weight: float = 0.0
    _sums: list[float] = field(default_factory=lambda: [0.0] * 3)  # of tokens, pairs, seconds
    # Of tokens², pairs², tokens * pairs, tokens * seconds, pairs * seconds.
    _products: list[float] = field(default_factory=lambda: [0.0] * 5)

    def observe(self, tokens: float, pairs: float, seconds: float) -> None:
        """Adds a measured step."""
        self._weight = self._weight * self.fade + 1.0
        new = (tokens, pairs, seconds)
        self._sums = [old * self.fade + value for old, value in zip(self._sums, new, strict=True)]
        products = (tokens * tokens, pairs * pairs, tokens * pairs, tokens * seconds, pairs * seconds)
        self._products = [old * self.fade + value for old, value in zip(self._products, products, strict=True)]

    def cost(self) -> StepCost | None:
        """The fit; None before the first step. Neither tokens nor pairs take negative time."""
        if self._weight == 0.0:
            return None
        tokens, pairs, seconds = (total / self._weight for total in self._sums)
        each, pair = self._slopes(tokens, pairs, seconds)
        if each <= 0.0:
            # Steps of equal size do not determine a slope: time is then assumed proportional to tokens.
            each, pair = seconds / max(tokens, 1.0), 0.0
        return StepCost(seconds - each * tokens - pair * pairs, each, pair)

    def measured(self, known: StepCost | None = None) -> StepCost | None:
        """The fit, only where steps of different sizes determine it. Tokens that seem to save time take none.

        `known`: an earlier one. Where steps have been of one size since then, it is this one, as much faster or slower
        as these steps are.
        """
        if self._weight == 0.0:
            return None
        tokens, pairs, seconds = (total / self._weight for total in self._sums)
        if self._products[0] / self._weight - tokens**2 <= self.least_variance:
            return known and known.scaled(seconds / max(known.seconds(tokens, pairs), 1e-12))
        each, pair = self._slopes(tokens, pairs, seconds)
        each = max(0.0, each)
        return StepCost(max(0.0, seconds - each * tokens - pair * pairs), each, pair)

    def _slopes(self, tokens: float, pairs: float, seconds: float) -> tuple[float, float]:
        """Of tokens and pairs; 0 where the steps do not determine one. The arguments are the means."""
        squares, pair_squares, mixed, token_seconds, pair_seconds = (total / self._weight for total in self._products)
        token_variance, pair_variance = squares - tokens**2, pair_squares - pairs**2
        shared = mixed - tokens * pairs
        with_tokens, with_pairs = token_seconds - tokens * seconds, pair_seconds - pairs * seconds
        if token_variance <= self.least_variance:
            return 0.0, 0.0
        determinant = token_variance * pair_variance - shared**2
        if determinant > (1.0 - MOST_CORRELATED**2) * token_variance * pair_variance > 0.0:
            each = (with_tokens * pair_variance - with_pairs * shared) / determinant
            pair = (with_pairs * token_variance - with_tokens * shared) / determinant
            if each > 0.0 and pair > 0.0:
                return each, pair
        return with_tokens / token_variance, 0.0
