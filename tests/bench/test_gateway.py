"""The gateway's bench: what it reads of its generator, which bars fall for what, and a short run of all its parts."""

import json
import math
import os
import subprocess
import sys
from typing import Any

import pytest

from bench.gateway.load import read_wrk
from bench.gateway.programs import PEERS
from bench.gateway.report import bars, latency_row, markdown, throughput_row
from testkit import ROOT

WRK = """  1 threads and 32 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency    47.11ms    8.69ms 112.55ms   93.03%
  1350 requests in 2.01s, 402.12KB read
"""
ABOUT = {
    "day": "2026-11-25", "commit": "c", "machine": {"cores": 2, "cpu": "some", "memory_gib": 8}, "generator": "wrk",
    "connections": 32, "rounds": 2, "rate_per_s": 200, "not_measured": {"litellm": "there is no index here."},
}  # fmt: skip


def rows(**changes: float) -> list[dict[str, object]]:
    ours = changes.get("ours", 4000.0)
    streams = {"open": 2000, "broken": 0, "kib_each": 35.0, "cpu_s": 9.0, "seconds": 26.0, "streams": 2000}
    return [
        throughput_row("slipway", [ours, ours * 1.1], int(changes.get("failed", 0)), 900.0),
        throughput_row("keys", [changes.get("keys", ours / 1.1), ours], int(changes.get("keys_failed", 0)), 800.0),
        throughput_row("nginx", [30000.0, 25000.0], 0, 5000.0),
        throughput_row("aiohttp", [3000.0, 3100.0], 0, 700.0),
        latency_row("slipway", [([0.003, 0.003], [0.0025, changes.get("direct", 0.0025)])]),
        {"kind": "streams", "peer": "slipway", **{name: changes.get(name, value) for name, value in streams.items()}},
    ]


def fallen(**changes: float) -> set[str]:
    return {bar.bar for bar in bars(rows(**changes)) if not bar.ok}


def test_requests_and_every_kind_of_failure_are_read_from_wrk() -> None:
    assert read_wrk(WRK) == (1350, 0)
    assert read_wrk(
        WRK + "  Socket errors: connect 0, read 1, write 0, timeout 2\n  Non-2xx or 3xx responses: 4\n"
    ) == (1350, 7)
    with pytest.raises(ValueError, match="no requests"):
        read_wrk("unable to connect")


def test_each_bar_falls_by_its_own_figure() -> None:
    assert fallen() == set()
    assert fallen(ours=3050.0) == {"requests per CPU-second, times those of nginx"}
    assert fallen(broken=1) == {"streams open at once, none broken"}
    assert fallen(open=1999) == {"streams open at once, none broken"}
    assert fallen(kib_each=64.1) == {"memory of a stream, KiB"}
    assert fallen(failed=1) == fallen(keys_failed=1) == {"requests that failed"}
    assert fallen(keys=3000.0) == {"CPU time that keys, limits and the ledger add"}


def test_ratios_are_those_within_a_round() -> None:
    ratios = {bar.bar.rpartition(" ")[2]: bar.value for bar in bars(rows()) if "times" in bar.bar}
    assert ratios == {"nginx": pytest.approx((4000 / 30000 + 4400 / 25000) / 2, abs=1e-3), "aiohttp": 1.376}


def test_a_failed_request_is_no_fast_one() -> None:
    row = latency_row("slipway", [([0.001, math.inf], [0.001, 0.001])])
    assert row["failed"] == 1
    assert math.isinf(row["added_p99_ms"])


def test_the_page_has_every_peer_and_those_that_were_not_measured() -> None:
    page = markdown(rows(), bars(rows()), ABOUT, {name: peer.title for name, peer in PEERS.items()})
    assert "| nginx | 27,500 |" in page
    assert "LiteLLM proxy: there is no index here." in page


def short_run(*arguments: str) -> dict[str, Any]:
    """What it reports. A bar on speed may fall here, where other tests run beside."""
    (ROOT / "build" / "reports" / "gateway.json").unlink(missing_ok=True)
    command = [sys.executable, "-m", "bench.gateway", "--rounds", "1", "--seconds", "0.5", "--busy-ok", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"QUICK": "1"}, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    found: dict[str, Any] = json.loads((ROOT / "build" / "reports" / "gateway.json").read_text())
    return found


@pytest.mark.integration
def test_a_gateway_with_keys_limits_and_a_ledger_is_measured_without_a_failed_request() -> None:
    made = short_run("--peers", "slipway,keys", "--parts", "throughput")
    assert [(row["peer"], row["failed"]) for row in made["rows"]] == [("slipway", 0), ("keys", 0)]
    assert "CPU time that keys, limits and the ledger add" in {bar["bar"] for bar in made["bars"]}


@pytest.mark.integration
def test_a_short_run_measures_every_part_without_a_failed_request() -> None:
    made = short_run("--peers", "slipway,aiohttp", "--streams", "20")
    measured = {(row["kind"], row["peer"]) for row in made["rows"]}
    kinds = ("throughput", "latency", "streams")
    assert measured == {(kind, peer) for kind in kinds for peer in ("slipway", "aiohttp")}
    assert all(not row.get("failed") and not row.get("broken") for row in made["rows"])
    assert next(row["open"] for row in made["rows"] if (row["kind"], row["peer"]) == ("streams", "slipway")) == 20
