"""Simulated releases in small: their signs, their seeds, and bars that a broken rule does not keep."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from bench.judge_sim import __main__ as program
from bench.judge_sim.releases import others, picture, section, slipway
from bench.judge_sim.releases.figures import RULES, Figures, simulate
from bench.judge_sim.releases.half_hour import half_hour_table, half_hours
from bench.judge_sim.releases.rows import BAD, HEALTHY, LIVE_DEAD, ROWS, TWICE, Floats, Row, bad_of, requests
from bench.judge_sim.running import OURS
from slipway_operator.judging.margins.extra import rate_upper

RUNS, RATE = 40, 20.0


@pytest.fixture(scope="module")
def found() -> list[Figures]:
    return simulate(RUNS, 1, rates=(RATE,))


def of(found: list[Figures], row: Row, rule: str = OURS) -> Figures:
    return next(item for item in found if item.row == row and item.rule == rule)


def test_a_healthy_canary_is_promoted_and_costs_nothing(found: list[Figures]) -> None:
    mine = of(found, HEALTHY)
    assert mine.promoted >= 38 and mine.rejected <= 1
    assert 300 <= mine.to_promotion.median < 600
    assert mine.to_release.median == mine.to_promotion.median + 600
    assert all(of(found, HEALTHY, rule).harm.value == 0 for rule in RULES)


@pytest.mark.parametrize("row", [row for row in ROWS if row.shown and row.copies >= 0.02], ids=lambda row: row.name)
def test_what_copies_see_is_rejected_before_it_harms_a_user(found: list[Figures], row: Row) -> None:
    mine = of(found, row)
    assert mine.rejected == RUNS and mine.harm.value == 0
    assert of(found, row, others.TIMER).harm.value > 50


@pytest.mark.parametrize("row", [row for row in ROWS if not row.shown], ids=lambda row: row.name)
def test_what_copies_do_not_see_harms_few(found: list[Figures], row: Row) -> None:
    mine, timer = of(found, row), of(found, row, others.TIMER)
    assert 0 < mine.harm.value < 20 < timer.harm.value
    assert timer.two_hours > timer.harm.value
    assert mine.two_hours >= mine.harm.value


def test_a_timer_promotes_anything_after_half_an_hour(found: list[Figures]) -> None:
    assert {of(found, row, others.TIMER).to_promotion.p90 for row in ROWS} == {1800}
    assert of(found, LIVE_DEAD, others.ARGO).rejected_s == 240  # the fourth failed measurement
    assert of(found, LIVE_DEAD, others.FLAGGER).rejected_s == 300  # the fifth
    assert of(found, LIVE_DEAD, others.KAYENTA).rejected_s == 3000
    assert of(found, HEALTHY, others.FLAGGER).to_promotion.median in (300, 360)


def test_the_same_seed_gives_the_same_numbers_and_another_does_not() -> None:
    rows = (LIVE_DEAD, TWICE)
    # nan of a rule that rejects none is not equal to itself; its text is.
    once, again, other = (str(simulate(20, seed, rows, (RATE,))) for seed in (1, 1, 2))
    assert once == again != other


def test_a_row_has_the_same_numbers_whatever_else_is_simulated(found: list[Figures]) -> None:
    alone = simulate(RUNS, 1, (LIVE_DEAD,), (RATE,))
    assert str(alone) == str([of(found, LIVE_DEAD, rule) for rule in RULES])


def test_bars_hold_and_a_weight_of_always_50_breaks_that_of_harm(found: list[Figures]) -> None:
    made = section.bars(found)
    assert made and all(bar.ok for bar in made), [bar for bar in made if not bar.ok]

    def always_50(u: Floats, _live: Floats, _spent: Floats, _rate: float) -> slipway.Ints:
        return np.full(u.size, 50, dtype=np.int64)

    spoilt = simulate(RUNS, 1, (Row("+20 per 1,000, clients only", clients=0.02), LIVE_DEAD), (100.0,), always_50)
    broken = [bar.bar for bar in section.bars(spoilt) if not bar.ok]
    assert any("than maxHarm" in bar for bar in broken), section.bars(spoilt)


def test_bars_compare_with_intervals(found: list[Figures]) -> None:
    """A quick run may be beyond a limit by chance: 2 of 200 promoted are no proof of more than 0.5 %; 40 are."""
    mine = replace(of(found, TWICE), runs=200)
    few, many = (section.bars([replace(mine, promoted=promoted)])[0] for promoted in (2, 40))
    assert few.value > 0.005 and few.ok and not many.ok
    slow = replace(of(found, HEALTHY), rate=5.0, to_promotion=replace(mine.to_promotion, median=450, median_low=400))
    assert all(bar.ok for bar in section.bars([slow]) if "median" in bar.bar)
    never = replace(slow, to_promotion=mine.to_promotion)
    assert not all(bar.ok for bar in section.bars([never]) if "median" in bar.bar)


def test_a_healthy_release_that_takes_too_long_at_one_request_a_second_fails_its_bars(found: list[Figures]) -> None:
    slow = replace(of(found, HEALTHY), rate=1.0)
    late = replace(slow, to_promotion=replace(slow.to_promotion, median=1320, median_low=1300, p90=2280, p90_low=2200))
    assert [bar.ok for bar in section.bars([late]) if "minutes" in bar.bar] == [False, False]


def test_bounds_of_many_units_are_never_too_low() -> None:
    for bad, units in ((0, 0), (0, 60), (1, 100), (3, 777), (0, 2_345)):
        exact = float(rate_upper(bad, units, 0.025)) if units else 1.0
        assert exact <= slipway._rate_upper(bad, units) <= 1.03 * exact + 1e-4


def test_extra_bad_responses_are_those_that_stable_would_not_give() -> None:
    served = np.full(1000, 1000)
    bad, more = bad_of(np.random.default_rng(1), served, 0.1)
    assert bad.mean() == pytest.approx(1000 * (BAD + 0.1), rel=0.02) and more.mean() == pytest.approx(100, rel=0.02)
    dead, _ = bad_of(np.random.default_rng(1), served, 1 - BAD)
    assert (dead == served).all()
    assert requests(5.0, 0, 100, 1).mean() == pytest.approx(50, rel=0.01)


# -- the section, the picture and the command


def test_the_section_takes_the_place_of_the_one_that_was_there() -> None:
    text = f"{section.TITLE}\n\nnew\n"
    first = section.inserted("# Page\n\n## Other\n\nx\n\n## Bars\n\nrows\n", text)
    assert first == f"# Page\n\n## Other\n\nx\n\n{text}\n## Bars\n\nrows\n"
    assert section.inserted(first.replace("new", "old\n\n### Part"), text) == first
    assert section.inserted("# Page\n", text) == f"# Page\n\n{text}"


def test_the_picture_has_a_mark_for_each_rule(found: list[Figures]) -> None:
    assert picture.marks(found) == {}  # it is of another rate
    placed = picture.marks([replace(item, rate=picture.RATE) for item in found])
    assert set(placed) == set(RULES)
    assert placed[OURS].before < min(mark.before for rule, mark in placed.items() if rule != OURS)


def test_the_tables_have_a_line_for_each_row_and_no_infinite_number(found: list[Figures]) -> None:
    page = section.markdown(found, (), 1)
    assert page.count("| dead for clients only | 20 |") == 2
    assert "inf" not in page and "nan" not in page
    rows = section.as_rows(found)
    assert len(rows) == len(ROWS) * len(RULES)
    json.dumps(rows, allow_nan=False)
    assert all(math.isfinite(row["minutes"]) for row in rows)


def test_the_command_simulates_releases_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "write", lambda _report: program.ROOT / "build" / "report.json")
    monkeypatch.setattr(program, "QUICK_RUNS", 20)
    done = CliRunner().invoke(program.main, ["--quick", "--releases", "--only", "+95 per 1,000"])
    assert done.exit_code == 0, done.output
    assert "| +95 per 1,000 | 5 | 0 |" in done.output and "bars held" in done.output


def test_fewer_sessions_than_requests_are_promoted_within_half_an_hour_and_bars_say_so() -> None:
    found = half_hours(20, 1)
    promoted = {(item.session, item.rate): item.promoted for item in found}
    assert promoted[1, 1.0] >= 12 and promoted[6, 1.0] == 0 and promoted[6, 100.0] >= 19
    assert all(bar.ok for bar in section.bars([], found))
    few = [replace(item, runs=200, promoted=100) for item in found]
    assert not any(bar.ok for bar in section.bars([], few))
    assert "| sessions of 6 requests | 0 |" in half_hour_table(found)
