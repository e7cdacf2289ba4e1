"""The summary: bars, a text for people, and build/reports/demo.json."""

from collections import defaultdict

from examples.demo.story import ENOUGH_REQUESTS, Outcome
from testkit.load.closed import Report
from testkit.report import Bar, Json, report

LEAST_STREAMS = 10


def bars(outcome: Outcome) -> list[Bar]:
    seen = outcome.report
    counts = [
        Bar("requests", seen.requests, f">= {ENOUGH_REQUESTS}", seen.requests >= ENOUGH_REQUESTS),
        Bar("streams at any time", seen.min_streams, f">= {LEAST_STREAMS}", seen.min_streams >= LEAST_STREAMS),
        Bar("failed requests", seen.failed, "0", seen.failed == 0),
        Bar("broken streams", seen.broken, "0", seen.broken == 0),
    ]
    return [*counts, *(Bar(state, came, "reached", came) for state, came in outcome.reached.items())]


def by_version(seen: Report, versions: dict[str, str]) -> dict[str, tuple[int, int]]:
    """Version → requests that ended well, and failures; `-` where no gateway named a revision."""
    counted: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for column, counts in enumerate((seen.by_revision, seen.failures_by_revision)):
        for revision, count in counts.items():
            counted[versions.get(revision, revision or "-")][column] += count
    return {version: (good, bad) for version, (good, bad) in sorted(counted.items())}


def summary(outcome: Outcome, total_s: float) -> str:
    """For people."""
    seen = outcome.report
    shares = by_version(seen, outcome.versions).items()
    rate = seen.requests / seen.seconds if seen.seconds else 0.0
    lines = [
        f"requests    {seen.requests} in {seen.seconds:.0f} s ({rate:.1f}/s),"
        f" {seen.tokens} tokens, {seen.size_bytes / 1e6:.1f} MB",
        f"streams     {seen.streams}, never fewer than {seen.min_streams} at a time",
        f"failed      {seen.failed}",
        f"broken      {seen.broken}",
        f"latency     p50 {seen.latency_s(0.5):.2f} s, p95 {seen.latency_s(0.95):.2f} s,"
        f" p99 {seen.latency_s(0.99):.2f} s for a whole answer",
        "revisions   " + ", ".join(f"{version}: {good} good, {bad} bad" for version, (good, bad) in shares),
        "seconds     " + ", ".join(f"{name} {value:.0f}" for name, value in outcome.seconds.items()),
        f"total       {total_s:.0f} s",
    ]
    kept = [f"  {failure}" for failure in seen.failures[:20]]
    missed = [f"  not held: {bar.bar} is {bar.value}, must be {bar.limit}" for bar in bars(outcome) if not bar.ok]
    return "\n".join([*lines, *kept, *missed])


def as_json(outcome: Outcome, total_s: float) -> Json:
    """For build/reports/demo.json."""
    seen = outcome.report
    shares = by_version(seen, outcome.versions).items()
    rows: list[Json] = [
        *({"phase": name, "seconds": round(value, 2)} for name, value in outcome.seconds.items()),
        {"phase": "total", "seconds": round(total_s, 2)},
        *({"version": version, "requests": good, "failures": bad} for version, (good, bad) in shares),
        {
            "load_s": round(seen.seconds, 2),
            "requests": seen.requests,
            "streams": seen.streams,
            "tokens": seen.tokens,
            "bytes": seen.size_bytes,
            **{f"latency_p{int(q * 100)}_s": round(seen.latency_s(q), 3) for q in (0.5, 0.95, 0.99)},
        },
    ]
    return report("demo", rows, bars(outcome), failures=[str(failure) for failure in seen.failures])
