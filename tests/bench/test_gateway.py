"""The gateway's bench: what it reads of its generator, its figures, which bars fall for what, and short runs."""

import json
import math
import os
import subprocess
import sys
from typing import Any

import pytest

from bench.gateway.load import Answered, ClosedLoop, read_wrk
from bench.gateway.messages import CHAT
from bench.gateway.peers import PEERS
from bench.gateway.report import awaited, bars, busy_row, cost_row, difference, latency_row, ratio
from bench.gateway.tables import page
from bench.page import publish
from bench.processes import Program
from testkit import ROOT
from testkit.report import Bar, report

WRK = """  1 threads and 32 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency    47.11ms    8.69ms 112.55ms   93.03%
  1350 requests in 2.01s, 402.12KB read
"""
TRACED = "compiled lane: CPU time of a request with traces of 1 %, times that without"
TITLES = {name: peer.title for name, peer in PEERS.items()}
ABOUT = {
    "day": "2026-11-25", "commit": "c", "machine": {"cores": 2, "cpu": "some", "memory_gib": 8}, "generator": "wrk",
    "upstream": "Rust", "connections": 32, "rounds": 2, "rate_per_s": 200, "events_per_s": 50,
    "noise": {"tls": {"foreign_share": 0.25, "steal_share": 0.0, "idle_share": 0.5}},
    "versions": {"nginx": "nginx/1.22.1"}, "not_measured": {"litellm": "there is no index here."},
}  # fmt: skip


def blocks(*us: float, failed: int = 0, per_s: float = 1000.0) -> list[Answered]:
    """One block of 1,000 requests for each."""
    return [Answered(1000, failed, each / 1e3, 1000 / per_s) for each in us]


def rows(lane: str = "plane", /, **changes: float) -> list[dict[str, Any]]:
    """A run in which all bars hold, but for `changes`."""
    keyed = {"slipway": "keys", "plane": "plane-keys"}[lane]
    ours, keys = changes.get("ours", 20.0), changes.get("keys", 14.0)
    streams = {"open": 2000, "broken": 0, "kib_each": 35.0, "streams": 2000}
    event, events = changes.get("event", 20.0), {"streams": 100, "intended_per_s": 5000}
    figures, traced = {"cpu_s": 9.0, "seconds": 26.0}, changes.get("traced", 1.0)
    made = [
        cost_row("throughput", lane, blocks(ours, ours * 1.1, failed=int(changes.get("failed", 0)))),
        cost_row("throughput", keyed, blocks(ours + keys, ours * 1.1 + keys)),
        cost_row("throughput", "nginx", blocks(20.0, 18.0)),
        cost_row("throughput", "sglang-router", blocks(changes.get("sglang", 120.0), 120.0)),
        cost_row("throughput", "aiohttp", blocks(160.0, 170.0)),
        cost_row("events", lane, blocks(event, event, per_s=changes.get("events_per_s", 5000.0)), **events),
        cost_row("events", keyed, blocks(event, changes.get("keyed_event", event), per_s=5100.0), **events),
        cost_row("events", "nginx", blocks(18.0, 18.0, per_s=4900.0), **events),
        latency_row("nginx", [([0.003, 0.003], [0.0028, 0.0028])] * 2),
        latency_row(lane, [([0.003, changes.get("p99", 0.003)], [changes.get("direct_p50", 0.0028), 0.0028])] * 2),
        busy_row(lane, [(0.01, changes.get("busy_p99", 0.014))] * 2, int(changes.get("tables", 3))),
        {"kind": "streams", "peer": lane, **{name: changes.get(name, value) for name, value in streams.items()}},
        cost_row("tls", lane, blocks(changes.get("tls", 40.0))),
        cost_row("tls", "nginx", blocks(22.0)),
        cost_row("grpc", lane, blocks(changes.get("grpc", 79.0))),
        cost_row("predict", lane, blocks(changes.get("predict", 30.0), per_s=changes.get("predicted", 5000.0))),
        cost_row("traces", lane, blocks(20.0, 25.0), share="off", spans=0),
        cost_row("traces", lane, blocks(20.0 * traced, 25.0 * traced), share="1%", spans=int(changes.get("spans", 10))),
    ]
    if lane == "plane":
        made += [
            cost_row("throughput", "slipway", blocks(200.0, 220.0)),
            cost_row("throughput", "litellm", blocks(changes.get("litellm", 7000.0), 7000.0)),
            latency_row("slipway", [([0.003], [changes.get("python_direct", 0.0025)])] * 2),
            {"kind": "streams", "peer": "slipway", **streams, "kib_each": changes.get("python_kib", 60.0)},
            cost_row("predict", "slipway", blocks(300.0, per_s=1600.0)),
        ]
    return [row | figures if row["kind"] == "streams" else row for row in made]


def fallen(**changes: float) -> set[str]:
    return {bar.bar for bar in bars(rows("plane", **changes)) if not bar.ok}


# -- the generator


def test_requests_and_every_kind_of_failure_are_read_from_wrk() -> None:
    assert read_wrk(WRK) == (1350, 0)
    assert read_wrk(
        WRK + "  Socket errors: connect 0, read 1, write 0, timeout 2\n  Non-2xx or 3xx responses: 4\n"
    ) == (1350, 7)
    with pytest.raises(ValueError, match="no requests"):
        read_wrk("unable to connect")


# -- figures


def test_figures_of_two_peers_are_medians_within_rounds() -> None:
    assert ratio([1.0, 4.0, 9.0], [1.0, 2.0, 3.0]) == 2.0
    assert difference([10.0, 2.0, 30.0], [1.0, 1.0, 1.0]) == 9.0
    # A drift that hits both in the same round changes no ratio.
    assert ratio([20.0, 40.0], [10.0, 20.0]) == 2.0


def test_a_peer_that_was_not_measured_gives_no_figure_and_no_time_at_all_is_no_number() -> None:
    assert ratio(None, [1.0]) is None
    assert difference([1.0], None) is None
    assert math.isnan(ratio([1.0], [0.0]) or 0.0)


def test_a_row_has_the_cpu_time_of_one_request_its_extremes_and_all_rounds() -> None:
    row = cost_row("tls", "nginx", [Answered(1000, 1, 0.02, 0.5), Answered(500, 2, 0.02, 0.5)], streams=5)
    assert row["rounds"] == pytest.approx([20.0, 40.0])
    assert (row["us"], row["least"], row["most"]) == pytest.approx((30.0, 20.0, 40.0))
    assert (row["per_s"], row["core_share"], row["failed"], row["streams"]) == (1500.0, 0.04, 3, 5)


def test_a_block_without_a_request_or_with_many_failures_has_no_cost() -> None:
    assert math.isnan(Answered(0, 0, 1.0, 1.0).us)
    assert math.isnan(Answered(1000, 11, 1.0, 1.0).us)
    assert Answered(1000, 10, 1.0, 1.0).us == 1000.0


def test_a_peer_that_has_died_has_failures_alone() -> None:
    """By aiohttp's clients: nothing listens at port 1."""
    done = ClosedLoop(CHAT, 0.05, None, connections=2).measure(Program("gone", "http://127.0.0.1:1", ()))
    assert done.count == done.failed > 0


def test_a_failed_request_is_no_fast_one() -> None:
    row = latency_row("slipway", [([0.001, math.inf], [0.001, 0.001])])
    assert row["failed"] == 1
    assert math.isinf(row["added_p99_ms"])


# -- bars


def test_a_run_of_both_lanes_in_which_all_bars_hold() -> None:
    assert fallen() == set()
    assert len(bars(rows())) == 23
    assert awaited(rows()) == frozenset()


@pytest.mark.parametrize(
    ("changes", "bar"),
    [
        ({"ours": 27.0, "keys": 9.0}, "requests per CPU-second, times those of nginx"),
        ({"ours": 24.0, "keys": 15.0}, "requests per CPU-second with keys, limits and ledger, times those of nginx"),
        ({"sglang": 40.0}, "requests per CPU-second, times those of sglang-router"),
        ({"keys": 17.0}, "CPU time that keys, limits and the ledger add to a request, µs"),
        (
            {"keyed_event": 27.0},
            "CPU time of an event of 100 streams with keys, limits and ledger, times that of nginx",
        ),
        # A late peer has several events in one read, so that each costs less.
        ({"events_per_s": 4400.0}, "CPU time of an event of 100 streams, times that of nginx"),
        ({"direct_p50": 0.0026}, "added latency p50, ms"),
        ({"p99": 0.0036}, "added latency p99 beyond that of nginx, ms"),
        ({"busy_p99": 0.0151}, "p99 beside a busy control side, times that beside an idle one"),
        ({"tables": 0}, "p99 beside a busy control side, times that beside an idle one"),
        ({"kib_each": 36.1}, "memory of a stream, KiB"),
        ({"tls": 44.1}, "requests per CPU-second with TLS, times those of nginx with TLS"),
        ({"grpc": 80.1}, "CPU time of a gRPC call, µs"),
        ({"predicted": 4799.0}, "predictions per second on one core, times those of the Python lane"),
        ({"predict": 38.0}, "the gateway's CPU time of a prediction, times that of the Python lane"),
        ({"litellm": 5000.0}, "Python lane: requests per CPU-second, times those of litellm"),
        ({"python_direct": 0.0019}, "Python lane: added latency p50, ms"),
        ({"python_kib": 64.1}, "Python lane: memory of a stream, KiB"),
        ({"open": 1999}, "streams open at once, none broken"),
        ({"failed": 1}, "requests that failed"),
        ({"traced": 1.03}, TRACED),
        # A gateway that records nothing is as cheap as one without traces.
        ({"spans": 0}, TRACED),
    ],
)
def test_each_bar_falls_by_its_own_figure(changes: dict[str, float], bar: str) -> None:
    assert fallen(**changes) == {bar}


def test_a_broken_stream_is_a_failure() -> None:
    assert fallen(broken=1) == {"streams open at once, none broken", "requests that failed"}


def test_a_gateway_that_does_not_start_fails_the_run_and_a_machine_without_the_compiled_lane_does_not() -> None:
    def lost(lane: str, *names: str) -> float:
        return next(bar for bar in bars(rows(lane), not_measured=names) if "did not start" in bar.bar).value

    assert lost("slipway", "slipway", "keys", "server", "litellm") == 3
    assert lost("slipway", "plane", "plane-keys") == 0
    # It was there in another part.
    assert lost("plane", "plane") == 1


def test_a_peer_that_is_missing_takes_its_bars_along() -> None:
    left = [row for row in rows() if row["peer"] != "nginx"]
    assert not [bar.bar for bar in bars(left) if "nginx" in bar.bar]


def test_without_the_compiled_lane_its_bars_are_of_the_python_lane_and_await_it() -> None:
    found = {bar.bar: bar for bar in bars(rows("slipway", ours=210.0))}
    assert found["requests per CPU-second, times those of nginx"].value == pytest.approx(0.087, abs=0.001)
    assert found["predictions per second on one core, times those of the Python lane"].value == 1.0
    missed = {name for name, bar in found.items() if not bar.ok}
    assert len(missed) > 5
    assert missed <= awaited(rows("slipway", ours=210.0))
    # What holds today counts today.
    assert not {"requests that failed", "Python lane: added latency p99, ms"} & awaited(rows("slipway"))


def test_a_missed_bar_fails_the_run_unless_it_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.page.write", lambda made: ROOT / "build" / "reports" / "x.json")
    made = [Bar("a", 1, ">= 2", ok=False), Bar("b", 3, ">= 2", ok=True)]
    assert publish(report("x", [], made), made, "", None) == 1
    assert publish(report("x", [], made), made, "", None, awaited={"a"}) == 0
    assert publish(report("x", [], made), made, "", None, awaited={"b"}) == 1


def test_the_page_has_every_peer_the_noise_and_those_that_were_not_measured() -> None:
    text = page(rows(), bars(rows()), ABOUT, TITLES)
    assert "| nginx | 19.0 | 18.0 to 20.0 | 52,632 | 1.000 |" in text
    assert "| tls | 25% | 0% | 50% |" in text
    assert "LiteLLM proxy: there is no index here." in text
    assert "nginx: nginx/1.22.1" in text
    assert "## Slow streams" in text
    assert "## Slow streams" not in page([], [], ABOUT, TITLES)


# -- short runs, without the network: the load is aiohttp's, and the model server the one in Python


LONGEST_S = 300  # the parts start a gateway each, which takes seconds where other tests run beside


def short_run(*arguments: str) -> dict[str, Any]:
    """What it reports. A bar on speed may fall here, where other tests run beside."""
    (ROOT / "build" / "reports" / "gateway.json").unlink(missing_ok=True)
    flags = ["--rounds", "1", "--seconds", "0.5", "--busy-ok", "--no-downloads", "--event-streams", "10"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.gateway", *flags, *arguments],
        cwd=ROOT, env=os.environ | {"QUICK": "1"}, capture_output=True, text=True, timeout=LONGEST_S - 10, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    found: dict[str, Any] = json.loads((ROOT / "build" / "reports" / "gateway.json").read_text())
    return found


@pytest.mark.integration
@pytest.mark.timeout(LONGEST_S)
def test_a_gateway_with_keys_limits_and_a_ledger_is_measured_without_a_failed_request() -> None:
    made = short_run("--peers", "slipway,keys", "--parts", "throughput")
    assert [(row["peer"], row["failed"]) for row in made["rows"]] == [("slipway", 0), ("keys", 0)]
    assert all(row["us"] > 0 for row in made["rows"])
    assert "CPU time that keys, limits and the ledger add to a request, µs" in {bar["bar"] for bar in made["bars"]}
    assert set(made["noise"]) == {"throughput"}


@pytest.mark.integration
@pytest.mark.timeout(LONGEST_S)
def test_a_short_run_measures_events_and_memory_of_streams_that_all_end_whole() -> None:
    made = short_run("--peers", "keys", "--streams", "20", "--parts", "events,streams")
    rows = {row["kind"]: row for row in made["rows"]}
    assert rows["events"]["us"] > 0
    assert rows["events"]["failed"] == rows["streams"]["broken"] == 0
    assert rows["streams"]["open"] == 20


@pytest.mark.integration
@pytest.mark.timeout(LONGEST_S)
def test_a_short_run_measures_traces_that_came_as_far_as_each_gateway_records() -> None:
    made = short_run("--peers", "slipway", "--parts", "traces", "--seconds", "0.2")
    spans = {row["share"]: (row["spans"], row["failed"]) for row in made["rows"]}
    assert spans["off"] == spans["off-again"] == (0, 0)
    assert 0 < spans["100%"][0] > spans["1%"][0]
    assert {bar["bar"] for bar in made["bars"]} >= {TRACED.replace("compiled", "Python")}


@pytest.mark.integration
@pytest.mark.timeout(LONGEST_S)
def test_a_short_run_measures_latency_beside_a_peer() -> None:
    made = short_run("--peers", "slipway,aiohttp", "--parts", "latency")
    assert [(row["peer"], row["failed"]) for row in made["rows"]] == [("slipway", 0), ("aiohttp", 0)]
    assert all(row["routed_p50_ms"] > 0 for row in made["rows"])


@pytest.mark.integration
@pytest.mark.timeout(LONGEST_S)
def test_a_short_run_measures_tls_grpc_and_a_busy_control_side_that_parsed_tables() -> None:
    made = short_run("--peers", "slipway,plane", "--parts", "busy,tls,grpc")
    rows = {(row["kind"], row["peer"]): row for row in made["rows"]}
    assert {kind for kind, _ in rows} == {"busy", "tls", "grpc"}
    assert rows["busy", "slipway"]["tables"] > 0
    assert rows["tls", "slipway"]["failed"] == rows["grpc", "slipway"]["failed"] == 0
    # A lane that this gateway lacks is named, and the run goes on.
    assert ("plane" in made["not_measured"]) == (made["lane"] == "slipway")
