"""The step time of an engine, fitted from what its pods export: tokens of prompts and outputs, and concurrency; pure.

A step of a batch of n sequences takes a + c·n seconds, and d more for each token of a prompt that it computes. Each
step generates n tokens, so with g generated and p prompt tokens per second n/g = a + c·n + d·(p·n/g): a linear
regression of what any engine exports. Old observations fade; a prior keeps it solvable while load never varies.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

KEEP = 0.995  # of what is known, with each observation: some 200 of them count
LEAST = 12.0  # observations before the fit is used
PROMPT_COST = 0.1  # of a prompt token, in generated tokens, until prompts have varied
LARGEST_COST = 1.0
_TERMS = 3
_PRIOR = 0.05  # observations that the prior weighs
_SIZE = _TERMS * (_TERMS + 1) // 2 + _TERMS + 1
_LONGEST_STEP_S = 60.0


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step: `fixed`, `each` for each sequence in it, `prompt` for each prompt token."""

    fixed: float
    each: float
    prompt: float

    @property
    def prompt_cost(self) -> float:
        """What a prompt token costs, in generated tokens at a full batch; from 0 to LARGEST_COST."""
        if self.each <= 0:
            return PROMPT_COST
        return min(LARGEST_COST, max(0.0, self.prompt / self.each))

    def generated_per_second(self, running: float, prompts_for_each: float) -> float:
        """Tokens per second that `running` sequences generate, with so many prompt tokens for each generated one."""
        step_s = self.fixed + (self.each + self.prompt * prompts_for_each) * running
        return running / step_s if step_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class StepFit:
    """The sums of the regression: the upper triangle of XᵀX, Xᵀy, and how many observations count."""

    sums: tuple[float, ...] = (0.0,) * _SIZE

    @property
    def observations(self) -> float:
        """How many observations count, faded ones in part."""
        return self.sums[-1]

    def add(self, running: float, generated: float, prompts: float) -> "StepFit":
        """One observation of a pod over some seconds: mean concurrency, and tokens per second.

        Idle pods teach nothing: with less than one sequence in progress the engine waits between steps.
        """
        if running < 1.0 or generated <= 0.0 or running / generated > _LONGEST_STEP_S:
            return self
        step_s = running / generated
        terms = (1.0, running, prompts * step_s)
        # Divided by the step's length, so that errors count by their share.
        weight = 1.0 / step_s**2
        products = [weight * terms[i] * terms[j] for i in range(_TERMS) for j in range(i, _TERMS)]
        fresh = (*products, *(weight * term * step_s for term in terms), 1.0)
        return StepFit(tuple(KEEP * old + new for old, new in zip(self.sums, fresh, strict=True)))

    def solved(self) -> StepTime | None:
        """The fit; None before LEAST observations."""
        if self.observations < LEAST:
            return None
        triangle, right = self.sums[: _SIZE - _TERMS - 1], self.sums[_SIZE - _TERMS - 1 : -1]
        xx, xn, xp, nn, np, pp = triangle
        left = [[xx, xn, xp], [xn, nn, np], [xp, np, pp]]
        fixed, each, prompt = _least_squares(left, right)
        return StepTime(fixed, each, prompt) if each > 0 else None

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "StepFit":
        """From the numbers of a status; an empty fit where they are not those of one."""
        sound = len(numbers) == _SIZE and all(0.0 <= number < 1e18 for number in numbers)
        return cls(tuple(numbers)) if sound else cls()


def _least_squares(left: list[list[float]], right: Sequence[float]) -> tuple[float, float, float]:
    """The solution without negative terms, drawn to `PROMPT_COST` where prompts have not varied."""
    # The prior is that d = PROMPT_COST·c, as one more row of the regression, in the scale of prompts.
    row = [0.0, PROMPT_COST * _PRIOR * math.sqrt(left[2][2]), -_PRIOR * math.sqrt(left[2][2])]
    rows = [
        [left[i][j] + row[i] * row[j] + (1e-9 * left[i][i] + 1e-15 if i == j else 0.0) for j in range(_TERMS)]
        for i in range(_TERMS)
    ]
    fixed, each, prompt = (max(0.0, term) for term in _solved(rows, list(right)))
    return fixed, each, prompt


def _solved(rows: list[list[float]], right: list[float]) -> list[float]:
    """Gauss's elimination: the matrix is symmetric and, with the prior, positive definite, so no pivot is 0."""
    size = len(rows)
    for pivot in range(size):
        for below in range(pivot + 1, size):
            factor = rows[below][pivot] / rows[pivot][pivot]
            rows[below] = [old - factor * over for old, over in zip(rows[below], rows[pivot], strict=True)]
            right[below] -= factor * right[pivot]
    solution = [0.0] * size
    for row in reversed(range(size)):
        rest = sum(rows[row][column] * solution[column] for column in range(row + 1, size))
        solution[row] = (right[row] - rest) / rows[row][row]
    return solution
