"""The summary: bars, a text for people, and build/reports/demo.json."""

import json
import os
import platform
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.demo.load import Report
from examples.demo.story import ENOUGH_REQUESTS, Outcome

Json = dict[str, Any]

LEAST_STREAMS = 10


@dataclass(frozen=True, slots=True)
class Bar:
    """One promise, and whether it held."""

    bar: str
    value: float | int | bool
    limit: str
    ok: bool


def bars(outcome: Outcome) -> list[Bar]:
    report = outcome.report
    counts = [
        Bar("requests", report.requests, f">= {ENOUGH_REQUESTS}", report.requests >= ENOUGH_REQUESTS),
        Bar("streams at any time", report.min_streams, f">= {LEAST_STREAMS}", report.min_streams >= LEAST_STREAMS),
        Bar("failed requests", report.failed, "0", report.failed == 0),
        Bar("broken streams", report.broken, "0", report.broken == 0),
    ]
    return [*counts, *(Bar(state, came, "reached", came) for state, came in outcome.reached.items())]


def by_version(report: Report, versions: dict[str, str]) -> dict[str, tuple[int, int]]:
    """Version → requests that ended well, and failures; `-` where no gateway named a revision."""
    counted: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for column, counts in enumerate((report.by_revision, report.failures_by_revision)):
        for revision, count in counts.items():
            counted[versions.get(revision, revision or "-")][column] += count
    return {version: (good, bad) for version, (good, bad) in sorted(counted.items())}


def summary(outcome: Outcome, total_s: float) -> str:
    """For people."""
    report = outcome.report
    shares = by_version(report, outcome.versions).items()
    rate = report.requests / report.seconds if report.seconds else 0.0
    lines = [
        f"requests    {report.requests} in {report.seconds:.0f} s ({rate:.1f}/s),"
        f" {report.tokens} tokens, {report.size_bytes / 1e6:.1f} MB",
        f"streams     {report.streams}, never fewer than {report.min_streams} at a time",
        f"failed      {report.failed}",
        f"broken      {report.broken}",
        f"latency     p50 {report.latency_s(0.5):.2f} s, p95 {report.latency_s(0.95):.2f} s,"
        f" p99 {report.latency_s(0.99):.2f} s for a whole answer",
        "revisions   " + ", ".join(f"{version}: {good} good, {bad} bad" for version, (good, bad) in shares),
        "seconds     " + ", ".join(f"{name} {value:.0f}" for name, value in outcome.seconds.items()),
        f"total       {total_s:.0f} s",
    ]
    kept = [f"  {failure}" for failure in report.failures[:20]]
    missed = [f"  not held: {bar.bar} is {bar.value}, must be {bar.limit}" for bar in bars(outcome) if not bar.ok]
    return "\n".join([*lines, *kept, *missed])


def as_json(outcome: Outcome, total_s: float, root: Path) -> Json:
    """DESIGN §8's shape."""
    report = outcome.report
    shares = by_version(report, outcome.versions).items()
    return {
        "name": "demo",
        "commit": commit(root),
        "machine": machine(),
        "rows": [
            *({"phase": name, "seconds": round(value, 2)} for name, value in outcome.seconds.items()),
            {"phase": "total", "seconds": round(total_s, 2)},
            *({"version": version, "requests": good, "failures": bad} for version, (good, bad) in shares),
            {
                "load_s": round(report.seconds, 2),
                "requests": report.requests,
                "streams": report.streams,
                "tokens": report.tokens,
                "bytes": report.size_bytes,
                **{f"latency_p{int(q * 100)}_s": round(report.latency_s(q), 3) for q in (0.5, 0.95, 0.99)},
            },
        ],
        "failures": [str(failure) for failure in report.failures],
        "bars": [{"bar": bar.bar, "value": bar.value, "limit": bar.limit, "ok": bar.ok} for bar in bars(outcome)],
    }


def write(report: Json, root: Path) -> Path:
    target = root / "build" / "reports" / f"{report['name']}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    half = target.with_suffix(".tmp")
    half.write_text(json.dumps(report, indent=1) + "\n")
    half.replace(target)
    return target


def machine() -> Json:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cores": len(os.sched_getaffinity(0)), "cpu": _cpu(), "memory_gib": round(memory / 2**30, 1)}


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def commit(root: Path) -> str:
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
