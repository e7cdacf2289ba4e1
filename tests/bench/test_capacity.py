"""Simulated scaling: traces that never change, and what the simulation makes of them."""

import hashlib

from bench.capacity.traces import STEPS_PER_DAY, traces


def test_traces_follow_from_their_seeds() -> None:
    """The digest was written before any policy was tuned: another one would be another benchmark."""
    drawn = traces(days=1)
    assert [trace.name for trace in drawn] == ["steady", "daily", "bursts", "flash", "decay", "wrong forecast"]
    assert all(len(trace.steps) == STEPS_PER_DAY for trace in drawn)
    counts = ",".join(str(step.requests) for trace in drawn for step in trace.steps)
    assert hashlib.sha256(counts.encode()).hexdigest()[:16] == "04e986933cc7f106"
