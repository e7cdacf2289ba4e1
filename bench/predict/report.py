"""From the rows: bars, tables for people, and build/reports/predict.json (pure)."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.page import bars_table, missing_list, table
from bench.predict.load import LATE_CLIENT_S, Measured
from testkit.report import Bar, quantile

Json = dict[str, Any]
OURS = "slipway"
LEAST_RATIO, LEAST_GRPC = 2.0, 0.7
OWN_SHARE, OWN_P99_MS = 0.8, 50.0
COMMON_SHARE, MOST_OF_BEST_P99 = 0.5, 0.5
IDLE_MS = 1.5
LAG_MS = 1e3 * LATE_CLIENT_S  # of the client: what it sends later than this says nothing of a server


def saturation_row(model: str, peer: str, batch: int, rounds: Sequence[Measured]) -> Json:
    """Answered requests per second of a closed loop."""
    rates = [one.per_s for one in rounds]
    return {
        "kind": "saturation", "model": model, "peer": peer, "batch": batch, "per_s": statistics.median(rates),
        "rounds": rates, "failed": sum(one.failed for one in rounds),
    }  # fmt: skip


def sustained_row(model: str, peer: str, rounds: Sequence[float]) -> Json:
    """The highest rate of random arrivals that is sustained."""
    return {
        "kind": "sustained", "model": model, "peer": peer, "per_s": statistics.median(rounds), "rounds": list(rounds),
    }  # fmt: skip


def latency_row(model: str, peer: str, at: str, per_s: float, rounds: Sequence[Measured]) -> Json:
    """Medians over the rounds. `at`: `own`, 80 % of what the peer itself sustains, or `common`, one rate for all."""
    p50, p99 = ([quantile(one.took_s, part) * 1e3 for one in rounds] for part in (0.5, 0.99))
    lag_s = [one for measured in rounds for one in measured.lag_s]
    return {
        "kind": "latency", "model": model, "peer": peer, "at": at, "per_s": per_s,
        "requests": sum(len(one.took_s) for one in rounds), "p50_ms": statistics.median(p50),
        "p99_ms": statistics.median(p99), "rounds_p99_ms": p99, "lag_p99_ms": quantile(lag_s, 0.99) * 1e3,
        "failed": sum(one.failed for one in rounds), "late_runs": sum(one.late_runs for one in rounds),
    }  # fmt: skip


def idle_row(model: str, peer: str, took_s: Iterable[float]) -> Json:
    """One request at a time."""
    return {"kind": "idle", "model": model, "peer": peer, "p50_ms": quantile(took_s, 0.5) * 1e3}


def gateway_row(model: str, protocol: str, rounds: Sequence[tuple[Measured, float]]) -> Json:
    """`rounds`: each with the CPU seconds of gateway and server."""
    per_cpu_s = [(len(one.took_s) - one.failed) / cpu_s if cpu_s else math.nan for one, cpu_s in rounds]
    return {
        "kind": "gateway", "model": model, "protocol": protocol, "per_s": statistics.median(m.per_s for m, _ in rounds),
        "per_cpu_s": statistics.median(per_cpu_s), "rounds": [one.per_s for one, _ in rounds],
        "failed": sum(one.failed for one, _ in rounds),
    }  # fmt: skip


def grpc_row(model: str, peer: str, rounds: Sequence[tuple[Measured, float]]) -> Json:
    """Of a peer that serves gRPC itself, without a gateway before it."""
    return gateway_row(model, "grpc", rounds) | {"kind": "grpc", "peer": peer}


def bars(rows: Sequence[Json], with_bar: Sequence[str]) -> list[Bar]:
    """One for each promise that the rows have a measure of. `with_bar`: peers that we promise to exceed."""
    found = [bar for model in dict.fromkeys(row["model"] for row in rows) for bar in _of_model(rows, model, with_bar)]
    failed = sum(row.get("failed", 0) for row in rows if row.get("peer", OURS) == OURS)
    lag_ms = max((row["lag_p99_ms"] for row in rows if row["kind"] == "latency"), default=0.0)
    found.append(Bar("requests of ours that failed", failed, "<= 0", not failed))
    found.append(Bar("p99 of how late the client sends, ms", round(lag_ms, 2), f"<= {LAG_MS:g}", lag_ms <= LAG_MS))
    return found


def _of_model(rows: Sequence[Json], model: str, with_bar: Sequence[str]) -> Iterable[Bar]:
    here = [row for row in rows if row["model"] == model]
    for kind, title in (("saturation", "requests per second"), ("sustained", "random arrivals per second")):
        rates = {row["peer"]: row["rounds"] for row in here if row["kind"] == kind}
        for peer in with_bar:
            if OURS in rates and peer in rates:
                # Of the same round: what disturbs one disturbs the other.
                ratio = statistics.median(
                    a / b if b else math.inf for a, b in zip(rates[OURS], rates[peer], strict=True)
                )
                name = f"{model}: {title}, times those of {peer}"
                yield Bar(name, round(ratio, 2), f">= {LEAST_RATIO:g}", ratio >= LEAST_RATIO)
    p99_ms = {(row["peer"], row["at"]): row["p99_ms"] for row in here if row["kind"] == "latency"}
    if (own := p99_ms.get((OURS, "own"))) is not None:
        name = f"{model}: p99 at {OWN_SHARE:.0%} of what it sustains, ms"
        yield Bar(name, round(own, 1), f"< {OWN_P99_MS:g}", own < OWN_P99_MS)
    best = min((value for (peer, at), value in p99_ms.items() if at == "common" and peer in with_bar), default=math.nan)
    if (ours := p99_ms.get((OURS, "common"))) is not None and math.isfinite(best):
        name = f"{model}: p99 at the common rate, times that of the best peer"
        yield Bar(name, round(ours / best, 2), f"<= {MOST_OF_BEST_P99:g}", ours / best <= MOST_OF_BEST_P99)
    idle = {row["peer"]: row["p50_ms"] for row in here if row["kind"] in ("idle", "alone")}
    if OURS in idle and "alone" in idle:
        beyond = idle[OURS] - idle["alone"]
        yield Bar(
            f"{model}: idle p50 beyond the model's own time, ms", round(beyond, 2), f"<= {IDLE_MS:g}", beyond <= IDLE_MS
        )
    routed = {row["protocol"]: row["per_s"] for row in here if row["kind"] == "gateway"}
    if {"http", "grpc"} <= routed.keys():
        ratio = routed["grpc"] / routed["http"]
        yield Bar(
            f"{model}: gRPC, times HTTP, requests per second",
            round(ratio, 2),
            f">= {LEAST_GRPC:g}",
            ratio >= LEAST_GRPC,
        )


def markdown(rows: Sequence[Json], made: Sequence[Bar], about: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """The page bench/predict.md."""
    machine = about["machine"]
    parts = [
        "# Classic models beside Python's model servers",
        f"`make bench-predict`, {about['day']}, commit {about['commit']}. {machine['cores']} cores of "
        f"{machine['cpu']}, {machine['memory_gib']} GiB. [What is measured and how](../docs/bench.md#classic-models).",
        "## Bars",
        bars_table(made),
    ]
    for model in dict.fromkeys(row["model"] for row in rows):
        here = [row for row in rows if row["model"] == model]
        parts += [f"## {titles[model]}", *_sections(here, about, titles)]
    if missing := about["not_measured"]:
        parts += ["## Not measured", missing_list(missing, titles)]
    return "\n\n".join(parts) + "\n"


def _sections(here: Sequence[Json], about: Mapping[str, Any], titles: Mapping[str, str]) -> Iterable[str]:
    alone = next((row for row in here if row["kind"] == "alone"), None)
    if alone:
        yield (
            f"The model alone: {alone['p50_ms']:.2f} ms for one row, {alone['rows_per_s']:,.0f} rows a second in "
            f"batches of {about['batch_rows']}."
        )
    yield (
        f"Requests of one row, {about['connections']} at a time for the rate, and the random arrivals that are "
        f"sustained; median of {about['rounds']} rounds, the order of peers reversed each time. Milliseconds: one "
        "request at a time, and p50 and p99 of random arrivals."
    )
    latency = {(row["peer"], row["at"]): row for row in here if row["kind"] == "latency"}
    idle = {row["peer"]: row["p50_ms"] for row in here if row["kind"] == "idle"}
    sustained = {row["peer"]: f"{row['per_s']:,.0f}" for row in here if row["kind"] == "sustained"}
    lines = []
    for row in sorted((row for row in here if row["kind"] == "saturation"), key=lambda row: -row["per_s"]):
        peer = row["peer"]
        spread = f"{min(row['rounds']):,.0f} to {max(row['rounds']):,.0f}"
        lines.append([
            titles[peer], "yes" if row["batch"] > 1 else "no", f"{row['per_s']:,.0f}", spread, str(row["failed"]),
            sustained.get(peer, "-"), f"{idle[peer]:.2f}" if peer in idle else "-", _times(latency.get((peer, "own"))),
            _times(latency.get((peer, "common"))),
        ])  # fmt: skip
    common = next((f"{row['per_s']:,.0f}" for row in latency.values() if row["at"] == "common"), "-")
    own = f"{OWN_SHARE:.0%} of those"
    header = ["", "batches", "requests/s", "rounds", "failed", "random arrivals/s", "idle p50", own]
    yield table([*header, f"at {common}/s"], lines)
    if late := sum(row["late_runs"] for row in latency.values()):
        yield (
            f"{late} runs of random arrivals were thrown away and repeated: the client sent later than {LAG_MS:g} ms "
            "(p99), as where the machine pauses, which no server can help."
        )
    if routed := [row for row in here if row["kind"] in ("gateway", "grpc")]:
        names = {"http": "HTTP, JSON", "grpc": "gRPC"} | {name: f"gRPC of {titles[name]} itself" for name in titles}
        yield "Through the gateway, on the same core as the server. A peer that serves gRPC has no gateway before it:"
        yield table(
            ["", "requests/s", "requests per CPU-second", "failed"],
            [[names[str(row.get("peer", row["protocol"]))], f"{row['per_s']:,.0f}", f"{row['per_cpu_s']:,.0f}",
              str(row["failed"])] for row in routed],
        )  # fmt: skip


def _times(row: Json | None) -> str:
    if row is None:
        return "cannot"
    failed = f", {row['failed']} failed" if row["failed"] else ""
    return f"{row['p50_ms']:.1f} / {row['p99_ms']:.1f}{failed}"
