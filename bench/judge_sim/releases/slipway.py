"""A release by Slipway: the functions that the operator calls, with one more axis, at each look of ten seconds.

The template is `llm-release` as it is built in. Bad responses and truncated ones happen on both sides by chance, and
latencies of a pair differ by chance alone; all responses of a kind are independent.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bench.judge_sim.releases.rows import (
    BAD,
    BAKE_S,
    LOOK_S,
    RAMP_S,
    SHADOW_S,
    Flags,
    Floats,
    Ints,
    Rng,
    Row,
    bad_of,
    generator,
)
from slipway_operator.judging.epochs import clock_epoch
from slipway_operator.judging.evidence import log_combined
from slipway_operator.judging.margins import paired
from slipway_operator.judging.margins.extra import extra_upper, live_bets, log_ipw_below, rate_upper, stakes
from slipway_operator.judging.margins.paired import FormerBad, PairCounts
from slipway_operator.judging.margins.ramp import WEIGHTS, least_weight, next_weight
from slipway_operator.judging.verdict import Tally, log_evidence
from slipway_operator.model.analysis.spec import AnalysisSpec
from slipway_operator.model.analysis.template import BUILT_IN
from slipway_operator.model.deployment.strategy import BAKE_WEIGHT, Ramp, TwinAnalysis

TRUNCATED = 0.02
SPREADS = {"ttft": (0.30, 0.15), "itl": (0.10, 0.10)}  # sd of ln(canary/twin), and the margin
SLOW = 0.025  # of each side alone above stable's quantile
FORMER = {"bad": FormerBad(100, 20_000), "truncated": FormerBad(400, 20_000)}
NAMES = ("bad", "truncated", "ttft", "itl", "ttft/tail", "itl/tail")
EPOCHS = clock_epoch(SHADOW_S) + 1
PLACES = np.array([*WEIGHTS, BAKE_WEIGHT])
EXACT, STEP = 100, 1.02  # units up to which bounds of live requests are exact, and steps of units above
THOUSAND = 1000


def _template() -> AnalysisSpec:
    spec = BUILT_IN["llm-release"].spec
    assert spec, "llm-release is built in"
    return spec


TEMPLATE = _template()
PAIRED = TEMPLATE.part(paired=True)
LIVE = next(metric for metric in TEMPLATE.part(paired=False).gating if metric.max_extra is not None)
LIVE_MARGIN = (LIVE.max_extra or 0) / THOUSAND
LIVE_BETS = live_bets(PLACES / 100, LIVE_MARGIN)
MAX_HARM = Ramp("llm-release").max_harm
# A shadow and the clients' responses each have half of falseRollbackRate.
AGAINST = math.log(2 / TEMPLATE.false_rollback_rate)
PROVED = math.log(1 / TEMPLATE.false_promote_rate)

# Bounds of a request by all that is known and by live requests alone, what is spent, and requests a second, to percent.
Weigh = Callable[[Floats, Floats, Floats, float], Ints]


def bounded(u: Floats, live: Floats, spent: Floats, rate: float) -> Ints:
    """The operator's rule, for each run."""
    found = [
        max(least_weight(one, paid, MAX_HARM, rate), next_weight(one, own, paid, MAX_HARM, rate))
        for one, own, paid in zip(u.tolist(), live.tolist(), spent.tolist(), strict=True)
    ]
    return np.array(found, dtype=np.int64)


@dataclass
class Released:
    """What became of releases, (runs,): seconds, infinite where it did not happen, and extra bad responses to users."""

    promoted_s: Floats  # all clients, or nearly all while it bakes
    released_s: Floats  # after the bake
    rejected_s: Floats
    harm: Floats  # before the promotion
    bake_harm: Floats
    spent: Floats  # of maxHarm; 0 of rules that know no such limit


@dataclass
class Shadows:
    """How twin shadows ended, (runs,)."""

    passed_s: Floats
    rejected_s: Floats
    bound: Floats  # extra bad responses for each request, proved when it passed


def released(
    row: Row,
    rate: float,
    first: int,
    seed: int,
    arrivals: Ints,
    shadows: Shadows,
    weigh: Weigh = bounded,
    *,
    unit_bad: float = BAD,
) -> Released:
    """A ramp and a bake after each shadow that passed. `unit_bad`: the rate of bad units of stable."""
    never = np.full(len(arrivals), np.inf)
    found = Released(
        never.copy(), never.copy(), shadows.rejected_s.copy(), *(np.zeros(len(arrivals)) for _ in range(3))
    )
    live = np.flatnonzero(np.isfinite(shadows.passed_s))
    if live.size:
        rng, chances = generator(f"ramp {row.name} {rate:g}", first, seed), (row.clients, unit_bad)
        ramps = _Ramps(rng, chances, rate, arrivals, shadows, live)
        ramps.run(weigh, found)
        ramps.bake(found)
    return found


# -- twin shadow


def shadowed(row: Row, rate: float, first: int, seed: int, arrivals: Ints) -> Shadows:
    """Shadows of canaries whose copies are worse by so much; rows with equal copies have the same shadows."""
    rng = generator(f"shadow {row.copies:g} {rate:g}", first, seed)
    runs = len(arrivals)
    passed, rejected, bound = np.full(runs, np.inf), np.full(runs, np.inf), np.ones(runs)
    at_pass = np.zeros((3, runs, EPOCHS))
    open_runs, counts = np.arange(runs), {name: np.zeros((3, runs, EPOCHS)) for name in NAMES}
    most = TwinAnalysis("llm-release").max_pairs_per_second * LOOK_S
    for seconds in range(LOOK_S, SHADOW_S + 1, LOOK_S):
        pairs = np.minimum(arrivals[open_runs, seconds // LOOK_S - 1], most)
        _count(rng, row.copies, seconds, pairs, counts)
        fails, passes = _judged(counts, seconds)
        passes &= ~fails
        rejected[open_runs[fails]] = passed[open_runs[passes]] = seconds
        at_pass[:, open_runs[passes]] = counts["bad"][:, passes]
        going = ~(fails | passes)
        if not going.all():
            open_runs, counts = open_runs[going], {name: each[:, going] for name, each in counts.items()}
        if not open_runs.size:
            break
    done = np.isfinite(passed)
    bound[done] = _bound(at_pass[:, done])
    return Shadows(passed, rejected, bound)


def _count(rng: Rng, extra: float, seconds: int, pairs: Ints, counts: dict[str, Floats]) -> None:
    """What happens in the seconds before a look: pairs, bad on canary alone, bad on its twin alone."""
    epoch = clock_epoch(seconds)
    for name, canary, twin in (("bad", BAD + extra, BAD), ("truncated", TRUNCATED, TRUNCATED)):
        alone = rng.binomial(pairs, canary * (1 - twin))
        # Given that canary is not bad alone, the twin is bad alone with this probability.
        other = rng.binomial(pairs - alone, twin * (1 - canary) / (1 - canary * (1 - twin)))
        counts[name][:, :, epoch] += (pairs, alone, other)
    for name, (spread, margin) in SPREADS.items() if seconds > PAIRED.min_samples.warmup_seconds else ():
        over = rng.binomial(pairs, 0.5 * math.erfc(math.log(1 + margin) / spread / math.sqrt(2)))
        counts[name][:, :, epoch] += (pairs, over, np.zeros_like(over))
        above = rng.binomial(pairs, SLOW)
        counts[f"{name}/tail"][:, :, epoch] += (pairs, above, rng.binomial(pairs - above, SLOW))


def _judged(counts: dict[str, Floats], seconds: int) -> tuple[Flags, Flags]:
    """Which shadows reject canary at this look, and which would pass."""
    seen = {name: PairCounts(*each[:, :, : clock_epoch(seconds) + 1]) for name, each in counts.items()}
    logs = np.stack([paired.log_against(metric, seen[metric.name]) for metric in PAIRED.metrics], axis=-1)
    fails = log_combined(logs, [metric.share for metric in PAIRED.metrics]) >= AGAINST
    passes = seen["bad"].pairs.sum(axis=-1) >= PAIRED.min_samples.pairs
    if seconds < PAIRED.min_samples.min_seconds:
        return fails, np.zeros_like(passes)
    for metric in PAIRED.metrics:
        tail, former = seen.get(f"{metric.name}/tail", seen[metric.name]), FORMER.get(metric.name, FormerBad())
        passes &= paired.log_within(metric, seen[metric.name], tail, former) >= PROVED
    return fails, passes


def _bound(counts: Floats) -> Floats:
    """As the operator takes it over to a ramp: half of falsePromoteRate, rounded up to a tenth per 1,000."""
    (metric,) = (metric for metric in PAIRED.gating if metric.name == "bad")
    bets = stakes(FORMER["bad"].rate, (metric.max_extra or 0) / THOUSAND)
    pairs, canary, twin = counts
    found = extra_upper(canary, twin, pairs, bets, TEMPLATE.false_promote_rate / 2)
    return np.ceil(10 * THOUSAND * found) / (10 * THOUSAND)


# -- ramp and bake


class _Ramps:
    """Ramps of the runs `live`; counts are of canary's and stable's units and bad ones, by weight."""

    def __init__(
        self, rng: Rng, chances: tuple[float, float], rate: float, arrivals: Ints, shadows: Shadows, live: Ints
    ) -> None:
        """`chances`: of an extra bad unit of canary, and of a bad one of stable."""
        self._rng, self._rate, self._arrivals = rng, rate, arrivals
        self._extra, self._bad = chances
        self._shadow_bound = shadows.bound
        self._begin = np.where(np.isfinite(shadows.passed_s), shadows.passed_s, 0).astype(np.int64) // LOOK_S
        self._live = live
        self._counts = np.zeros((4, len(arrivals), PLACES.size), dtype=np.int64)

    def run(self, weigh: Weigh, found: Released) -> None:
        """Until each passed, was rejected, has spent what it may, or its time is over."""
        going, bound = self._live, self._shadow_bound.copy()
        weight = np.full(len(bound), WEIGHTS[0])
        for look in range(1, RAMP_S // LOOK_S + 1):
            units, more = self._serve(going, self._begin[going] + look - 1, weight[going])
            found.harm[going] += more
            found.spent[going] += bound[going] * units
            seconds = (self._begin[going] + look) * float(LOOK_S)
            fails, passes = self._fails(going), self._passes(going)
            found.rejected_s[going[fails]] = seconds[fails]
            found.promoted_s[going[passes & ~fails]] = seconds[passes & ~fails]
            going = going[~fails & ~passes]
            if not going.size:
                return
            own = self._own_bound(going)
            bound[going] = np.minimum(self._shadow_bound[going], own)
            weight[going] = weigh(bound[going], own, found.spent[going], self._rate)
            going = going[weight[going] > 0]

    def bake(self, found: Released) -> None:
        """Those that passed, under the same test for rejection."""
        going = np.flatnonzero(np.isfinite(found.promoted_s))
        for look in range(1, BAKE_S // LOOK_S + 1):
            ended = found.promoted_s[going].astype(np.int64) // LOOK_S + look
            _, more = self._serve(going, ended - 1, np.full(going.size, BAKE_WEIGHT))
            found.bake_harm[going] += more
            fails = self._fails(going)
            found.rejected_s[going[fails]] = ended[fails] * float(LOOK_S)
            going = going[~fails]
            if not going.size:
                return
        found.released_s[going] = found.promoted_s[going] + BAKE_S

    def _serve(self, going: Ints, look: Ints, weight: Ints) -> tuple[Ints, Ints]:
        """Requests that canary gets before a look, and its extra bad responses."""
        requests = self._arrivals[going, look]
        canary = self._rng.binomial(requests, weight / 100)
        bad, more = bad_of(self._rng, canary, self._extra, self._bad)
        stable_bad = self._rng.binomial(requests - canary, self._bad)
        place = np.searchsorted(PLACES, weight)
        self._counts[:, going, place] += np.stack([canary, requests - canary, bad, stable_bad])
        return canary, more

    def _fails(self, going: Ints) -> Flags:
        canary_units, stable_units, canary_bad, stable_bad = self._counts[:, going]
        found = log_evidence(LIVE, Tally(PLACES / 100, canary_units, stable_units, canary_bad, stable_bad)) + math.log(
            LIVE.share
        )
        return np.asarray(found >= AGAINST)

    def _passes(self, going: Ints) -> Flags:
        canary_units, stable_units, canary_bad, stable_bad = self._counts[:, going]
        found = log_ipw_below(canary_bad, stable_bad, canary_units + stable_units, PLACES / 100, LIVE_MARGIN, LIVE_BETS)
        return np.asarray((found >= PROVED) & (canary_units.sum(axis=-1) >= TEMPLATE.min_samples.canary_requests))

    def _own_bound(self, going: Ints) -> Floats:
        units, bad = self._counts[0, going].sum(axis=-1), self._counts[2, going].sum(axis=-1)
        return np.array([_rate_upper(k, n) for k, n in zip(bad.tolist(), units.tolist(), strict=True)])


def _rate_upper(bad: int, units: int) -> float:
    """The bound by live requests alone. Above EXACT units it is that of up to 2 % fewer, so that few are computed: it
    is a little too high, never too low."""
    if not units:
        return 1.0
    if units > EXACT:
        units = int(EXACT * STEP ** math.floor(math.log(units / EXACT, STEP)))
    return _cached_upper(min(bad, units), units)


@functools.lru_cache(100_000)
def _cached_upper(bad: int, units: int) -> float:
    found = float(rate_upper(bad, units, TEMPLATE.false_promote_rate / 2))
    return min(1.0, math.ceil(1e4 * found) / 1e4)
