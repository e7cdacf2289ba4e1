"""Margins on live requests: how often a canary passes at its margin and beyond it, and how soon a healthy one does.

One weight, requests at a steady rate, a look at each reading for an hour. Units are sessions: whether the requests of
one share a fate makes no difference to what is counted.
"""

import math
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.judge_sim.intervals import wilson
from slipway_operator.judging import verdict as judging
from slipway_operator.model.analysis.spec import AnalysisSpec, MetricSpec
from slipway_operator.planning.analysis.runs import READ_S
from testkit.report import Bar

HOUR_S, STABLE_BAD, BATCH = 3600, 0.005, 500
EXTRA = MetricSpec("bad", event="BadResponse", share=1.0, max_extra=10)
RATE = MetricSpec("errors", share=1.0, ok_below=STABLE_BAD, max_ratio=1.0001)
BETA = AnalysisSpec(metrics=(EXTRA,)).false_promote_rate


@dataclass(frozen=True)
class Cell:
    """Canaries with so many bad responses per unit; `limit`: the part of them that may pass, None where they should."""

    name: str
    metric: MetricSpec
    bad: float
    rate: float
    weight: float = 0.5
    limit: float | None = None


@dataclass(frozen=True)
class MarginResult:
    """How many of the runs passed within the hour, and when, in seconds; infinite if never."""

    cell: Cell
    runs: int
    passed: int
    median_s: float
    p90_s: float


CELLS = (
    Cell("maxExtra 10, at the margin", EXTRA, STABLE_BAD + 0.01, 20, limit=0.05),
    Cell("maxExtra 10, at the margin, weight 5", EXTRA, STABLE_BAD + 0.01, 20, 0.05, limit=0.05),
    Cell("maxExtra 10, at twice the margin", EXTRA, STABLE_BAD + 0.02, 20, limit=0.005),
    Cell("okBelow at its limit", RATE, STABLE_BAD, 20, limit=0.05),
    Cell("maxExtra 10, healthy, 1 req/s", EXTRA, STABLE_BAD, 1),
    Cell("maxExtra 10, healthy, 5 req/s", EXTRA, STABLE_BAD, 5),
    Cell("maxExtra 10, healthy, 20 req/s", EXTRA, STABLE_BAD, 20),
    Cell("maxExtra 10, healthy, 20 req/s, weight 10", EXTRA, STABLE_BAD, 20, 0.1),
)


def result(cell: Cell, runs: int, seed: int) -> MarginResult:
    """Looks at each reading; stable has bad responses at its usual rate."""
    rng = np.random.default_rng([seed, zlib.crc32(cell.name.encode())])
    when = np.concatenate([_pass_s(rng, cell, min(BATCH, runs - first)) for first in range(0, runs, BATCH)])
    median, late = (float(np.quantile(when, part, method="higher")) for part in (0.5, 0.9))
    return MarginResult(cell, runs, int(np.isfinite(when).sum()), median, late)


def _pass_s(rng: np.random.Generator, cell: Cell, runs: int) -> npt.NDArray[np.float64]:
    shape = (runs, HOUR_S // READ_S)
    nc, ns = (rng.poisson(cell.rate * READ_S * part, shape) for part in (cell.weight, 1 - cell.weight))
    kc, ks = rng.binomial(nc, cell.bad), rng.binomial(ns, STABLE_BAD)
    sums = [counts.cumsum(axis=-1)[..., None] for counts in (nc, ns, kc, ks)]
    passed = judging.passes(cell.metric, judging.Tally(np.array([cell.weight]), *sums), BETA)
    return np.where(passed.any(axis=-1), (passed.argmax(axis=-1) + 1.0) * READ_S, np.inf)


def bar(found: MarginResult) -> Bar | None:
    """False passes: not held where the whole interval is above the limit. None of healthy canaries."""
    if found.cell.limit is None:
        return None
    part, low = found.passed / found.runs, wilson(found.passed, found.runs)[0]
    return Bar(f"false passes, {found.cell.name}", round(part, 5), f"<= {found.cell.limit:g}", low <= found.cell.limit)


def row(found: MarginResult) -> tuple[str, ...]:
    """Of the table for people."""
    low, high = (100 * end for end in wilson(found.passed, found.runs))
    passed = f"{100 * found.passed / found.runs:.2f} [{low:.2f}, {high:.2f}]"
    times = (f"{when:,.0f}" if math.isfinite(when) else "-" for when in (found.median_s, found.p90_s))
    return (found.cell.name, f"{found.runs:,}", passed, *times)
