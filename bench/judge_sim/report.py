"""The figures of a simulation: bars, tables for people, and build/reports/judge-sim.json."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.judge_sim import margins, peers
from bench.judge_sim.cells import ALTERNATIVE_RATE
from bench.judge_sim.intervals import wilson
from bench.judge_sim.releases import section
from bench.judge_sim.releases.figures import Figures
from bench.judge_sim.releases.half_hour import HalfHour
from bench.judge_sim.running import (
    OURS,
    RESTART,
    TUNED_KAYENTA,
    TUNED_RULE,
    AlternativeResult,
    Detection,
    NullResult,
    cap_s,
)
from bench.judge_sim.tables import bar_table, table
from slipway_operator.planning.analysis.runs import READ_S
from testkit.report import Bar, report

Json = dict[str, Any]

MOST_ROLLBACKS, MOST_UPPER = 0.01, 0.013
FEWEST_RUNS = 2000  # for an upper limit to mean anything: 0 of 200 has one of 1.9 %
FASTER, DEAD_REQUESTS = 2.0, 10
KAYENTAS = (peers.ONCE, peers.OFTEN, TUNED_KAYENTA)
# No peer sees mirrored prompts, so there is nothing to compare.
UNSEEN = "drift"


@dataclass(frozen=True)
class Outcome:
    """All that was simulated."""

    nulls: Sequence[NullResult]
    alternatives: Sequence[AlternativeResult]
    seed: int
    bounded: Sequence[margins.MarginResult] = ()
    releases: Sequence[Figures] = ()
    half_hours: Sequence[HalfHour] = ()

    @property
    def cpu_s(self) -> float:
        """Of one core, over all cells, whenever they were computed."""
        return sum(item.cpu_s for item in self.nulls) + sum(item.cpu_s for item in self.alternatives)


def bars(outcome: Outcome) -> list[Bar]:
    """One for each figure that the simulation promises: it is not held where more than chance is against it."""
    return [*_bars_of_judges(outcome), *section.bars(outcome.releases, outcome.half_hours)]


def _bars_of_judges(outcome: Outcome) -> list[Bar]:
    found = [bar for item in outcome.nulls for bar in _null_bars(item)]
    found += [made for item in outcome.bounded if (made := margins.bar(item))]
    seen = [item for item in outcome.alternatives if is_held(item)]
    for name in KAYENTAS if seen else ():
        ratios, highest = [times_faster(item, name) for item in seen], [most_times_faster(item, name) for item in seen]
        title = f"times faster than {name}, geometric mean"
        found.append(_at_least(title, _geometric_mean(ratios), FASTER, _geometric_mean(highest)))
    for item in seen:
        ratio, highest_ratio = times_faster(item, peers.ONCE), most_times_faster(item, peers.ONCE)
        title = f"times faster than {peers.ONCE}, {item.cell.name}"
        found += [_at_least(title, ratio, FASTER, highest_ratio), _harm_bar(item)]
    for item in outcome.alternatives:
        if item.evidence_requests is not None and not item.cell.beside:
            label = f"canary requests, {item.cell.name}"
            found.append(_at_most(f"{label}, evidence in 99 of 100 runs", item.evidence_requests, DEAD_REQUESTS))
            found.append(_at_most(f"{label}, rolled back, median", item.judges[OURS].requests, DEAD_REQUESTS))
    return found


def is_held(item: AlternativeResult) -> bool:
    """Whether a cell is measured against the others: they see it too, and it is not there for what a baseline costs."""
    return item.cell.metric != UNSEEN and not item.cell.beside


def _null_bars(item: NullResult) -> list[Bar]:
    found: list[Bar] = []
    hits, name = item.rollbacks[OURS], f"false rollbacks, {item.null.name}"
    if item.null.gated:
        found.append(_at_most(name, hits / item.runs, MOST_ROLLBACKS, wilson(hits, item.runs)[0]))
        if item.runs >= FEWEST_RUNS:
            found.append(_at_most(f"{name}, upper limit", wilson(hits, item.runs)[1], MOST_UPPER))
    if item.null.name == RESTART:
        found.append(Bar("verdicts that a restart changed", item.differing, "0", item.differing == 0))
    return found


def _harm_bar(item: AlternativeResult) -> Bar:
    """Not held only where the difference is more than chance explains.

    The rule is tuned to the upper end of the interval of what ours rejects of healthy ones, and what it serves depends
    on that. So ours has to serve more than the rule at both ends, and by more than the intervals of the means.
    """
    mine, theirs = item.judges[OURS], item.judges[TUNED_RULE]
    limit, error = f"< {theirs.harm:.1f} of the best tuned rule", math.hypot(mine.harm_error, theirs.harm_error)
    most = max(theirs.harm, item.strict_harm)
    if abs(mine.harm - theirs.harm) <= error:
        limit += f"; a tie, the difference is within ± {error:.1f}"
    elif theirs.harm < mine.harm <= most + error:
        limit += f"; a tie, the best one tuned to the lower end of what Slipway rejects serves {most:.1f} ± {error:.1f}"
    return Bar(f"bad responses, {item.cell.name}", round(mine.harm, 1), limit, mine.harm <= most + error)


def _at_most(name: str, value: float, limit: float, low: float | None = None) -> Bar:
    """`low`: the lower end of the value's interval. The bar is not held only where even that is above the limit."""
    return Bar(name, round(value, 5), f"<= {limit:g}", (value if low is None else low) <= limit)


def _at_least(name: str, value: float, limit: float, high: float | None = None) -> Bar:
    """`high`: the upper end of the value's interval, as above."""
    return Bar(name, round(value, 2), f">= {limit:g}", (value if high is None else high) >= limit)


def times_faster(item: AlternativeResult, judge: str) -> float:
    """Ratio of the median times to detection; never counts as the end of the run, for both."""
    cap = cap_s(item)
    mine, theirs = (min(item.judges[name].median_s, cap) for name in (OURS, judge))
    return theirs / mine


def most_times_faster(item: AlternativeResult, judge: str) -> float:
    """The same at those ends of both medians' intervals that favour ours."""
    cap = cap_s(item)
    return min(item.judges[judge].median_high_s, cap) / min(item.judges[OURS].median_low_s, cap)


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


# -- for people


def markdown(outcome: Outcome, made: Sequence[Bar]) -> str:
    held = sum(bar.ok for bar in made)
    parts = [
        "# Simulated canaries",
        "Written by `make judge-sim`; how it is done and what it means: [docs/judge.md](../docs/judge.md). Seed "
        f"{outcome.seed}; {outcome.cpu_s:.0f} s of one core. {held} of {len(made)} bars held"
        + ("." if held == len(made) else ": those that did not are at the end."),
        "## Healthy canaries: how many are rolled back",
        null_table(outcome.nulls),
        "Half an hour each; 1, 10 or 100 requests a second, errors of 0.1, 0.5 or 2 %, four shapes of latency, "
        "sessions of six requests on average with a correlation of 0 or 0.3, weights 5-25-50 or 50, all mixed evenly. "
        "In brackets: Wilson's 95 % interval. *Beside a baseline*: canary is compared with a fresh pod of stable that "
        "has its weight, 5-25-40 or 25. *Not gated*: what is worse for another reason than the version, or split "
        "among five keys; and latencies of sessions of which each request counts, which are not independent throws of "
        f"a coin. Slipway looks every {READ_S} s, as the operator reads.",
        "## The same, at each rate of requests",
        rate_table(outcome.nulls),
        "## Bad canaries: how soon they are found",
        detection_table(outcome.alternatives),
        f"{ALTERNATIVE_RATE:g} requests a second, one hour, the weight of the row all the time. Seconds are median and "
        "90th percentile over all runs, so that a miss counts as never (-); in brackets 95 % intervals. *Expected* is "
        f"Wald's formula for a judge that looks at each request; ours reads every {READ_S} s.",
        "## Bad canaries: every judge",
        judges_table(outcome.alternatives),
        "Median seconds to rollback, part of the runs that were rolled back, and bad responses that users got "
        "meanwhile (mean over all runs, to the end of the hour where it was missed). In *later* rows, rollbacks before "
        "anything was wrong count as neither. *Tuned* ones have the limits with which they reject the part of healthy "
        "canaries that is named, found from as many healthy runs of that very row: what Slipway rejects of these "
        "(the upper end of its 95 % interval), or 1 % if that is less. Threshold rules know stable's true rates "
        "besides, and of 18 the one that served least is shown. ± is half of the 95 % interval of the mean.",
        "## Margins on live requests",
        table(("canary", "runs", "passed in an hour, %", "median, s", "p90, s"), [*map(margins.row, outcome.bounded)]),
        "Stable has 0.5 % of bad responses; weight 50 where none is named; a look at each reading, for an hour. No "
        "warm-up and no minimum of samples: these come on top. Beyond the margin no canary should pass.",
        *(
            [section.markdown(outcome.releases, outcome.half_hours, outcome.seed).rstrip()]
            if outcome.releases
            else []
        ),
        "## Bars",
        bar_table(made[: len(made) - len(section.bars(outcome.releases, outcome.half_hours))]),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def null_table(results: Sequence[NullResult]) -> str:
    names = [OURS, *peers.JUDGES]
    rows = []
    for item in results:
        low, high = wilson(item.rollbacks[OURS], item.runs)
        name = item.null.name + ("" if item.null.gated else " (*not gated*)")
        mine = f"**{_percent(item.rollbacks[OURS] / item.runs)}** [{_percent(low)}, {_percent(high)}]"
        others = [_percent(item.rollbacks[judge] / item.runs) for judge in names[1:]]
        rest = [_percent(item.passed / item.runs), _percent(item.undecided / item.runs)]
        rows.append((name, f"{item.runs:,}", mine, *rest, *others))
    return table(
        ("null", "runs", f"{OURS}, %", "passed, %", "undecided, %", *(f"{name}, %" for name in names[1:])), rows
    )


def rate_table(results: Sequence[NullResult]) -> str:
    rates = sorted({rate for item in results for rate in item.by_rate}, key=float)
    rows = []
    for item in results:
        found = [item.by_rate.get(rate, (0, 0)) for rate in rates]
        rows.append((item.null.name, *(_interval(hits, runs) for hits, runs in found)))
    return table(("null", *(f"{rate}/s, %" for rate in rates)), rows)


def detection_table(results: Sequence[AlternativeResult]) -> str:
    titles = ("regression", "weight", "expected, s", "median, s", "p90, s", "canary requests", "missed, %",
              "early, %", "passed first, %")  # fmt: skip
    return table(titles, [_detection_row(item) for item in results])


def _detection_row(item: AlternativeResult) -> tuple[str, ...]:
    mine = item.judges[OURS]
    low, high = _seconds(mine.median_low_s), _seconds(mine.median_high_s)
    missed, early = (round(part * item.runs) for part in (1 - mine.detected - mine.early, mine.early))
    return (
        item.cell.name,
        str(item.cell.weight),
        "" if item.cell.expected_s is None else f"{item.cell.expected_s:g}",
        f"{_seconds(mine.median_s)} [{low}, {high}]",
        _seconds(mine.p90_s),
        _seconds(mine.requests),
        _interval(missed, item.runs),
        _interval(early, item.runs) if item.cell.late else "",
        _percent(item.passed),
    )


def judges_table(results: Sequence[AlternativeResult]) -> str:
    names = list(results[0].judges) if results else []
    rows = [
        (item.cell.name, _percent(item.tuned_to), *(_fared(item.judges[name]) for name in names)) for item in results
    ]
    return table(("regression", "tuned to, %", *names), rows)


def _fared(found: Detection) -> str:
    early = f", {_percent(found.early)} % early" if found.early > 0 else ""
    digits = 1 if found.harm < 100 else 0
    harm = f"{found.harm:,.{digits}f} ± {found.harm_error:,.{digits}f} bad"
    return f"{_seconds(found.median_s)} s, {_percent(found.detected)} %, {harm}{early}"


def _interval(hits: int, runs: int) -> str:
    low, high = wilson(hits, runs)
    return f"{_percent(hits / max(runs, 1))} [{_percent(low)}, {_percent(high)}]"


def _percent(value: float) -> str:
    return f"{100 * value:.2f}" if 0 < value < 0.1 else f"{100 * value:.0f}"


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else "-"


def as_json(outcome: Outcome, made: Sequence[Bar]) -> Json:
    """For build/reports/judge-sim.json; infinite times are left out."""
    nulls = [
        {"null": item.null.name, "runs": item.runs, "rollbacks": item.rollbacks, "passed": item.passed,
         "undecided": item.undecided, "by_rate": item.by_rate}
        for item in outcome.nulls
    ]  # fmt: skip
    alternatives = [
        {"regression": item.cell.name, "runs": item.runs, "judge": name, "passed_first": item.passed,
         "tuned_to": item.tuned_to,
         **{key: value for key, value in asdict(found).items() if math.isfinite(value)}}
        for item in outcome.alternatives
        for name, found in item.judges.items()
    ]  # fmt: skip
    settings = {"seed": outcome.seed, "cpu_s": round(outcome.cpu_s, 1)}
    rows = [*nulls, *alternatives, *section.as_rows(outcome.releases)]
    return report("judge-sim", rows, made, settings=settings)
