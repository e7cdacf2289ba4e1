"""The extension, where it is built, and what runs a pair of twins on many inputs."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipway_plane import NATIVE, WHY_MISSING

needs_plane = pytest.mark.skipif(NATIVE is None, reason=WHY_MISSING or "the compiled data plane is there")
twins: Any = getattr(NATIVE, "twins", None)
# Of each pair: examples of hypothesis, and for each of them as many variants of it.
FEW, MILLION = (40, 60), (2_000, 500)
SKIPPED = "not sure"
# Of the inputs of a pair at least this share is read by Rust: a twin that leaves everything to Python proves nothing.
LEAST_READ = 0.1
_calls: Counter[bool] = Counter()  # of `rust`, by whether Rust read the input


@dataclass(frozen=True)
class Pair:
    """Two functions of the same input. `compare` raises AssertionError where they differ.

    `vary`: another input near one that hypothesis chose.
    """

    name: str
    cases: st.SearchStrategy[Any]
    compare: Callable[[Any], None]
    vary: Callable[[Any, Random], Any]

    def run(self, size: tuple[int, int]) -> None:
        """Compares (examples, variants of each) many cases, plus the examples themselves."""
        examples, variants = size
        _calls.clear()

        @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(self.cases, st.randoms(use_true_random=True))
        def agree(case: Any, random: Random) -> None:
            self.compare(case)
            for _ in range(variants):
                self.compare(self.vary(case, random))

        agree()
        assert _calls[True] >= LEAST_READ * _calls.total()


def name_of(pair: Pair) -> str:
    """The id of a test."""
    return pair.name


def rust(call: Callable[..., Any], *arguments: Any) -> Any:
    """What a Rust function returns; SKIPPED where it leaves the input to Python."""
    try:
        answer = call(*arguments)
    except twins.NotSure:
        _calls[False] += 1
        return SKIPPED
    _calls[True] += 1
    return answer
