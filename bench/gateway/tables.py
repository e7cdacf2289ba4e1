"""The page bench/gateway.md, in Markdown (pure)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.gateway.report import COMPILED, SERVER, Json, Rows, ratio, traced_times
from bench.page import bars_table, missing_list, table
from testkit.report import Bar

NOTHING = "–"


def page(rows: Sequence[Json], made: Sequence[Bar], about: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """`about`: the report. `titles`: of peers, by name. Parts that were not measured have no section."""
    machine, lane = about["machine"], "compiled" if Rows(rows).lane == COMPILED else "Python"
    parts = [
        "# The gateway beside its peers",
        f"`make bench-gateway`, {about['day']}, commit {about['commit']}. {machine['cores']} cores of "
        f"{machine['cpu']}, {machine['memory_gib']} GiB. Generator: {about['generator']}, model server: "
        f"{about['upstream']}. Medians of {about['rounds']} rounds (of one less for events), the order of peers "
        "reversed each time. [What is measured and how](../docs/bench.md#the-gateway).",
        "## Bars",
        f"Those without a lane in their name are of the {lane} lane.",
        bars_table(made),
    ]
    for kinds, title, text, made_table in _sections(rows, about, titles):
        if any(row["kind"] in kinds for row in rows):
            parts += [f"## {title}", text, made_table]
    parts += ["## Noise", "Shares of all cores while a part ran.", noise(about["noise"])]
    if versions := about["versions"]:
        parts += ["## Versions", "\n".join(f"- {titles[name]}: {text}" for name, text in versions.items())]
    if missing := about["not_measured"]:
        parts += ["## Not measured", missing_list(missing, titles)]
    return "\n\n".join(parts) + "\n"


def _sections(
    rows: Sequence[Json], about: Mapping[str, Any], titles: Mapping[str, str]
) -> Iterator[tuple[tuple[str, ...], str, str, str]]:
    """Kinds of rows, title, what was measured, and the table."""
    loop = f"over {about['connections']} connections; user and system time of all processes of a peer, on one core"
    yield ("throughput",), "CPU time of a request", f"JSON answers {loop}.", costs(rows, "throughput", titles)
    for count in sorted({row["streams"] for row in rows if row["kind"] == "events"}):
        yield (
            ("events",),
            f"CPU time of an event, {count} streams",
            f"{about['events_per_s']} events a second of each stream, with slipway-server's marks.",
            costs(rows, "events", titles, streams=count),
        )
    yield (
        ("latency",),
        "Latency that is added",
        f"{about['rate_per_s']} requests a second on the clock, direct ones in turns with routed ones; milliseconds.",
        latency(rows, titles),
    )
    yield (
        ("streams",),
        "Slow streams",
        "All open at once, an event a second each. Memory is what the process grew by, divided by the open streams.",
        streams(rows, titles),
    )
    yield (
        ("busy",),
        "Beside a busy control side",
        "p99 of the same requests in milliseconds, while a table of routes is parsed again and again.",
        busy(rows, titles),
    )
    yield ("tls",), "CPU time of a request with TLS", f"The same {loop}.", costs(rows, "tls", titles)
    yield ("grpc",), "CPU time of a gRPC call", "ModelInfer, eight at a time.", costs(rows, "grpc", titles)
    yield (
        ("predict",),
        "Classic models",
        "Predictions by the model server alone, and through each lane on the same core; CPU time is the server's in "
        "its own row and the gateway's in the others.",
        costs(rows, "predict", titles),
    )
    yield (
        ("traces",),
        "Traces",
        f"The same {loop}, by the share of requests that are recorded; a second gateway without traces shows by how "
        "much two equal processes differ.",
        traces(rows, titles),
    )


def costs(rows: Sequence[Json], kind: str, titles: Mapping[str, str], **more: Any) -> str:
    """The cheapest first. The ratio is the median of those within rounds."""
    of = Rows(rows)
    chosen = [row for row in rows if {"kind": kind, **more}.items() <= row.items()]
    nginx_us = of.values(kind, "nginx", **more)
    titles = {SERVER: "the model server alone", **titles}
    lines = [
        [titles[row["peer"]], f"{row['us']:.1f}", f"{row['least']:.1f} to {row['most']:.1f}",
         f"{1e6 / row['us']:,.0f}" if row["us"] else NOTHING,
         _number(ratio(nginx_us, row["rounds"]), 3), f"{row['per_s']:,.0f}", f"{row['core_share']:.2f}",
         str(row["failed"])]
        for row in sorted(chosen, key=lambda row: row["us"])
    ]  # fmt: skip
    return table([kind, "µs CPU", "rounds", "per CPU-second", "of nginx", "per second", "of a core", "failed"], lines)


def latency(rows: Sequence[Json], titles: Mapping[str, str]) -> str:
    lines = [
        [titles[row["peer"]], *(f"{row[f'{what}_{share}_ms']:.2f}" for what in ("added", "routed", "direct")
                                for share in ("p50", "p99")), str(row["failed"])]
        for row in rows if row["kind"] == "latency"
    ]  # fmt: skip
    names = [f"{what} {share}" for what in ("added", "routed", "direct") for share in ("p50", "p99")]
    return table(["", *names, "failed"], lines)


def streams(rows: Sequence[Json], titles: Mapping[str, str]) -> str:
    lines = [
        [titles[row["peer"]], f"{row['open']:,} of {row['streams']:,}", str(row["broken"]), f"{row['kib_each']:.1f}",
         f"{row['cpu_s']:.1f}", f"{row['seconds']:.0f}"]
        for row in rows if row["kind"] == "streams"
    ]  # fmt: skip
    return table(["", "open at once", "broken", "KiB each", "CPU s", "seconds"], lines)


def traces(rows: Sequence[Json], titles: Mapping[str, str]) -> str:
    of = Rows(rows)
    lines = [
        [titles[row["peer"]], row["share"], f"{row['us']:.1f}", f"{row['least']:.1f} to {row['most']:.1f}",
         _number(traced_times(of, row["peer"], row["share"]), 3), f"{row['spans']:,}", str(row["failed"])]
        for row in rows if row["kind"] == "traces"
    ]  # fmt: skip
    return table(["", "recorded", "µs CPU", "rounds", "times off", "spans that came", "failed"], lines)


def busy(rows: Sequence[Json], titles: Mapping[str, str]) -> str:
    lines = [
        [titles[row["peer"]], f"{row['idle_p99_ms']:.1f}", f"{row['busy_p99_ms']:.1f}", f"{row['times']:.2f}",
         str(row["tables"])]
        for row in rows if row["kind"] == "busy"
    ]  # fmt: skip
    return table(["", "idle", "busy", "times", "tables parsed"], lines)


def noise(parts: Mapping[str, Json]) -> str:
    """By part of the run."""
    lines = [
        [part, *(f"{row[name]:.0%}" for name in ("foreign_share", "steal_share", "idle_share"))]
        for part, row in parts.items()
    ]
    return table(["", "other work", "the host", "idle"], lines)


def _number(value: float | None, digits: int) -> str:
    return NOTHING if value is None or math.isnan(value) else f"{value:.{digits}f}"
