"""From the rows: bars, tables for people, and build/reports/operator.json (pure)."""

import math
from collections.abc import Callable, Sequence

from bench.operator.fleet import Json
from testkit.report import Bar, quantile

COLD_LIMIT_S = {False: 30.0, True: 60.0}  # of a thousand, by whether there are pods
APPLY_LIMIT_S, RSS_LIMIT_MB = 1.0, 250.0
REFERENCE, LARGEST = 1000, 5000
MOST_GROWTH = 1.2  # 1 is linear, 2 quadratic
_KINDS = {False: "without pods", True: "with pods"}


def finished(row: Json) -> Json:
    """A measured row as it is kept: quantiles in place of a thousand times."""
    taken = row["apply_s"]
    kept = {name: value for name, value in row.items() if name != "apply_s"}
    shares = {"apply_p50_s": 0.5, "apply_p99_s": 0.99, "apply_max_s": 1.0}
    rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in kept.items()}
    per_reconcile = row["calls_total"] / max(row["reconciles"], 1)
    return rounded | {name: round(quantile(taken, share), 3) for name, share in shares.items()} | {
        "calls_per_reconcile": round(per_reconcile, 2)
    }  # fmt: skip


def growth(rows: Sequence[Json], pods: bool) -> float:
    """The exponent of the time from cold between a thousand and five: 1 is linear; nan where one is missing."""
    times = {row["deployments"]: row["cold_s"] for row in rows if row["pods"] is pods}
    if REFERENCE not in times or LARGEST not in times:
        return math.nan
    return math.log(times[LARGEST] / times[REFERENCE]) / math.log(LARGEST / REFERENCE)


def bars(rows: Sequence[Json]) -> list[Bar]:
    """One for each promise that the rows have a measure of."""
    found: list[Bar] = []
    for row in rows:
        what = f"{row['deployments']:,} {_KINDS[row['pods']]}"
        found.append(_at_most(f"children missing, {what}", row["missing_children"], 0))
        found.append(_at_most(f"changes without an apply, {what}", row["unanswered_changes"], 0))
        if row["deployments"] <= REFERENCE:
            found.append(_below(f"from cold, {what}, s", row["cold_s"], COLD_LIMIT_S[row["pods"]]))
            found.append(_below(f"event to apply, p99, {what}, s", row["apply_p99_s"], APPLY_LIMIT_S))
            found.append(_below(f"peak RSS, {what}, MB", row["peak_rss_mb"], RSS_LIMIT_MB))
        if analyses := row.get("analyses"):
            # Each run once in 10 s, and the status that names it; a tenth more for what changes a verdict.
            most = 2 * analyses / 10 * 1.1
            writes = row["analysis_writes_per_s"]
            found.append(_below(f"writes a second, {analyses} analyses, {what}", writes, round(most, 1)))
        if row["deployments"] == LARGEST:
            found.append(Bar(f"{what} finish", True, "all are as expected", True))
    for pods, kind in _KINDS.items():
        if not math.isnan(exponent := growth(rows, pods)):
            found.append(_below(f"growth of the time from cold, {kind}, exponent", round(exponent, 2), MOST_GROWTH))
    return found


def _below(name: str, value: float, limit: float) -> Bar:
    return Bar(name, value, f"< {limit:g}", value < limit)


def _at_most(name: str, value: int, limit: int) -> Bar:
    return Bar(name, value, f"<= {limit}", value <= limit)


def markdown(rows: Sequence[Json], made: Sequence[Bar], machine: Json, version: str, day: str) -> str:
    """The page."""
    head = (
        "# How many ModelDeployments one operator manages",
        f"`make bench-operator`, {day}, {version}: {machine['cores']} cores ({machine['cpu']}), "
        f"{machine['memory_gib']} GiB, shared by API server, etcd, controllers, operator and the measuring. "
        "[What is measured and how](../docs/bench.md#the-operator).",
        "![Time from cold and memory against the number of ModelDeployments](../docs/pictures/bench-operator.png)",
    )
    return "\n\n".join([*head, _table(rows), _calls(rows), _bar_table(made)]) + "\n"


_COLUMNS: tuple[tuple[str, Callable[[Json], str]], ...] = (
    ("ModelDeployments", lambda row: f"{row['deployments']:,}"),
    ("pods", lambda row: "yes" if row["pods"] else "no"),
    ("from cold, s", lambda row: f"{row['cold_s']:.1f}"),
    ("operator's CPU meanwhile, s", lambda row: f"{row['cold_cpu_s']:.1f}"),
    ("event to apply p50 / p99 / max, s", lambda row: " / ".join(
        f"{row[f'apply_{name}_s']:.3f}" for name in ("p50", "p99", "max")
    )),
    ("peak RSS, MB", lambda row: f"{row['peak_rss_mb']:.0f}"),
    ("CPU while idle", lambda row: f"{row['idle_cpu_share']:.1%}"),
    ("reconciles", lambda row: f"{row['reconciles']:,}"),
    ("calls per reconcile", lambda row: f"{row['calls_per_reconcile']:.2f}"),
    ("analyses at once: how many, writes a second (of runs), CPU", lambda row: (
        f"{row['analyses']}: {row['analysis_writes_per_s']:.1f} ({row['analysis_run_writes_per_s']:.1f}),"
        f" {row['analysis_cpu_share']:.0%}" if row.get("analyses") else "-"
    )),
)  # fmt: skip


def _table(rows: Sequence[Json]) -> str:
    return _as_table([name for name, _ in _COLUMNS], [[show(row) for _, show in _COLUMNS] for row in rows])


def _calls(rows: Sequence[Json]) -> str:
    """Calls of the API server per reconcile, by verb and resource."""
    names = sorted({name for row in rows for name in row["calls"]})
    header = ["call", *(f"{row['deployments']:,} {_KINDS[row['pods']]}" for row in rows)]
    lines = [
        [name, *(f"{row['calls'].get(name, 0) / max(row['reconciles'], 1):.3f}" for row in rows)] for name in names
    ]
    return "Calls of the API server per reconcile, by the operator's own count:\n\n" + _as_table(header, lines)


def _bar_table(made: Sequence[Bar]) -> str:
    lines = [[bar.bar, f"{bar.value:g}", bar.limit, "yes" if bar.ok else "**no**"] for bar in made]
    return _as_table(["bar", "value", "limit", "held"], lines)


def _as_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = "|".join(["---"] * len(header))
    return "\n".join([f"| {' | '.join(header)} |", f"|{rule}|", *(f"| {' | '.join(line)} |" for line in lines)])
