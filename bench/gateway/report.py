"""From the rows: bars, tables for people, and build/reports/gateway.json (pure)."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.page import bars_table, missing_list, table
from testkit.report import Bar, quantile

Json = dict[str, Any]
OURS, METERED = "slipway", "keys"
# Of CPU time, by keys, limits and the ledger.
MOST_COST = 0.15
STREAMS, KIB_EACH = 2000, 64.0
# Requests per CPU-second beside each peer's, at the least.
RATIOS = {"nginx": 0.13, "aiohttp": 1.0, "litellm": 30.0}
ADDED_MS = {0.5: 1.0, 0.99: 5.0}


def throughput_row(peer: str, rounds: Sequence[float], failed: int, wall_per_s: float) -> Json:
    """`rounds`: requests per CPU-second of each."""
    median = statistics.median(rounds)
    return {
        "kind": "throughput", "peer": peer, "per_cpu_s": median, "least": min(rounds), "most": max(rounds),
        "rounds": list(rounds), "failed": failed, "per_s": wall_per_s,
    }  # fmt: skip


def latency_row(peer: str, blocks: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Json:
    """`blocks`: seconds of routed and of direct requests; what is added is the median over blocks."""
    row: Json = {"kind": "latency", "peer": peer, "failed": sum(list(routed).count(math.inf) for routed, _ in blocks)}
    for share in ADDED_MS:
        name = f"p{share * 100:g}"
        pairs = [(quantile(routed, share) * 1e3, quantile(direct, share) * 1e3) for routed, direct in blocks]
        row[f"direct_{name}_ms"] = statistics.median(direct for _, direct in pairs)
        row[f"routed_{name}_ms"] = statistics.median(routed for routed, _ in pairs)
        row[f"added_{name}_ms"] = statistics.median(routed - direct for routed, direct in pairs)
    return row


def bars(rows: Sequence[Json], streams: int = STREAMS) -> list[Bar]:
    """One for each promise that the rows have a measure of."""
    found: list[Bar] = []
    rates = {row["peer"]: row["rounds"] for row in rows if row["kind"] == "throughput"}
    for peer, least in RATIOS.items():
        if OURS in rates and peer in rates:
            # Of the same round: what disturbs one disturbs the other.
            ratio = statistics.median(a / b for a, b in zip(rates[OURS], rates[peer], strict=True))
            name = f"requests per CPU-second, times those of {peer}"
            found.append(Bar(name, round(ratio, 3), f">= {least:g}", ratio >= least))
    if OURS in rates and METERED in rates:
        cost = statistics.median(a / b for a, b in zip(rates[OURS], rates[METERED], strict=True)) - 1
        found.append(
            Bar("CPU time that keys, limits and the ledger add", round(cost, 3), f"<= {MOST_COST:g}", cost <= MOST_COST)
        )
    ours = {row["kind"]: row for row in rows if row["peer"] == OURS}
    if row := ours.get("latency"):
        for share, limit_ms in ADDED_MS.items():
            value = row[f"added_p{share * 100:g}_ms"]
            found.append(
                Bar(f"added latency p{share * 100:g}, ms", round(value, 3), f"< {limit_ms:g}", value < limit_ms)
            )
    if row := ours.get("streams"):
        held = row["open"] >= streams and not row["broken"]
        found.append(Bar("streams open at once, none broken", row["open"], f">= {streams}", held))
        each = row["kib_each"]
        found.append(Bar("memory of a stream, KiB", round(each, 1), f"<= {KIB_EACH:g}", each <= KIB_EACH))
    failed = sum(row.get("failed", 0) for row in rows if row["peer"] in (OURS, METERED))
    return [*found, Bar("requests that failed", failed, "<= 0", not failed)]


def markdown(rows: Sequence[Json], made: Sequence[Bar], about: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """The page bench/gateway.md."""
    machine = about["machine"]
    parts = [
        "# The gateway beside its peers",
        f"`make bench-gateway`, {about['day']}, commit {about['commit']}. {machine['cores']} cores of "
        f"{machine['cpu']}, {machine['memory_gib']} GiB. Generator: {about['generator']}. "
        "[What is measured and how](../docs/bench.md#the-gateway).",
        "## Bars",
        bars_table(made),
        "## Requests per CPU-second",
        f"Small JSON answers, {about['connections']} connections, one process on one core; user and system time of the "
        f"process. Median of {about['rounds']} rounds, the order of peers reversed each time, and the extremes.",
        _throughput(rows, titles),
        "## Latency that is added",
        f"{about['rate_per_s']} requests a second on the clock, direct ones in turns with routed ones; milliseconds.",
        _latency(rows, titles),
        "## Slow streams",
        "All open at once, an event a second each. Memory is what the process grew by, divided by the open streams.",
        _streams(rows, titles),
    ]
    if missing := about["not_measured"]:
        parts += ["## Not measured", missing_list(missing, titles)]
    return "\n\n".join(parts) + "\n"


def _throughput(rows: Sequence[Json], titles: Mapping[str, str]) -> str:
    chosen = [row for row in rows if row["kind"] == "throughput"]
    ours = next((row["per_cpu_s"] for row in chosen if row["peer"] == OURS), math.nan)
    lines = [
        [titles[row["peer"]], f"{row['per_cpu_s']:,.0f}", f"{row['least']:,.0f} to {row['most']:,.0f}",
         f"{ours / row['per_cpu_s']:.2f}", f"{row['per_s']:,.0f}", str(row["failed"])]
        for row in sorted(chosen, key=lambda row: -row["per_cpu_s"])
    ]  # fmt: skip
    return table(
        ["", "requests per CPU-second", "rounds", "Slipway's, times this", "requests per second", "failed"], lines
    )


def _latency(rows: Sequence[Json], titles: Mapping[str, str]) -> str:
    lines = [
        [titles[row["peer"]], *(f"{row[f'{what}_{share}_ms']:.2f}" for what in ("added", "routed", "direct")
                                for share in ("p50", "p99")), str(row["failed"])]
        for row in rows if row["kind"] == "latency"
    ]  # fmt: skip
    names = [f"{what} {share}" for what in ("added", "routed", "direct") for share in ("p50", "p99")]
    return table(["", *names, "failed"], lines)


def _streams(rows: Sequence[Json], titles: Mapping[str, str]) -> str:
    lines = [
        [titles[row["peer"]], f"{row['open']:,} of {row['streams']:,}", str(row["broken"]), f"{row['kib_each']:.0f}",
         f"{row['cpu_s']:.1f}", f"{row['seconds']:.0f}"]
        for row in rows if row["kind"] == "streams"
    ]  # fmt: skip
    return table(["", "open at once", "broken", "KiB each", "CPU s", "seconds"], lines)
