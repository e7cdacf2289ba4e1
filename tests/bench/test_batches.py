"""`make bench-batches` runs whole, on real processes, and what it computes of blocks."""

import json
import os
import subprocess
import sys

import pytest

from bench.batches import Block, quantile, ratio
from testkit import ROOT


def blocks(*took_ms: list[float]) -> list[Block]:
    return [Block(list(each)) for each in took_ms]


def test_quantile_is_of_all_requests_of_all_blocks() -> None:
    assert quantile(blocks([1.0, 2.0], [3.0]), 0.5) == 2.0


def test_ratio_of_equal_blocks_is_one_and_of_slower_ones_their_factor() -> None:
    alone = blocks([1.0, 2.0, 3.0], [2.0, 3.0, 4.0])
    assert ratio(alone, alone, 0.99) == (1.0, 1.0, 1.0)
    value, low, high = ratio(alone, blocks([2.0, 4.0, 6.0], [4.0, 6.0, 8.0]), 0.99)
    assert value == pytest.approx(2.0) and low == pytest.approx(2.0) and high == pytest.approx(2.0)


@pytest.mark.integration
def test_benchmark_sends_requests_beside_a_batch_and_reports_both() -> None:
    found = ROOT / "build" / "reports" / "batches.json"
    found.unlink(missing_ok=True)  # a program that breaks ends with 1 too, and must not leave an earlier report to read
    command = [sys.executable, "-m", "bench.batches", "--pairs", "1", "--seconds", "3", "--rate", "3"]
    ran = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=240)
    assert ran.returncode in (0, 1), ran.stderr  # 1: a bar on speed does not hold, where other tests run beside
    made = json.loads(found.read_text())
    assert [bar["bar"] for bar in made["bars"]] == [
        "p99 beside a batch, times alone",
        "requests that failed",
        "lines per second",
    ]
    # Lines were answered before the block began; within these three seconds a busy machine may have no room for one.
    assert made["bars"][1]["ok"], ran.stdout
