"""The simulation in small: moments of its traffic, the peers' rules, and a run from end to end."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from bench.judge_sim import __main__ as program
from bench.judge_sim import cells, kept, margins, ours, peers, plot, report, running
from bench.judge_sim.intervals import wilson
from bench.judge_sim.latencies import SLOW, Shape, slow
from bench.judge_sim.running import (
    OURS,
    TUNED_KAYENTA,
    TUNED_RULE,
    AlternativeResult,
    Detection,
    alternative_result,
    null_result,
)
from bench.judge_sim.traffic import CANARY, DRIFT, METRICS, STABLE, Plan, Traffic, draw
from slipway_operator.api.v1alpha1.analysis_run import Epoch
from slipway_operator.judging import verdict as judging
from slipway_operator.planning.analysis.runs import READ_S


def silent(_what: str, _done: int, _total: int) -> None:
    pass


def plan(session: float, icc: float, runs: int = 40) -> Plan:
    levels = cells.Factors(np.full(runs, 20.0), np.full(runs, 0.05), (Shape(0.6),) * runs, np.full(runs, icc))
    return cells.healthy(levels, ((25, 30),), session, warmup_s=0)


@pytest.mark.parametrize(("session", "icc"), [(1.0, 0.0), (6.0, 0.0), (6.0, 0.3)])
def test_requests_and_bad_ones_come_at_the_rates_of_the_plan(session: float, icc: float) -> None:
    traffic = draw(np.random.default_rng(1), plan(session, icc))
    requests, bad = (item[:, 0].sum(axis=(1, 2)) for item in (traffic.requests, traffic.bad_requests))
    expected = 40 * 1800 * 20 * np.array([0.25, 0.75])
    assert requests == pytest.approx(expected, rel=0.02)
    assert bad / requests == pytest.approx(0.05, rel=0.08)
    assert traffic.units.sum(axis=(1, 2)) == pytest.approx(expected / session, rel=0.02)
    assert (traffic.bad_requests <= traffic.requests)[:, :-1].all()


def test_each_slow_request_counts_only_where_that_is_simulated() -> None:
    each = draw(np.random.default_rng(1), replace(plan(6.0, 0.3), slow_each=True))
    ttft = METRICS.index("ttft")
    assert (each.bad_units[:, ttft].sum(axis=-1) == each.bad_requests[:, ttft].sum(axis=-1)).all()
    assert (each.bad_units[:, 0].sum(axis=-1) < each.bad_requests[:, 0].sum(axis=-1)).all()


@pytest.mark.parametrize("icc", [0.0, 0.3])
def test_bad_sessions_are_as_many_as_the_correlation_predicts(icc: float) -> None:
    """Of sessions that are alike 5 % are bad, of others 1 - E[0.95^length] with a geometric length of mean 6."""
    traffic = draw(np.random.default_rng(2), plan(6.0, icc))
    own = 1 - (1 / 6) * 0.95 / (1 - (5 / 6) * 0.95)
    expected = icc * 0.05 + (1 - icc) * own
    bad, units = traffic.bad_units[:, 0].sum(), traffic.units.sum()
    assert bad / units == pytest.approx(expected, rel=0.03)


def test_latencies_exceed_the_p95_as_often_as_they_should() -> None:
    assert slow(Shape(0.6), 1.0) == pytest.approx(SLOW, abs=1e-9)
    assert slow(Shape(0.6, tail=True), 1.0) == pytest.approx(SLOW, abs=1e-9)
    assert slow(Shape(0.6), 1.5) == pytest.approx(0.166, abs=0.001)
    rng = np.random.default_rng(3)
    logs = 0.6 * rng.standard_normal(400_000) + np.where(
        rng.random(400_000) < 0.05, rng.exponential(1 / 1.5, 400_000), 0
    )
    assert logs.std() == pytest.approx(Shape(0.6, tail=True).spread, rel=0.01)
    p95 = np.quantile(logs, 0.95)
    assert (logs + math.log(1.3) > p95).mean() == pytest.approx(slow(Shape(0.6, tail=True), 1.3), abs=0.003)


def test_every_null_keeps_both_sides_alike_but_those_that_are_not_gated() -> None:
    for null in cells.NULLS:
        made = cells.null_plan(np.random.default_rng(4), null, 0, 24, cells.SCHEDULES[0])
        after = made.bad[:, :, :, cells.WARMUP_S // READ_S :]
        # Of a cold cache some prompts are guessed wrong, and of a cache that is warm a few more.
        alike = np.allclose(after[CANARY], after[STABLE], atol=cells.GUESSED_WRONG)
        assert alike == (null.gated or null.slow_each)
        assert made.bad.min() >= 0 and made.bad.max() < 1


def minutes(canary_bad: list[int], requests: int = 100) -> Traffic:
    """One run at weight 50 with these bad canary requests in its minutes, and nothing else."""
    size = len(canary_bad)
    shape = (2, len(METRICS), 1, size)
    counts, bad = np.full(shape, requests), np.zeros(shape, dtype=np.int64)
    bad[CANARY, 0, 0] = canary_bad
    base = replace(
        plan(1.0, 0.0, runs=1), steps=((50, size),), bad=np.full((2, len(METRICS), 1, size * 12), 0.001), warmup_s=0
    )
    empty = np.zeros((2, 1, 0), dtype=np.int64)
    return Traffic(base, empty, empty, counts, bad, np.zeros((2, 2, 1, size)))


def test_flagger_adds_up_failed_checks_and_counts_missing_data_as_failed() -> None:
    traffic = minutes([2, 0, 2, 0, 2, 1])
    assert peers.flagger(traffic, 3)[0] == 5 * 60
    assert np.isinf(peers.flagger(traffic, 4)[0])
    assert peers.flagger(minutes([0, 0, 0], requests=0), 2)[0] == 2 * 60


def test_argo_tolerates_as_many_failures_as_its_limit() -> None:
    traffic = minutes([0, 2, 0, 2, 2])
    assert peers.argo(traffic, 0)[0] == 2 * 60
    assert peers.argo(traffic, 2)[0] == 5 * 60
    assert np.isinf(peers.argo(traffic, 3)[0])
    assert np.isinf(peers.argo(minutes([0, 0], requests=0), 0)[0])


def test_kayenta_looks_every_five_minutes() -> None:
    traffic = minutes([30] * 12)
    strengths = peers.kayenta_strengths(traffic)
    assert strengths.shape == (1, 3)
    assert peers.kayenta_often(traffic, strengths)[0] == 5 * 60
    assert peers.kayenta_once(traffic, strengths)[0] == 12 * 60
    healthy = minutes([0] * 12)
    assert np.isinf(peers.kayenta_once(healthy, peers.kayenta_strengths(healthy))[0])


def test_kayenta_is_tuned_by_its_looks_alone() -> None:
    """The end of 12 minutes is no look of those every five."""
    assert peers.strongest(minutes([0] * 12), np.array([[2.0, 1.0, 9.0]])) == 2.0
    assert peers.tuned_kayenta_z(np.arange(100.0), 0.05) == 95.0


def test_z_and_msprt_find_a_gross_difference() -> None:
    traffic = minutes([40] * 5)
    assert peers.z_test(traffic)[0] == 60
    assert peers.msprt(traffic)[0] <= 5 * 60
    assert np.isinf(peers.z_test(minutes([0] * 5))[0])


def test_tuned_rules_reject_healthy_canaries_at_their_target_rate() -> None:
    cell = cells.ALTERNATIVES[1]
    healthy, _ = cells.alternative_plan(np.random.default_rng(6), cell, 100, regressed=False)
    traffic = draw(np.random.default_rng(7), healthy)
    rates = healthy.bad[STABLE, :, 0, 0]
    deviations = peers.deviations(traffic, rates)
    rules = peers.tuned_rules(deviations, 0.05)
    assert len(rules) == 18
    for rule in rules:
        assert 0 < np.isfinite(peers.by_rule(rule, deviations)).mean() <= 0.05


def test_a_restart_changes_no_bit_and_a_lost_count_does() -> None:
    rng = np.random.default_rng(8)
    traffic = draw(rng, cells.null_plan(rng, cells.NULLS[0], 0, 24, cells.SCHEDULES[0]))
    before = ours.decide(traffic)
    assert ours.restarted(rng, traffic, before) == 0
    traffic.bad_units[:, 1, :, 180] += 1
    assert ours.restarted(rng, traffic, before) == 24


def test_a_batch_has_the_bits_that_the_operator_computes() -> None:
    """At some readings of some runs: one canary, and only those epochs that have begun."""
    rng = np.random.default_rng(9)
    traffic = draw(rng, cells.null_plan(rng, cells.NULLS[0], 0, 24, cells.SCHEDULES[0]))
    for index in (0, 1, DRIFT):
        sums = ours.cumulated(traffic, index)
        found = ours.evidence(traffic, index, sums)
        for run, reading in ((0, 0), (7, 23), (11, 24), (17, 130), (23, 359)):
            begun = [place for place, (_, since, _) in enumerate(traffic.epochs) if since <= reading * READ_S]
            epochs = [
                Epoch(traffic.epochs[place][0], *(int(sums[side][place, run, reading]) for side in (0, 1, 0, 1)))
                for place in begun
            ]
            assert (
                float(judging.log_evidence(ours.SPEC.metrics[index], judging.Tally.of(epochs))) == found[run, reading]
            )


def test_rejections_come_at_readings_and_never_before_the_evidence() -> None:
    cell = cells.ALTERNATIVES[0]
    made, _ = cells.alternative_plan(np.random.default_rng(6), cell, 24, regressed=True)
    found = ours.decide(draw(np.random.default_rng(7), made))
    assert (found.fail_s % READ_S == 0).all()
    logs = found.log_evidence[0, np.arange(24), (found.fail_s / READ_S).astype(int) - 1]
    assert (logs >= math.log(100)).all()


def test_wilsons_interval() -> None:
    assert wilson(100, 10_000) == pytest.approx((0.00823, 0.01215), abs=2e-5)
    assert wilson(0, 200)[0] == 0
    assert wilson(0, 200)[1] == pytest.approx(0.01885, abs=1e-4)


def test_a_small_run_keeps_to_its_bars_and_a_spoilt_one_does_not() -> None:
    null = null_result(cells.NULLS[0], 72, 1, silent)
    dead = alternative_result(cells.ALTERNATIVES[0], 40, 1, silent)
    outcome = report.Outcome([null], [dead], 1)
    made = report.bars(outcome)
    assert all(bar.ok for bar in made), [bar for bar in made if not bar.ok]
    assert dead.judges[OURS].median_s < 20
    assert dead.judges[OURS].median_low_s <= dead.judges[OURS].median_s <= dead.judges[OURS].median_high_s
    assert dead.judges[OURS].harm < dead.judges[TUNED_RULE].harm
    page = report.markdown(outcome, made)
    assert "| canary is dead |" in page and "| nothing happens |" in page
    json.dumps(report.as_json(outcome, made), allow_nan=False)
    assert plot.points(outcome)[OURS].percent <= 1.4
    assert plot.points(outcome)[TUNED_RULE].percent == 1  # 40 runs prove no more than the promise
    null.rollbacks[OURS] = 5
    assert not all(bar.ok for bar in report.bars(outcome))


def test_the_bar_for_harm_is_the_best_tuned_rule() -> None:
    mine, best = (replace(NEVER, harm=harm) for harm in (5.0, 6.0))
    for judges, held in (({OURS: mine, TUNED_RULE: best}, True), ({OURS: best, TUNED_RULE: mine}, False)):
        everyone = judges | dict.fromkeys((TUNED_KAYENTA, *peers.JUDGES), NEVER)
        result = AlternativeResult(cells.ALTERNATIVES[1], 1, everyone, 0.0, "", 0.01, None, 0.0)
        harm = next(bar for bar in report.bars(report.Outcome([], [result], 1)) if bar.bar.startswith("bad responses"))
        assert harm.ok is held


def test_a_difference_within_its_interval_is_a_tie_and_no_fault() -> None:
    mine, best = replace(NEVER, harm=36.3, harm_error=3.0), replace(NEVER, harm=32.3, harm_error=3.0)
    everyone = {OURS: mine, TUNED_RULE: best} | dict.fromkeys((TUNED_KAYENTA, *peers.JUDGES), NEVER)
    result = AlternativeResult(cells.ALTERNATIVES[1], 200, everyone, 0.0, "", 0.01, None, 0.0)
    harm = next(bar for bar in report.bars(report.Outcome([], [result], 1)) if bar.bar.startswith("bad responses"))
    assert harm.ok and "a tie" in harm.limit


def test_a_row_in_doubt_is_tuned_by_more_runs_and_a_clear_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned: list[int] = []
    real = running._tuned

    def counted(cell: cells.Alternative, runs: int, *rest: Any) -> running.Tuned:
        tuned.append(runs)
        return real(cell, runs, *rest)

    monkeypatch.setattr(running, "_tuned", counted)
    monkeypatch.setattr(running, "TUNING_RUNS", 40)
    clear = alternative_result(cells.ALTERNATIVES[1], 20, 1, silent)
    assert tuned == [20] and clear.judges[OURS].harm < clear.judges[TUNED_RULE].harm
    monkeypatch.setattr(running, "_harm_differs", lambda _found: 1.0)
    alternative_result(cells.ALTERNATIVES[1], 20, 1, silent)
    assert tuned == [20, 20, 40]
    alternative_result(cells.ALTERNATIVES[1], 40, 1, silent)
    assert tuned == [20, 20, 40, 40]  # a full run is tuned once


def test_a_rule_that_serves_less_only_at_one_end_of_its_tuning_is_a_tie() -> None:
    mine, best = replace(NEVER, harm=36.3, harm_error=1.4), replace(NEVER, harm=32.3, harm_error=1.9)
    everyone = {OURS: mine, TUNED_RULE: best} | dict.fromkeys((TUNED_KAYENTA, *peers.JUDGES), NEVER)
    for strict_harm, held in ((40.0, True), (33.0, False)):
        result = AlternativeResult(cells.ALTERNATIVES[1], 200, everyone, 0.0, "", 0.01, None, 0.0, strict_harm)
        made = report.bars(report.Outcome([], [result], 1))
        harm = next(bar for bar in made if bar.bar.startswith("bad responses"))
        assert harm.ok is held and ("a tie" in harm.limit) is held


def test_canaries_at_a_margin_seldom_pass_and_healthy_ones_do() -> None:
    found = {cell.name: margins.result(cell, 200, 1) for cell in margins.CELLS}
    made = [bar for item in found.values() if (bar := margins.bar(item))]
    assert len(made) == 4 and all(bar.ok for bar in made), made
    assert found["maxExtra 10, healthy, 20 req/s"].passed >= 190
    spoilt = replace(found["okBelow at its limit"], passed=40)
    assert not margins.bar(spoilt).ok  # type: ignore[union-attr]


NEVER = Detection(0.0, 0.0, math.inf, math.inf, math.inf, math.inf, math.inf, 9.0, 0.1)


# -- what is kept, and the command


def test_a_cell_that_is_done_is_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = kept.Kept(tmp_path, 1)
    null = first.null(cells.NULLS[0], 24, silent)
    bad = first.alternative(cells.ALTERNATIVES[0], 24, silent)

    def computed_again(*_: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(kept, "null_result", computed_again)
    monkeypatch.setattr(kept, "alternative_result", computed_again)
    again = kept.Kept(tmp_path, 1)
    assert again.null(cells.NULLS[0], 24, silent) == null
    assert again.alternative(cells.ALTERNATIVES[0], 24, silent) == bad
    for other, runs in ((again, 25), (kept.Kept(tmp_path, 2), 24)):
        with pytest.raises(AssertionError, match="computed again"):
            other.null(cells.NULLS[0], runs, silent)


def test_what_other_code_found_is_not_used_and_in_the_end_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for state in range(kept.STATES + 3):
        monkeypatch.setattr(kept, "state_of_code", lambda state=state: f"state-{state}")
        kept.Kept(tmp_path, 1)
        os.utime(tmp_path / f"state-{state}", (state, state))
    left = sorted(item.name for item in tmp_path.iterdir())
    assert len(left) == kept.STATES and "state-0" not in left and f"state-{kept.STATES + 2}" in left


def test_every_cell_has_a_file_of_its_own(tmp_path: Path) -> None:
    names = [item.name for item in (*cells.NULLS, *cells.ALTERNATIVES)]
    assert len({kept.file_name(name, 1, 10) for name in names}) == len(names)


def test_the_command_runs_a_cell_and_prints_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "QUICK_RUNS", 24)
    monkeypatch.setattr(program, "KEPT", tmp_path)
    monkeypatch.setattr(program, "write", lambda made: program.ROOT / "build" / "reports" / f"{made['name']}.json")
    done = CliRunner().invoke(program.main, ["--quick", "--only", "canary is dead"])
    assert done.exit_code == 0, done.output
    assert "| canary is dead | 5 | 3 |" in done.output and "7 of 7 bars held" in done.output
    assert CliRunner().invoke(program.main, ["--quick", "--only", "no such cell"]).exit_code == 2
