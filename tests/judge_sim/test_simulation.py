"""The simulation in small: moments of its traffic, the peers' rules, and a run from end to end."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from bench.judge_sim import __main__ as program
from bench.judge_sim import cells, ours, peers, plot, report
from bench.judge_sim.latencies import SLOW, Shape, slow
from bench.judge_sim.running import OURS, TUNED_RULE, alternative_result, null_result
from bench.judge_sim.traffic import CANARY, METRICS, STABLE, Plan, Traffic, draw


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


@pytest.mark.parametrize("icc", [0.0, 0.3])
def test_bad_sessions_are_as_many_as_the_correlation_says(icc: float) -> None:
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
        made = cells.null_plan(np.random.default_rng(4), null, 0, 72, cells.SCHEDULES[0])
        after = made.bad[:, :, :, cells.WARMUP_S // 10 :]
        assert np.allclose(after[CANARY], after[STABLE]) == null.gated
        assert made.bad.min() >= 0 and made.bad.max() < 1


def minutes(canary_bad: list[int], requests: int = 100) -> Traffic:
    """One run at weight 50 with these bad canary requests in its minutes, and nothing else."""
    size = len(canary_bad)
    shape = (2, len(METRICS), 1, size)
    counts, bad = np.full(shape, requests), np.zeros(shape, dtype=np.int64)
    bad[CANARY, 0, 0] = canary_bad
    base = replace(
        plan(1.0, 0.0, runs=1), steps=((50, size),), bad=np.full((2, len(METRICS), 1, size * 6), 0.001), warmup_s=0
    )
    empty = np.zeros((2, 1, 0), dtype=np.int64)
    return Traffic(base, empty, empty, counts, bad, np.zeros((2, 2, 1, size)))


def test_flagger_adds_up_failed_checks_and_counts_missing_data_as_failed() -> None:
    traffic = minutes([2, 0, 2, 0, 2, 1])
    assert peers.flagger(traffic, 3)[0] == 5 * 60
    assert np.isinf(peers.flagger(traffic, 4)[0])
    assert peers.flagger(minutes([0, 0, 0], requests=0), 2)[0] == 2 * 60


def test_argo_tolerates_as_many_failures_as_its_limit_says() -> None:
    traffic = minutes([0, 2, 0, 2, 2])
    assert peers.argo(traffic, 0)[0] == 2 * 60
    assert peers.argo(traffic, 2)[0] == 5 * 60
    assert np.isinf(peers.argo(traffic, 3)[0])
    assert np.isinf(peers.argo(minutes([0, 0], requests=0), 0)[0])


def test_kayenta_looks_every_five_minutes() -> None:
    traffic = minutes([30] * 12)
    assert peers.kayenta_often(traffic)[0] == 5 * 60
    assert peers.kayenta_once(traffic)[0] == 12 * 60
    assert np.isinf(peers.kayenta_once(minutes([0] * 12))[0])


def test_z_and_msprt_find_a_gross_difference() -> None:
    traffic = minutes([40] * 5)
    assert peers.z_test(traffic)[0] == 60
    assert peers.msprt(traffic)[0] <= 5 * 60
    assert np.isinf(peers.z_test(minutes([0] * 5))[0])


def test_tuned_rules_reject_as_many_healthy_canaries_as_they_were_told() -> None:
    cell = cells.ALTERNATIVES[1]
    healthy, _ = cells.alternative_plan(np.random.default_rng(6), cell, 200, regressed=False)
    traffic = draw(np.random.default_rng(7), healthy)
    rates = healthy.bad[STABLE, :, 0, 0]
    for rule in peers.tuned_rules(traffic, rates, 0.05):
        assert np.isfinite(peers.by_rule(rule, traffic, rates)).mean() <= 0.05


def test_a_restart_changes_no_bit_and_a_lost_count_does() -> None:
    rng = np.random.default_rng(8)
    traffic = draw(rng, cells.null_plan(rng, cells.NULLS[0], 0, 24, cells.SCHEDULES[0]))
    before = ours.decide(traffic)
    assert ours.restarted(rng, traffic, before) == 0
    traffic.bad_units[:, 1, :, 900] += 1
    assert ours.restarted(rng, traffic, before) == 24


def test_wilsons_interval() -> None:
    assert report.wilson(100, 10_000) == pytest.approx((0.00823, 0.01215), abs=2e-5)
    assert report.wilson(0, 200)[0] == 0
    assert report.wilson(0, 200)[1] == pytest.approx(0.01885, abs=1e-4)


def test_a_small_run_keeps_to_its_bars_and_a_spoilt_one_does_not() -> None:
    null = null_result(cells.NULLS[0], 72, 1, silent)
    dead = alternative_result(cells.ALTERNATIVES[0], 40, 1, silent)
    outcome = report.Outcome([null], [dead], 1, 1.0)
    made = report.bars(outcome)
    assert all(bar.ok for bar in made), [bar for bar in made if not bar.ok]
    assert dead.judges[OURS].median_s < 20
    assert dead.judges[OURS].harm < dead.judges[TUNED_RULE].harm
    page = report.markdown(outcome, made)
    assert "| canary is dead |" in page and "| nothing happens |" in page
    json.dumps(report.as_json(outcome, made, {}, "test"), allow_nan=False)
    assert plot.points(outcome)[OURS][0] <= 1.4
    null.rollbacks[OURS] = 5
    assert not all(bar.ok for bar in report.bars(outcome))


def test_the_command_runs_a_cell_and_says_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "QUICK_RUNS", 24)
    monkeypatch.setattr(program, "write", lambda made, root: root / "build" / "reports" / f"{made['name']}.json")
    done = CliRunner().invoke(program.main, ["--quick", "--only", "canary is dead"])
    assert done.exit_code == 0, done.output
    assert "| canary is dead | 5 | 3 |" in done.output and "6 of 6 bars held" in done.output
    assert CliRunner().invoke(program.main, ["--quick", "--only", "no such cell"]).exit_code == 2
