"""What a run promises, bar by bar (pure)."""

import math
from collections.abc import Iterable

from bench.engine.figures import ratio
from bench.engine.peers import INT8, OURS, PEERS
from bench.engine.result import Result
from bench.engine.shapes import QWEN06
from testkit.report import Bar

READY_LIMIT_S, GAP_LIMIT_MS, PYTHON_LIMIT_MS = 6.0, 1000.0, 2.0
VLLM_RATIO, INT8_RATIO, GEMM_SHARE, ROOFLINE_SHARE = 1.3, 2.0, 0.85, 0.8


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


def unmeasured(result: Result) -> list[str]:
    """Promises that this run did not measure."""
    return [bar.bar for bar in _promises(result) if math.isnan(bar.value)]


def _promises(result: Result) -> list[Bar]:
    """They are made for the 0.6B shape."""
    if result.shape is not QWEN06:
        return []
    parts = (_speed, _tails_and_start, _memory, _share, _python)
    return [bar for part in parts for bar in part(result)]


def _speed(result: Result) -> Iterable[Bar]:
    value = ratio(result.rate(OURS, 1), result.rate("llama", 1))
    yield Bar("bf16 / llama, concurrency 1", round(value, 2), ">= 1", value >= 1.0)
    for concurrency in (8, 32):
        theirs, bf16 = result.rate("vllm", concurrency), result.rate(OURS, concurrency)
        value, share = ratio(bf16, theirs), bf16 / result.ceiling(concurrency, int8=False)
        limit = f">= {VLLM_RATIO}, or {GEMM_SHARE:.0%} of the GEMM ceiling (here {share:.0%})"
        enough = value >= VLLM_RATIO or share >= GEMM_SHARE
        yield Bar(f"bf16 / vllm, concurrency {concurrency}", round(value, 2), limit, enough)
        value = ratio(result.rate(INT8, concurrency), theirs)
        yield Bar(f"int8 / vllm, concurrency {concurrency}", round(value, 2), f">= {INT8_RATIO}", value >= INT8_RATIO)


def _tails_and_start(result: Result) -> Iterable[Bar]:
    for peer in (OURS, INT8):
        gap = result.value(peer, "closed", "itl_p99_ms", 32)
        yield Bar(f"{peer}: ITL p99 at 32, ms", gap, f"<= {GAP_LIMIT_MS:.0f}", gap <= GAP_LIMIT_MS)
        ready = result.value(peer, "start", "ready_s")
        yield Bar(f"{peer}: start to ready, s", ready, f"< {READY_LIMIT_S:.0f}", ready < READY_LIMIT_S)


def _memory(result: Result) -> Iterable[Bar]:
    ours = result.peak_mib(OURS)
    for peer in ("vllm", "llama"):
        theirs = result.peak_mib(peer)
        value = round(ratio(ours, theirs), 2)
        yield Bar(f"peak memory, bf16 / {peer}", value, "< 1", value < 1)


def _share(result: Result) -> Iterable[Bar]:
    for peer in (OURS, INT8):
        share = round(result.decode_rate(peer) / result.roofline(PEERS[peer].weight_bytes), 2)
        limit = f">= {ROOFLINE_SHARE}"
        yield Bar(f"{peer}: share of the decode roofline at 1", share, limit, share >= ROOFLINE_SHARE)


def _python(result: Result) -> Iterable[Bar]:
    limit = f"<= {PYTHON_LIMIT_MS:g}"
    for quantization in ("none", "int8"):
        rows = result.split.get(quantization, [])
        value = next((row["python_ms"] for row in rows if row["step"] == "decode, batch 32"), math.nan)
        yield Bar(f"Python per step at 32, ms, quantization {quantization}", value, limit, value <= PYTHON_LIMIT_MS)
