"""The command line: `python -m bench.gpu`. Exit status 0: every bar held; 1: one did not; 2: nothing was measured.

One call measures all, within `--seconds`: what comes too late is left out and named.
"""

import argparse
import gc
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from bench.gpu.roofline import SHAPES, bars, share

REPOSITORY = Path(__file__).resolve().parents[2]
REPORT = REPOSITORY / "build" / "reports" / "gpu.json"
PROMPT_TOKENS, CONTEXT_TOKENS = 1024, 1408
PEER_BATCH, PEER_PROMPT, PEER_NEW = 64, 128, 128
SAMPLED = {"temperature": 0.8, "top_p": 0.95}
# Sampling, and whether with async scheduling.
LOADS: dict[str, tuple[dict[str, float], bool]] = {
    "greedy": ({}, True),
    "sampled": (SAMPLED, True),
    "sync_greedy": ({}, False),
    "sync_sampled": (SAMPLED, False),
}
ROUNDS = 3
COPY_BYTES, COPIES = 4 << 30, 20
Row = dict[str, Any]


def main() -> int:
    options = _parser().parse_args()
    if reason := why_not():
        print(f"Nothing was measured: {reason}", file=sys.stderr)
        return 2
    import torch

    torch.cuda.set_device(0)
    end = time.monotonic() + options.seconds
    report: Row = {"name": "gpu", "commit": _commit(), "machine": _machine(), "rows": [], "missing": {}}
    bandwidth = report["machine"]["copy_bytes_per_s"] = _copy_bandwidth()
    _free()
    print(f"{report['machine']['gpu']}: a copy moves {bandwidth / 1e12:.2f} TB/s, read and written", flush=True)
    _tokens(report, end)
    _write(report)
    for name in options.models:
        try:
            _one_model(name, options.batches, bandwidth, report, end)
        except torch.OutOfMemoryError as error:
            report["missing"][name] = str(error).splitlines()[0]
        _free()
        _write(report)
    for what, reason in report["missing"].items():
        print(f"left out: {what}: {reason}")
    for bar in report["bars"]:
        print(f"{'ok    ' if bar['ok'] else 'MISSED'} {bar['bar']}: {bar['value']} (must be {bar['limit']})")
    return 0 if report["bars"] and all(bar["ok"] for bar in report["bars"]) else 1


def _write(report: Row) -> None:
    """After each part: who is ended by a clock from outside keeps what was measured until then."""
    report["bars"] = bars(report["rows"])
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=1) + "\n")


def _free() -> None:
    import torch

    gc.collect()
    torch.cuda.empty_cache()


def why_not() -> str | None:
    """One sentence where there is nothing to measure on or with."""
    try:
        import torch
    except ImportError:
        return "torch is not installed."
    if not torch.cuda.is_available():
        return "there is no GPU here, or torch was built without CUDA."
    try:
        import bench.gpu.ours
        import bench.gpu.tokens  # noqa: F401
    except ImportError as error:
        return f"{error.name} is not installed, and the engine needs it."
    return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description="The engine against the GPU's own limits.")
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32, 64, 128, 256])
    parser.add_argument("--seconds", type=float, default=540.0, help="that all of it may take")
    return parser


def _tokens(report: Row, end: float) -> None:
    from bench.gpu.tokens import NAMES, equal_share

    for name in NAMES:
        if time.monotonic() > end:
            report["missing"][f"tokens of {name}"] = "no time was left"
            continue
        row = {"kind": "tokens", "model": name, "equal": equal_share(name, "cuda:0")}
        report["rows"].append(row)
        print(f"{name}: {row['equal']:.0%} of the greedy float32 answers are those of transformers", flush=True)


def _one_model(name: str, batches: list[int], bandwidth: float, report: Row, end: float) -> None:
    from bench.gpu.ours import async_scheduling, decodes, engine_of

    shape = SHAPES[name]
    engine = engine_of(shape, "cuda:0", max(*batches, PEER_BATCH), CONTEXT_TOKENS)
    print(f"\n{name}   batch    step ms   model ms      tok/s   share    sync   model alone   prefill tok/s")
    for batch in batches:
        if time.monotonic() > end:
            report["missing"][f"{name}, batch {batch}"] = "no time was left"
            continue
        found = decodes(engine, batch, PROMPT_TOKENS)
        with async_scheduling(engine, False):
            sync = decodes(engine, batch, PROMPT_TOKENS)
        sync_share = share(shape, batch, sync.context_tokens, sync.step_s, bandwidth)
        shares = [share(shape, batch, found.context_tokens, each, bandwidth) for each in (found.step_s, found.model_s)]
        row = {
            "kind": "decode", "model": name, "batch": batch, "context_tokens": found.context_tokens,
            "step_ms": round(found.step_s * 1e3, 4), "model_ms": round(found.model_s * 1e3, 4),
            "tokens_per_s": round(batch / found.step_s, 1), "share": round(shares[0], 4),
            "sync_step_ms": round(sync.step_s * 1e3, 4), "sync_share": round(sync_share, 4),
            "model_share": round(shares[1], 4), "prefill_tokens_per_s": round(found.prefill_tokens_per_s),
        }  # fmt: skip
        report["rows"].append(row)
        print(
            f"{name}   {batch:5} {row['step_ms']:10.3f} {row['model_ms']:10.3f} {row['tokens_per_s']:10.1f}"
            f" {shares[0]:7.1%} {sync_share:7.1%} {shares[1]:13.1%} {row['prefill_tokens_per_s']:15}",
            flush=True,
        )
    ours = 0.0
    if time.monotonic() < end:
        ours = _loads(name, engine, report)
    del engine
    _free()
    _peers(name, ours, report, end)


def _loads(name: str, engine: Any, report: Row) -> float:
    """Greedy and sampled requests in turns, the medians of their rates; that of greedy ones is for the peers too."""
    from bench.gpu.ours import async_scheduling, closed

    rates: dict[str, list[float]] = {kind: [] for kind in LOADS}
    closed(engine, 2, PEER_PROMPT, 8, **SAMPLED)
    for _ in range(ROUNDS):
        for kind, (sampling, ahead) in LOADS.items():
            with async_scheduling(engine, ahead):
                rates[kind].append(closed(engine, PEER_BATCH, PEER_PROMPT, PEER_NEW, **sampling))
    medians = {kind: round(median(found), 1) for kind, found in rates.items()}
    times = round(medians["sampled"] / medians["greedy"], 3)
    report["rows"].append({"kind": "sampled", "model": name, "batch": PEER_BATCH, **medians, "sampled_times": times})
    print(f"{name}: {', '.join(f'{kind} {rate} tok/s' for kind, rate in medians.items())}; {times}", flush=True)
    return medians["greedy"]


def _peers(name: str, ours: float, report: Row, end: float) -> None:
    from bench.gpu.peers import PEERS

    what = f"{PEER_BATCH} requests at once, {PEER_PROMPT} tokens in and {PEER_NEW} out"
    print(f"{name}: {what}: slipway {ours:.1f} tok/s", flush=True)
    for peer, run in PEERS.items():
        if time.monotonic() > end or not ours:
            report["missing"][f"{peer} on {name}"] = "no time was left"
            continue
        try:
            rate = run(SHAPES[name], "cuda:0", PEER_BATCH, PEER_PROMPT, PEER_NEW)
        except Exception as error:  # a peer's failure is reported, and is no reason to lose what was measured
            report["missing"][f"{peer} on {name}"] = f"{type(error).__name__}: {error}".splitlines()[0]
            continue
        finally:
            _free()
        times = round(ours / rate, 2)
        row = {"kind": "peer", "model": name, "peer": peer, "tokens_per_s": rate, "ours": ours, "ours_times": times}
        report["rows"].append(row)
        print(f"{name}: {peer} {rate:.1f} tok/s, ours is {times} times that", flush=True)


def _copy_bandwidth() -> float:
    """Bytes read and written per second by a copy within the device, the best of several."""
    import torch

    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda").zero_()
    target = torch.empty_like(source)
    target.copy_(source)
    times = []
    for _ in range(COPIES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return float(2 * COPY_BYTES / min(times))


def _machine() -> Row:
    import torch
    import triton

    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "memory_bytes": properties.total_memory,
        "processors": properties.multi_processor_count,
        "torch": torch.__version__,
        "triton": triton.__version__,
    }


def _commit() -> str:
    command = ["git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())
