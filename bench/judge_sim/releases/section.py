"""Bars and tables of simulated releases: the section "Whole releases" of the page."""

import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bench.judge_sim.intervals import wilson
from bench.judge_sim.releases import half_hour
from bench.judge_sim.releases.figures import RULES, Figures, Mean, Time
from bench.judge_sim.releases.half_hour import HalfHour
from bench.judge_sim.releases.rows import AT_MARGIN, BAD, BAKE_S, HEALTHY, LIVE_DEAD, MARGIN, SHADOW_S, TWICE, Row
from bench.judge_sim.releases.slipway import MAX_HARM
from bench.judge_sim.running import OURS
from bench.judge_sim.tables import bar_table, table
from testkit.report import Bar

TITLE, BEFORE = "## Whole releases", "## Bars"
AT_MARGIN_PASS, TWICE_PASS, FALSE_REJECTION, BEYOND = 0.05, 0.005, 0.01, 0.05
HARMED, LIVE_HARM = 0.1, 20
HALF_HOURS = (
    "Where requests belong to sessions, a session is one pair in each epoch of a shadow, and one unit of a ramp, which "
    "is bad if one of its requests is: few sessions take longer."
)
MINUTES = {1.0: (20, 35), 5.0: (7, 10)}  # to the promotion of a healthy canary: median and p90


def bars(found: Sequence[Figures], halves: Sequence[HalfHour] = ()) -> list[Bar]:
    """What Slipway promises of releases: not held where the whole interval is on the wrong side."""
    mine = [item for item in found if item.rule == OURS]
    made = [bar for item in mine for bar in _bars(item)]
    if mine:
        spent = max(item.most_spent for item in mine)
        made.append(Bar("spent of maxHarm, most of all releases", round(spent, 1), f"<= {MAX_HARM}", spent <= MAX_HARM))
        worst = max(mine, key=lambda item: wilson(item.beyond, item.runs)[0])
        name = f"releases with more extra bad responses than maxHarm, most of all rows ({_where(worst)})"
        made.append(_share(name, worst.beyond, worst.runs, BEYOND))
    return [*made, *half_hour.bars(halves)]


def _bars(item: Figures) -> list[Bar]:
    at, made = _where(item), []
    passes = {HEALTHY.name: 1.0, AT_MARGIN.name: AT_MARGIN_PASS, TWICE.name: TWICE_PASS}
    if item.row.shown and not item.row.healthy:
        limit = passes.get(item.row.name, TWICE_PASS)
        made.append(_share(f"promoted, {at}", item.promoted, item.runs, limit))
    if item.row.healthy:
        made.append(_share(f"rejected, {at}", item.rejected, item.runs, FALSE_REJECTION))
        if item.rate in MINUTES:
            made += _in_time(item, *MINUTES[item.rate])
    if item.row.shown and item.row.clients >= 2 * MARGIN:
        made.append(_mean(f"extra bad responses before the promotion, {at}", item.harm, HARMED))
    if item.row == LIVE_DEAD:
        made.append(_mean(f"extra bad responses before the promotion, {at}", item.harm, LIVE_HARM))
    return made


def _where(item: Figures) -> str:
    return f"{item.row.name}, {item.rate:g} req/s"


def _share(name: str, hits: int, runs: int, limit: float) -> Bar:
    return Bar(name, round(hits / runs, 5), f"<= {limit:g}", wilson(hits, runs)[0] <= limit)


def _mean(name: str, found: Mean, limit: float) -> Bar:
    return Bar(name, round(found.value, 2), f"<= {limit:g}", found.value - found.error <= limit)


def _in_time(item: Figures, median_min: float, p90_min: float) -> list[Bar]:
    time, at = item.to_promotion, f"{item.rate:g} req/s, minutes"
    return [
        Bar(f"healthy promoted, median, {at}", _minutes(time.median), f"<= {median_min:g}",
            time.median_low <= 60 * median_min),
        Bar(f"healthy promoted, p90, {at}", _minutes(time.p90), f"<= {p90_min:g}", time.p90_low <= 60 * p90_min),
    ]  # fmt: skip


def _minutes(seconds: float) -> float:
    """-1 where it never came: a report has no infinite numbers."""
    return round(seconds / 60, 1) if math.isfinite(seconds) else -1.0


# -- for people


def markdown(found: Sequence[Figures], halves: Sequence[HalfHour], seed: int) -> str:
    made, runs = bars(found, halves), max(item.runs for item in found)
    missed = [bar for bar in made if not bar.ok]
    parts = [
        TITLE,
        f"{runs:,} releases of each kind at each rate, seed {seed}; `python -m bench.judge_sim --releases` writes this "
        f"section alone. {len(made) - len(missed)} of {len(made)} bars of releases held.",
        our_table(found),
        f"Slipway with `llm-release` and its defaults: a twin shadow (for an hour at most), the ramp with `maxHarm: "
        f"{MAX_HARM}`, and {BAKE_S // 60} minutes at weight 90. Stable has {1000 * BAD:g} bad responses per 1,000, "
        "canary so many more; *clients only*: copies do not show them. Minutes are median, p90 over all releases, so "
        "that one that is not promoted counts as never (-); *promoted* is the pass of the ramp, *released* the end of "
        "the bake. Extra bad responses are what clients got because of canary: mean ± half of its 95 % interval, and "
        "what 95 % of the releases stay below; those in the bake are of releases that baked. *Spent* is the most of "
        "any release. Neither promoted nor rejected: undecided when the time was over, and left to a person.",
        *([half_hour.half_hour_table(halves), HALF_HOURS] if halves else []),
        "### The same requests, by others",
        others_table(found),
        "Promoted; minutes to that, median (-: in fewer than half); extra bad responses before the promotion, and "
        "within two hours, whatever was decided (mean). Each rule as it is documented: a timer of 5-25-50 %, ten "
        "minutes each; Argo Rollouts with these steps and a success rate of 0.95 each minute, failureLimit 3; Flagger "
        "with interval 1m, threshold 5, stepWeight 10, maxWeight 50 and a success rate of 99 %; Kayenta with 50 points "
        "of a minute, against a baseline of the same size, 10 % each; mSPRT at 1 % during the timer's steps. They see "
        "clients' responses alone, look each minute, and lose no time between a failed check and the rollback.",
        "### Bars of releases",
        bar_table(made),
        "A promise is not held where the whole 95 % interval is beyond its limit. "
        f"{SHADOW_S // 60} minutes are the limit of the shadow here; a step's default is 30.",
    ]
    return "\n\n".join(parts) + "\n"


def our_table(found: Sequence[Figures]) -> str:
    titles = ("canary", "req/s", "promoted, %", "minutes", "released, %", "minutes", "rejected, %", "after, s",
              "extra bad before", "95 %", "in the bake", "95 %", "spent")  # fmt: skip
    return table(titles, [_our_row(item) for item in found if item.rule == OURS])


def _our_row(item: Figures) -> tuple[str, ...]:
    baked = (_amount(item.bake_harm), f"{item.bake_harm.high:,.0f}") if item.promoted else ("", "")
    return (
        item.row.name, f"{item.rate:g}", _percent(item.promoted, item.runs), _times(item.to_promotion),
        _percent(item.released, item.runs), _times(item.to_release), _percent(item.rejected, item.runs),
        "" if math.isnan(item.rejected_s) else f"{item.rejected_s:,.0f}",
        _amount(item.harm), f"{item.harm.high:,.0f}", *baked, f"{item.most_spent:.1f}",
    )  # fmt: skip


def others_table(found: Sequence[Figures]) -> str:
    cells = {(item.row, item.rate, item.rule): item for item in found}
    lines: list[tuple[Row, float]] = list(dict.fromkeys((item.row, item.rate) for item in found))
    rows = [(row.name, f"{rate:g}", *(_fared(cells[row, rate, rule]) for rule in RULES)) for row, rate in lines]
    return table(("canary", "req/s", *RULES), rows)


def _fared(item: Figures) -> str:
    # Nine of ten releases that are not there are no news: the median says when those are promoted that are.
    median = item.to_promotion.median
    time = f"{median / 60:.0f} min" if math.isfinite(median) else "-"
    return f"{_percent(item.promoted, item.runs)} %, {time}, {_plain(item.harm.value)}, {_plain(item.two_hours)}"


def _percent(hits: int, runs: int) -> str:
    part = 100 * hits / runs
    return f"{part:.1f}" if 0 < part < 10 or 90 < part < 100 else f"{part:.0f}"


def _times(found: Time) -> str:
    return ", ".join(f"{item / 60:.1f}" if math.isfinite(item) else "-" for item in (found.median, found.p90))


def _amount(found: Mean) -> str:
    return f"{_plain(found.value)} ± {_plain(found.error)}" if found.value else "0"


def _plain(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:.2f}" if value < 0.1 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def inserted(page: str, section: str) -> str:
    """A page with this section in place of the one that it had, else before its bars."""
    old = re.search(rf"^{TITLE}\n.*?(?=^## |\Z)", page, flags=re.MULTILINE | re.DOTALL)
    if old:
        return page[: old.start()] + section + ("\n" if page[old.end() :] else "") + page[old.end() :]
    head, mark, rest = page.partition(f"{BEFORE}\n")
    return f"{head}{section}\n{mark}{rest}" if mark else f"{page}\n{section}"


def as_rows(found: Sequence[Figures]) -> list[dict[str, Any]]:
    """For the report; infinite times are left out."""
    return [
        {"release": item.row.name, "rate": item.rate, "rule": item.rule, "runs": item.runs,
         "promoted": item.promoted, "released": item.released, "rejected": item.rejected,
         "minutes": _minutes(item.to_promotion.median), "minutes_p90": _minutes(item.to_promotion.p90),
         "harm": asdict(item.harm), "bake_harm": asdict(item.bake_harm), "two_hours": item.two_hours,
         "most_spent": item.most_spent, "beyond": item.beyond}
        for item in found
    ]  # fmt: skip
