"""Runs in this process: examples of a strategy against one check, counted."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

KEPT = 20
SHOWN = 600  # characters of an example
ROUND = 100  # examples of one seed: Hypothesis looks back at all of a run


@dataclass
class Tally:
    """What came of a check. `wrong`: the first examples that it did not hold for, with why; `fields`: those drawn."""

    examples: int = 0
    failures: int = 0
    fields: set[str] = field(default_factory=set)
    endings: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def fail(self, why: str, example: Any) -> None:
        self.failures += 1
        self.wrong = [*self.wrong, f"{why} for {repr(example)[:SHOWN]}"][:KEPT]

    def ended(self, name: str) -> None:
        self.endings[name] = self.endings.get(name, 0) + 1


def count(
    strategy: st.SearchStrategy[Any],
    check: Callable[[Any, Tally], None],
    first_seed: int,
    *,
    examples: int = 0,
    seconds: float = 0.0,
) -> Tally:
    """Draws so many examples, or for so long. What `check` raises is a failure, whatever it is."""
    tally, end, number = Tally(), time.monotonic() + seconds, first_seed
    while tally.examples < examples or time.monotonic() < end:
        left = examples - tally.examples if examples else ROUND
        _some(strategy, check, tally, number, min(left, ROUND))
        number += 1
    return tally


def _some(
    strategy: st.SearchStrategy[Any], check: Callable[[Any, Tally], None], tally: Tally, number: int, most: int
) -> None:
    @seed(number)
    @settings(
        max_examples=most, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(strategy)
    def one(example: Any) -> None:
        tally.examples += 1
        try:
            check(example, tally)
        except Exception as error:
            tally.fail(f"{type(error).__name__}: {str(error)[:300]}{_where(error)}", example)

    one()


def _where(error: Exception) -> str:
    """The innermost frame of an exception."""
    trace, frame = error.__traceback__, ""
    while trace:
        frame = f" at {trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return frame
