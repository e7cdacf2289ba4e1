"""The tables of the report, in Markdown (pure)."""

import math
from collections.abc import Callable, Iterable, Sequence

from bench.engine.figures import Row, middle
from bench.engine.peers import INT8, OURS, PEERS
from bench.engine.result import Result
from testkit.report import Bar

NOTHING = "–"
LOADS = ("closed", "sampled")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def number(value: float, digits: int = 1) -> str:
    """As people write it; a dash for what was not measured."""
    if math.isnan(value):
        return NOTHING
    return f"{value:.{digits}f}"


def throughput(result: Result) -> str:
    """Output tokens per second: the median, then each round."""

    def cell(peer: str, concurrency: int, kind: str = "closed") -> str:
        rows = result.of(peer, kind, concurrency)
        each = " / ".join(number(row["output_tokens_per_s"]) + ("\\*" if row["cut"] else "") for row in rows)
        return f"{number(result.rate(peer, concurrency, kind))} ({each})" if rows else NOTHING

    columns = sorted({(row["kind"] == "sampled", row["concurrency"]) for row in result.rows if row["kind"] in LOADS})
    head = ["output tok/s", *(f"{'sampled' if sampled else 'greedy'}, conc {at}" for sampled, at in columns)]
    return table(
        head,
        ([PEERS[peer].title, *(cell(peer, at, LOADS[sampled]) for sampled, at in columns)] for peer in result.peers),
    )


def sampled(result: Result) -> str:
    """What sampling leaves of the throughput: medians of the rounds' ratios, with least and most."""
    at = sorted({row["concurrency"] for row in result.rows if row["kind"] == "sampled"})
    head = ["sampled / greedy", *(f"conc {each}" for each in at)]
    return table(
        head,
        ([PEERS[peer].title, *(spread(result.sampled_ratios(peer, each)) for each in at)] for peer in result.peers),
    )


def spread(values: Sequence[float]) -> str:
    """The median, and least and most where there are several."""
    if not values:
        return NOTHING
    middle_one = number(middle(values), 2)
    return f"{middle_one} ({number(min(values), 2)} to {number(max(values), 2)})" if len(values) > 1 else middle_one


def totals(result: Result) -> str:
    def cell(peer: str, concurrency: int) -> str:
        return number(result.value(peer, "closed", "total_tokens_per_s", concurrency))

    return _by_concurrency(result, "total tok/s, prompts included", cell)


def ratios(result: Result) -> str:
    """How many times ours is each peer: medians of the rounds' ratios, with least and most."""
    mine = [peer for peer in result.peers if PEERS[peer].ours]
    columns = [(peer, concurrency) for peer in mine for concurrency in result.concurrencies]
    head = ["ratio of output tok/s to", *(f"{peer}, conc {concurrency}" for peer, concurrency in columns)]
    rows = [
        [PEERS[peer].title, *(spread(result.ratios(own, peer, at)) for own, at in columns)]
        for peer in result.peers
        if not PEERS[peer].ours
    ]
    return table(head, rows)


def latency(result: Result) -> str:
    """Medians over rounds of each round's median and 99th percentile."""

    def pair(peer: str, name: str, unit: str, at: int, digits: int) -> str:
        middle_one, late = (result.value(peer, "closed", f"{name}_{part}_{unit}", at) for part in ("p50", "p99"))
        return f"{number(middle_one, digits)} ({number(late, digits)})"

    columns = [("ttft", "s", 2), ("itl", "ms", 0)]
    head = ["median (p99)"]
    head += [f"{name.upper()} c{at} {unit}" for name, unit, _ in columns for at in result.concurrencies]
    rows = [
        [
            PEERS[peer].title,
            *(pair(peer, name, unit, at, places) for name, unit, places in columns for at in result.concurrencies),
        ]
        for peer in result.peers
    ]
    return table(head, rows)


def start_and_memory(result: Result) -> str:
    head = ["", "start to ready s", "start to first token s", "PSS MiB after the start", "highest PSS MiB under load"]
    rows = [
        [
            PEERS[peer].title,
            *(_rounds(result, peer, name) for name in ("ready_s", "first_token_s")),
            number(result.value(peer, "start", "pss_mib"), 0),
            number(result.peak_mib(peer), 0),
        ]
        for peer in result.peers
    ]
    return table(head, rows)


def open_loop(result: Result) -> str:
    names = "open loop, req/s offered, good, goodput req/s, output tok/s, TTFT p50 (p99) s, ITL p50 (p99) ms"
    rows = ([PEERS[row["peer"]].title, *_open_cells(row)] for row in result.rows if row["kind"] == "open")
    return table(names.split(", "), rows)


def _open_cells(row: Row) -> list[str]:
    return [
        number(row["rate_per_s"], 2),
        f"{row['good']} of {row['requests']}",
        number(row["goodput_per_s"], 2),
        number(row["output_tokens_per_s"]),
        f"{number(row['ttft_p50_s'], 2)} ({number(row['ttft_p99_s'], 2)})",
        f"{number(row['itl_p50_ms'], 0)} ({number(row['itl_p99_ms'], 0)})",
    ]


def ceilings(result: Result) -> str:
    """What the machine could do with this workload, and how near each of ours comes."""
    head = ["", *(f"conc {at}" for at in result.concurrencies), "decode at batch 1"]
    rows = []
    for int8, label, peer in ((False, "bf16", OURS), (True, "int8", INT8)):
        limits = [result.ceiling(at, int8=int8) for at in result.concurrencies]
        roof = result.roofline(PEERS[peer].weight_bytes)
        rows.append([f"ceiling {label}, tok/s", *map(number, limits), number(roof)])
        if peer in result.peers:
            shares = [result.rate(peer, at) / limit for at, limit in zip(result.concurrencies, limits, strict=True)]
            rows.append([f"{PEERS[peer].title}, share", *map(_percent, [*shares, result.bandwidth_share(peer)])])
    return table(head, rows)


def split(rows: Sequence[Row]) -> str:
    parts = ("total", "linears", "attention", "norms", "sampling", "python")

    def cells(row: Row) -> list[str]:
        return [
            row["step"],
            str(row["steps"]),
            number(row["tokens"], 0),
            *(number(row[f"{part}_ms"], 2) for part in parts),
        ]

    return table(["ms per step, medians", "steps", "tokens", *parts], map(cells, rows))


def runs(result: Result) -> str:
    """Every run as it was, in the order in which they ran."""
    names = "round, peer, conc, requests, gaps, seconds, tok/s, steal, idle, others, client CPU s, noticed"
    return table(names.split(", "), map(_run_cells, (row for row in result.rows if row["kind"] != "start")))


def _run_cells(row: Row) -> list[str]:
    if row["kind"] == "failed":
        return [str(row["round"]), row["peer"], *[NOTHING] * 9, _plain(row["why"])]
    noticed = [*row["miscounts"], *(["cut off"] if row["cut"] else []), row["first_error"]]
    return [
        *(str(cell) for cell in (row["round"], row["peer"], _load(row))),
        *(str(row[name]) for name in ("requests", "gaps")),
        *(number(row[name]) for name in ("seconds", "output_tokens_per_s")),
        *(f"{row[name]:.1%}" for name in ("steal_share", "idle_share", "foreign_share")),
        number(row["client_cpu_s"], 2),
        _plain("; ".join(filter(None, noticed))) or NOTHING,
    ]


def _load(row: Row) -> str:
    return f"{row['concurrency']} sampled" if row["kind"] == "sampled" else str(row.get("concurrency", "open"))


def _plain(text: str) -> str:
    """What a cell of a table can hold."""
    return " ".join(text.replace("|", "/").split())


def _by_concurrency(result: Result, title: str, cell: Callable[[str, int], str]) -> str:
    head = [title, *(f"conc {concurrency}" for concurrency in result.concurrencies)]
    return table(head, ([PEERS[peer].title, *(cell(peer, at) for at in result.concurrencies)] for peer in result.peers))


def _rounds(result: Result, peer: str, name: str) -> str:
    each = " / ".join(number(row[name]) for row in result.of(peer, "start"))
    return f"{number(result.value(peer, 'start', name))} ({each})" if each else NOTHING


def _percent(share: float) -> str:
    return NOTHING if math.isnan(share) else f"{share:.0%}"


def of_bars(bars: Iterable[Bar]) -> str:
    rows = (["ok" if bar.ok else "**MISSED**", bar.bar, f"{bar.value:g}", bar.limit] for bar in bars)
    return table(["", "bar", "value", "must be"], rows)
