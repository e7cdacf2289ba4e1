"""What a run promises, bar by bar (pure)."""

import math
from collections.abc import Iterable

from bench.engine.figures import middle, ratio
from bench.engine.peers import AVX2_PEERS, INT8, OURS, PEERS
from bench.engine.result import Result
from bench.engine.shapes import QWEN06, QWEN8B
from testkit.report import Bar

READY_LIMIT_S, GAP_LIMIT_MS, PYTHON_LIMIT_MS = 6.0, 1000.0, 2.0
GAP_AT_8_LIMIT_MS, SAMPLED_SHARE, GEMM_SHARE, MEMORY_RATIO = 200.0, 0.97, 0.85, 1.15
BANDWIDTH_SHARE, AVX2_BANDWIDTH_SHARE = 0.8, 0.7
# Ours, the peer of the same types, concurrency, how many times as fast.
RATIOS = (
    (OURS, "vllm", 8, 1.15),
    (OURS, "vllm", 32, 1.1),
    (OURS, "llama", 1, 1.3),
    (INT8, "vllm-w8a8", 8, 1.5),
    (INT8, "vllm-w8a8", 32, 1.5),
    (INT8, "llama-q8", 1, 1.3),
)
AVX2_RATIOS = (
    (OURS, "llama-avx2", 1, 1.1),
    (OURS, "llama-avx2", 8, 1.5),
    (INT8, "llama-avx2-q8", 1, 1.1),
    (INT8, "llama-avx2-q8", 8, 1.5),
)
LARGE_RATIOS = ((INT8, "llama-q8", 1, 1.0), (INT8, "llama-q8", 8, 1.5))
EQUAL_CACHES = ((OURS, "llama"), (INT8, "llama-q8"))
AVX2_EQUAL_CACHES = ((OURS, "llama-avx2"), (INT8, "llama-avx2-q8"))


def bars(result: Result) -> list[Bar]:
    """One for each promise whose parts were measured in this run; a promise about an absent peer is no bar."""
    miscounted = sum(bool(row.get("miscounts")) for row in result.rows)
    mine = [row for row in result.rows if PEERS[row["peer"]].ours]
    failed = sum(row.get("errors", 0) + (row["kind"] == "failed") for row in mine)
    return [
        *(bar for bar in _promises(result) if not math.isnan(bar.value)),
        Bar("runs with other token counts than intended", miscounted, "0", miscounted == 0),
        Bar("failed requests or starts of ours", failed, "0", failed == 0),
    ]


def concurrencies_with_bars(peer: str) -> frozenset[int]:
    """The greedy loads of a peer that a promise compares ours with; 8 too, because memory is compared under load."""
    compared = {at for _, theirs, at, _ in (*RATIOS, *AVX2_RATIOS, *LARGE_RATIOS) if theirs == peer}
    return frozenset(compared | {8}) if compared else frozenset()


def unmeasured(result: Result) -> list[str]:
    """Promises that this run did not measure."""
    return [bar.bar for bar in _promises(result) if math.isnan(bar.value)]


def _promises(result: Result) -> list[Bar]:
    """They are made for two shapes, and some for CPUs without AVX512: a run has the peers of one kind of CPU."""
    if result.shape is QWEN8B:
        return [*_speed(result, LARGE_RATIOS), *_sane(result)]
    if result.shape is not QWEN06:
        return []
    ratios = AVX2_RATIOS if _is_avx2(result) else RATIOS
    parts = (_sampled, _tails_and_start, _memory, _share, _sane, _python)
    return [*_speed(result, ratios), *(bar for part in parts for bar in part(result))]


def _is_avx2(result: Result) -> bool:
    return any(peer in AVX2_PEERS for peer in result.peers)


def _speed(result: Result, ratios: Iterable[tuple[str, str, int, float]]) -> Iterable[Bar]:
    for ours, theirs, at, limit in ratios:
        value, enough = middle(result.ratios(ours, theirs, at)), f">= {limit}"
        ok = value >= limit
        if theirs == "vllm-w8a8":
            share = result.rate(ours, at) / result.ceiling(at, int8=True)
            enough += f", or {GEMM_SHARE:.0%} of the ceiling (here {share:.0%})"
            ok = ok or share >= GEMM_SHARE
        yield Bar(f"{ours} / {theirs}, concurrency {at}", round(value, 2), enough, ok)


def _sampled(result: Result) -> Iterable[Bar]:
    for peer in (OURS, INT8):
        for at in (8, 32):
            value = middle(result.sampled_ratios(peer, at))
            name = f"{peer}: sampled / greedy, concurrency {at}"
            yield Bar(name, round(value, 3), f">= {SAMPLED_SHARE}", value >= SAMPLED_SHARE)


def _tails_and_start(result: Result) -> Iterable[Bar]:
    for peer in (OURS, INT8):
        for at, limit_ms in ((8, GAP_AT_8_LIMIT_MS), (32, GAP_LIMIT_MS)):
            gap = result.value(peer, "closed", "itl_p99_ms", at)
            yield Bar(f"{peer}: ITL p99 at {at}, ms", gap, f"<= {limit_ms:.0f}", gap <= limit_ms)
        ready = result.value(peer, "start", "ready_s")
        yield Bar(f"{peer}: start to ready, s", ready, f"< {READY_LIMIT_S:.0f}", ready < READY_LIMIT_S)


def _memory(result: Result) -> Iterable[Bar]:
    value = round(ratio(result.peak_mib(OURS), result.peak_mib("vllm")), 2)
    yield Bar(f"peak memory, {OURS} / vllm", value, "< 1", value < 1)
    for ours, theirs in AVX2_EQUAL_CACHES if _is_avx2(result) else EQUAL_CACHES:
        value = round(ratio(result.peak_mib(ours), result.peak_mib(theirs)), 2)
        yield Bar(f"peak memory, {ours} / {theirs}", value, f"<= {MEMORY_RATIO}", value <= MEMORY_RATIO)


def _share(result: Result) -> Iterable[Bar]:
    least = AVX2_BANDWIDTH_SHARE if _is_avx2(result) else BANDWIDTH_SHARE
    for peer in (OURS, INT8):
        share = round(result.bandwidth_share(peer), 2)
        yield Bar(f"{peer}: share of the memory's bandwidth at 1", share, f">= {least}", share >= least)


def _sane(result: Result) -> Iterable[Bar]:
    """More than all of a ceiling: then the ceiling is wrong, and no share of it says anything."""
    shares = [result.bandwidth_share(peer) for peer in (OURS, INT8)]
    shares += [result.rate(OURS, at) / result.ceiling(at, int8=False) for at in result.concurrencies]
    shares += [result.rate(INT8, at) / result.ceiling(at, int8=True) for at in result.concurrencies]
    most = max((share for share in shares if not math.isnan(share)), default=math.nan)
    yield Bar("largest share of a ceiling", round(most, 2), "<= 1", most <= 1)


def _python(result: Result) -> Iterable[Bar]:
    limit = f"<= {PYTHON_LIMIT_MS:g}"
    for quantization in ("none", "int8"):
        rows = result.split.get(quantization, [])
        value = next((row["python_ms"] for row in rows if row["step"] == "decode, batch 32"), math.nan)
        yield Bar(f"Python per step at 32, ms, quantization {quantization}", value, limit, value <= PYTHON_LIMIT_MS)
