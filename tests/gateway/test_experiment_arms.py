"""Which arm a unit gets: shares, independence, what changes with weights, and what no change of anything else moves."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_contracts.experiments.assignment import HELD_OUT, OUTSIDE, AssignedArm, Assignment, place, unit_key
from slipway_contracts.experiments.spec import HOLDOUT

UNITS = [unit_key("", f"user-{number}") for number in range(100_000)]
FEWER = UNITS[:10_000]


def assignment(*weights: int, **fields: object) -> Assignment:
    arms = tuple(AssignedArm(name, weight, "prod/x") for name, weight in zip("abcdefgh", weights, strict=False))
    return replace(Assignment(layer="prod/ui", arms=arms), **fields)  # type: ignore[arg-type]


def arms(made: Assignment, experiment: str = "prod/one", units: Sequence[str] = UNITS) -> list[str]:
    return [place(experiment, made, unit).name for unit in units]


def chi_square(observed: Counter[str], expected: dict[str, float]) -> float:
    return sum((observed[name] - number) ** 2 / number for name, number in expected.items())


def independence(first: Sequence[str], second: Sequence[str]) -> tuple[float, int]:
    """Chi-square of a table of two choices, and its degrees of freedom."""
    rows, columns, cells = Counter(first), Counter(second), Counter(zip(first, second, strict=True))
    total = len(first)
    value = sum(
        (cells[one, other] - rows[one] * columns[other] / total) ** 2 / (rows[one] * columns[other] / total)
        for one in rows
        for other in columns
    )
    return value, (len(rows) - 1) * (len(columns) - 1)


def limit(freedom: int) -> float:
    """The 99.9th percentile of chi-square (Wilson and Hilferty)."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + 3.09 * math.sqrt(spread)) ** 3


def test_100_000_units_have_the_shares_of_arms_and_layers_are_independent() -> None:
    weights = {"a": 50, "b": 30, "c": 20}
    first = arms(assignment(*weights.values()))
    shares = chi_square(Counter(first), {name: 1000.0 * weight for name, weight in weights.items()})
    second = arms(assignment(40, 60, layer="prod/prices"), "prod/two")
    between, freedom = independence(first, second)
    print(f"arms {dict(Counter(first))}: chi-square {shares:.2f} (limit {limit(2):.2f})")
    print(f"two layers: chi-square {between:.2f} with {freedom} degrees of freedom (limit {limit(freedom):.2f})")
    assert shares < limit(2)
    assert between < limit(freedom)
    # The same layer and arms of another experiment, too: who was in which arm of the last one says nothing.
    again, freedom = independence(first[: len(FEWER)], arms(assignment(*weights.values()), "prod/three", FEWER))
    assert again < limit(freedom)
    assert first[: len(FEWER)] == arms(assignment(*weights.values()), units=FEWER), "no unit changes its arm"


def test_experiments_of_one_layer_exclude_each_other_and_hold_out_the_same_units() -> None:
    left = arms(assignment(50, 50, first=0, end=40, holdout=10), "prod/one", FEWER)
    right = arms(assignment(50, 50, first=40, end=100, holdout=10), "prod/two", FEWER)
    for one, other in zip(left, right, strict=True):
        assert (one == HOLDOUT) == (other == HOLDOUT)
        assert one == HOLDOUT or (one == "") != (other == "")
    held = Counter(left)[HOLDOUT] / len(FEWER)
    assert held == pytest.approx(0.1, abs=0.015)
    taken = (len(FEWER) - Counter(left)[""]) / len(FEWER)
    assert taken == pytest.approx(0.1 + 0.9 * 0.4, abs=0.025)


def test_a_larger_range_adds_units_and_moves_none() -> None:
    before, after = (arms(assignment(70, 30, end=end), units=FEWER) for end in (20, 90))
    assert all(now == then for then, now in zip(before, after, strict=True) if then)
    assert Counter(before)[""] > Counter(after)[""]


def test_an_arm_that_grows_takes_what_it_gains_and_nothing_else_moves() -> None:
    before, after = (arms(assignment(*weights), units=FEWER) for weights in ((10, 45, 45), (20, 40, 40)))
    moved = Counter((then, now) for then, now in zip(before, after, strict=True) if then != now)
    assert {now for _, now in moved} == {"a"}
    assert sum(moved.values()) == pytest.approx(len(FEWER) / 10, rel=0.12)


@given(
    st.lists(st.integers(1, 100), min_size=2, max_size=8).flatmap(
        lambda weights: st.tuples(st.just(weights), st.lists(st.integers(1, 100), min_size=len(weights), max_size=8))
    ),
    st.text(max_size=40),
)
def test_a_unit_moves_only_to_an_arm_that_grew_more_than_its_own(
    weights: tuple[list[int], list[int]], unit: str
) -> None:
    old, new = weights[0], weights[1][: len(weights[0])]
    then, now = (place("ns/e", assignment(*one), unit).arm for one in (old, new))
    assert then is not None and now is not None
    growth = {name: new[at] / old[at] for at, name in enumerate("abcdefgh"[: len(old)])}
    assert then.name == now.name or growth[now.name] > growth[then.name]


@given(st.text(), st.text())
def test_any_text_is_a_unit(tenant: str, value: str) -> None:
    placed = place("ns/e", assignment(50, 50, end=50, holdout=10), unit_key(tenant, value))
    assert placed.result in (OUTSIDE, HELD_OUT) or placed.name in ("a", "b")


def test_order_of_arms_moves_no_unit_and_an_arm_without_weight_gets_none() -> None:
    made = assignment(30, 70, 0)
    turned = replace(made, arms=made.arms[::-1])
    assert arms(made, units=FEWER) == arms(turned, units=FEWER)
    assert "c" not in Counter(arms(made, units=FEWER))


def test_no_release_moves_a_unit() -> None:
    """What this release answers, each later one must: an upgrade in the middle of an experiment moves no unit."""
    made = assignment(50, 30, 20, first=0, end=80, holdout=10)
    units = ["user-1", "user-2", "user-3", "user-4", "user-5", "ü", "user-7", "user-8"]
    found = [place("prod/one", made, unit_key("t", unit)) for unit in units]
    assert [one.name for one in found] == ["a", "a", "c", "", "b", "", "", "b"]
    assert found[0].position == pytest.approx(34.864218, abs=1e-6)
