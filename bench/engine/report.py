"""The report: Markdown for people, JSON for programs (pure)."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bench.engine import tables
from bench.engine.bars import bars, unmeasured
from bench.engine.machine import BUSY_SHARE
from bench.engine.peers import KV_TOKENS, PEERS
from bench.engine.result import Result
from bench.engine.workload import requests_at
from testkit.report import Json, report


def markdown(result: Result, commit: str, day: str) -> str:
    """The engine's section of bench/RESULTS.md."""
    parts = [
        "## The engine and its peers on the CPU",
        f"`make bench-engine`, {day}, commit {commit}. {_machine_line(result.machine)}",
        _method_line(result),
        *(f"**{warning}**" for warning in result.warnings),
        _disturbance_line(result),
        *(f"**Not measured: {_plain(peer)}.** {why}" for peer, why in result.missing.items()),
        tables.throughput(result),
        r"\* cut off at the time limit: tokens until then." if any(row.get("cut") for row in result.rows) else "",
        tables.ratios(result),
        _sampled_part(result),
        tables.totals(result),
        tables.latency(result),
        _trades(result),
        tables.start_and_memory(result),
        *_open_parts(result),
        "### Ceilings of the machine",
        *_ceiling_parts(result),
        *(f"### A step of our engine, {_dtype(name)}\n\n{tables.split(rows)}" for name, rows in result.split.items()),
        "### Every run",
        tables.runs(result),
        "### Bars",
        tables.of_bars(bars(result)),
        _unmeasured_line(result),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _machine_line(had: Mapping[str, Any]) -> str:
    kind = "virtual machine" if had.get("virtual") else "machine"
    return (
        f"Machine: {had.get('cores')} cores of {had.get('cpu')} ({kind}, {had.get('memory_gib')} GiB, "
        f"L3 {had.get('l3_mib')} MiB; {', '.join(had.get('flags', []))}), Python {had.get('python')}."
    )


def _method_line(result: Result) -> str:
    shape = result.shape
    counts = ", ".join(f"{requests_at(at)} requests at {at}" for at in result.concurrencies)
    return (
        f"Model: {shape.name}, {shape.parameters / 1e6:.0f} M parameters with random weights, the same for all; room "
        f"for {KV_TOKENS} tokens of keys and values in each peer. Closed loop: prompts of {shape.prompt_tokens[0]} to "
        f"{shape.prompt_tokens[1]} tokens, exactly {shape.output_tokens} tokens out, streamed over HTTP; {counts} in "
        "each round, the same for all peers of a round, words drawn separately for each. Rounds: "
        f"{result.rounds}, the order of peers reversed each time. Figures are medians over rounds, with each round in "
        "brackets; ratios are those of each round. Before each start memory is touched and freed, so that no "
        "peer pays for pages that the machine's host had taken back. Only figures of one run are comparable, and with "
        "samples this small p99 is nearly the maximum."
    )


def _sampled_part(result: Result) -> str:
    if not any(row["kind"] == "sampled" for row in result.rows):
        return ""
    return (
        "Sampled: temperature 0.8, top_p 0.95, the other rules switched off in all peers, other words in the prompts. "
        "The models are random: nearly all tokens of the vocabulary are likely: for top_p that is the worst case.\n\n"
    ) + tables.sampled(result)


def _trades(result: Result) -> str:
    """Who waits where, in words: one peer is better at the first token and the other between tokens."""
    mine = [peer for peer in result.peers if PEERS[peer].ours]
    others = [peer for peer in result.peers if not PEERS[peer].ours]
    found = [_trade(result, ours, theirs, at) for ours in mine for theirs in others for at in result.concurrencies]
    lines = [f"- {line}" for line in found if line]
    return "\n".join(["Trades between the first token and the others:", "", *lines]) if lines else ""


def _trade(result: Result, ours: str, theirs: str, at: int) -> str:
    first, other_first = (result.value(peer, "closed", "ttft_p50_s", at) for peer in (ours, theirs))
    gap, other_gap = (result.value(peer, "closed", "itl_p99_ms", at) for peer in (ours, theirs))
    # Nothing is larger than what was not measured.
    if not ((first > other_first and gap < other_gap) or (first < other_first and gap > other_gap)):
        return ""
    return (
        f"At {at}, {_plain(ours)} gives the first token after {first:.2f} s and {_plain(theirs)} after "
        f"{other_first:.2f} s; the longest waits between tokens (p99) are {gap:.0f} and {other_gap:.0f} ms."
    )


def _disturbance_line(result: Result) -> str:
    found = result.disturbed()
    loads = sum(row["kind"] in (*tables.LOADS, "open") for row in result.rows)
    if not found:
        return ""
    return (
        f"**In {len(found)} of {loads} loads other work or the host took more than {BUSY_SHARE:.0%} of the cores: see "
        "*steal* and *others* under every run.**"
    )


def _open_parts(result: Result) -> list[str]:
    found = [row for row in result.rows if row["kind"] == "open"]
    if not found:
        return []
    promise = result.objective
    text = (
        "Open loop: Poisson arrivals, log-normal lengths. A request is good when its first token came within "
        f"{promise.ttft_s:g} s and the others took {promise.token_s * 1e3:g} ms on average. {found[0]['requests']} "
        "requests for each peer, in one round."
    )
    return [text, tables.open_loop(result)]


def _ceiling_parts(result: Result) -> list[str]:
    if not result.ceilings:
        return []
    looks = [
        f"Look {number}: memory read {each.read_gb_per_s} GB/s (best {each.read_best_gb_per_s}), products in bf16 "
        f"{each.bf16_gflops} GFLOP/s (best {each.bf16_best_gflops}), in int8 {each.int8_gflops} (best "
        f"{each.int8_best_gflops})."
        for number, each in enumerate(result.ceilings, 1)
    ]
    formula = (
        "The ceiling of a load is its output tokens divided by the time of its linear layers alone: prompt + output - "
        "requests tokens through the layers and a row of the head for each output token, two operations for each "
        "weight, at the measured rate of torch's products; those of bf16 by its own instructions or in float32, what "
        "is faster on this CPU. Attention comes on top. The one at batch 1: every weight is read once for each token, "
        "at the measured bandwidth. Of the looks before, between and after the rounds the highest median counts. The "
        "share at batch 1 is measured apart: before and after each step of the engine the same cores read memory."
    )
    return [" ".join(looks), formula, tables.ceilings(result)]


def _unmeasured_line(result: Result) -> str:
    names = unmeasured(result)
    return f"Not measured in this run: {'; '.join(names)}." if names else ""


def _plain(peer: str) -> str:
    return PEERS[peer].title.strip("*")


def _dtype(quantization: str) -> str:
    return "bf16" if quantization == "none" else quantization


def spliced(page: str, section: str) -> str:
    """The page with the engine's section replaced; other sections stay as they are."""
    begin, end = "<!-- engine -->\n", "<!-- /engine -->\n"
    if begin not in page:
        return f"{page.rstrip()}\n\n{begin}{section}{end}".lstrip()
    before, rest = page.split(begin, 1)
    return f"{before}{begin}{section}{end}{rest.split(end, 1)[1]}"


def as_json(result: Result) -> Json:
    """For build/reports/engine.json."""
    about = {
        "machine": result.machine | {"ceilings": [asdict(each) for each in result.ceilings]},
        "model": asdict(result.shape),
        "objective": asdict(result.objective),
        "missing": result.missing,
        "warnings": result.warnings,
        "split": result.split,
    }
    whole: Json = _without_nan(report("engine", result.rows, bars(result), **about))
    return whole


def _without_nan(value: Any) -> Any:
    """JSON has no word for what is not a number."""
    if isinstance(value, dict):
        return {name: _without_nan(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
