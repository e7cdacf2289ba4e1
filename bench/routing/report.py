"""From outcomes: rows, bars and the page (pure)."""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from bench.page import table
from bench.routing.cost import Cost
from bench.routing.policies import OURS
from bench.routing.real import AFFINE, Measured
from bench.routing.real import LEAST as REAL_LEAST
from bench.routing.simulate import Outcome
from testkit.report import Bar, quantile

Json = dict[str, Any]
HITS, TTFT_RATIO, LEAST_SHARE = 0.95, 0.6, 0.98
CHOICE_US = {20: 10.0, 200: 50.0}


def simulated_row(trace: str, pods: int, policy: str, outcome: Outcome) -> Json:
    p50, p99 = (quantile(outcome.ttft_s, share) * 1e3 for share in (0.5, 0.99))
    return {
        "kind": "simulated", "trace": trace, "pods": pods, "policy": policy, "requests": outcome.requests,
        "ttft_p50_ms": p50, "ttft_p99_ms": p99, "e2e_p50_ms": quantile(outcome.e2e_s, 0.5) * 1e3,
        "hit_share": outcome.hit_share, "least_loaded": outcome.least_loaded / outcome.requests,
    }  # fmt: skip


def real_row(rule: str, rounds: Sequence[Measured]) -> Json:
    cached, oracle = (sum(getattr(one, name) for one in rounds) for name in ("cached_tokens", "oracle_tokens"))
    return {
        "kind": "real", "policy": rule, "requests": sum(len(one.ttft_s) for one in rounds),
        "ttft_p50_ms": statistics.median(second for one in rounds for second in one.ttft_s) * 1e3,
        "rounds_p50_ms": [statistics.median(one.ttft_s) * 1e3 for one in rounds],
        "hit_share": cached / oracle if oracle else 1.0, "failures": [text for one in rounds for text in one.failures],
    }  # fmt: skip


def cost_row(cost: Cost) -> Json:
    return {
        "kind": "cost", "pods": cost.pods, "choice_us": cost.choice_us, "blocks_us": cost.blocks_us,
        "least_us": cost.least_us,
    }  # fmt: skip


def bars(rows: Sequence[Json]) -> list[Bar]:
    return [*_simulated(rows), *_real(rows), *_costs(rows)]


def _simulated(rows: Sequence[Json]) -> Iterator[Bar]:
    alone = [row for row in rows if row["kind"] == "simulated" and row["trace"] == "alone" and row["policy"] == OURS]
    for row in alone:
        share = row["least_loaded"]
        name = f"{row['pods']} pods, no shared prefixes: choices that are least-load's"
        yield Bar(name, round(share, 4), f">= {LEAST_SHARE}", share >= LEAST_SHARE)
    for pods in sorted({row["pods"] for row in rows if row["kind"] == "simulated"}):
        here = {row["policy"]: row for row in rows if row.get("pods") == pods and row.get("trace") == "agents"}
        best = min(row["ttft_p50_ms"] for policy, row in here.items() if policy != OURS)
        ratio = here[OURS]["ttft_p50_ms"] / best
        yield Bar(f"{pods} pods, agents: TTFT p50 by the best other rule", round(ratio, 3), "<= 1.05", ratio <= 1.05)


def _real(rows: Sequence[Json]) -> Iterator[Bar]:
    found = {row["policy"]: row for row in rows if row["kind"] == "real"}
    if not found:
        return
    hits = found[AFFINE]["hit_share"]
    yield Bar("real pods: cached tokens by a perfect oracle's", round(hits, 3), f">= {HITS}", hits >= HITS)
    ratio = found[AFFINE]["ttft_p50_ms"] / found[REAL_LEAST]["ttft_p50_ms"]
    yield Bar("real pods: TTFT p50 by least load's", round(ratio, 3), f"<= {TTFT_RATIO}", ratio <= TTFT_RATIO)
    failed = sum(len(row["failures"]) for row in found.values())
    yield Bar("real pods: requests that failed", failed, "<= 0", not failed)


def _costs(rows: Sequence[Json]) -> Iterator[Bar]:
    for row in rows:
        if row["kind"] == "cost" and (limit := CHOICE_US.get(row["pods"])):
            cost = round(row["choice_us"], 1)
            yield Bar(f"{row['pods']} pods: CPU of a choice, µs", cost, f"<= {limit:g}", cost <= limit)


def _share(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def tables(rows: Sequence[Json]) -> str:
    """For people, in Markdown."""
    simulated = [
        [
            row["trace"], str(row["pods"]), row["policy"], f"{row['ttft_p50_ms']:.0f}", f"{row['ttft_p99_ms']:.0f}",
            f"{row['e2e_p50_ms']:.0f}", _share(row["hit_share"]), f"{row['least_loaded']:.2f}",
        ]
        for row in rows
        if row["kind"] == "simulated"
    ]  # fmt: skip
    real = [
        [row["policy"], str(row["requests"]), f"{row['ttft_p50_ms']:.0f}", f"{row['hit_share']:.3f}"]
        for row in rows
        if row["kind"] == "real"
    ]
    costs = [
        [str(row["pods"]), f"{row['choice_us']:.1f}", f"{row['least_us']:.1f}", f"{row['blocks_us']:.1f}"]
        for row in rows
        if row["kind"] == "cost"
    ]
    header = ["trace", "pods", "rule", "TTFT p50, ms", "p99, ms", "whole p50, ms", "hits by oracle", "least loaded"]
    parts = [table(header, simulated)]
    if real:
        parts.append(table(["two real pods", "requests", "TTFT p50, ms", "hits by oracle"], real))
    parts.append(table(["pods", "choice, µs", "least load, µs", "blocks of 24 kB, µs"], costs))
    return "\n\n".join(parts) + "\n"
