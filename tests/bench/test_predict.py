"""The bench of classic models: what its client reads, when it sends, which bars fall for what, and a short run."""

import asyncio
import contextlib
import itertools
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from bench.predict.load import (
    Measured,
    Target,
    answer_end,
    closed_loop,
    highest_sustained,
    open_loop,
    repeated_until_on_time,
)
from bench.predict.models import MODELS
from bench.predict.programs import PEERS
from bench.predict.report import (
    bars,
    gateway_row,
    grpc_row,
    idle_row,
    latency_row,
    markdown,
    saturation_row,
    sustained_row,
)
from testkit import ROOT

ABOUT = {
    "day": "2026-11-26", "commit": "c", "machine": {"cores": 2, "cpu": "some", "memory_gib": 8}, "connections": 64,
    "batch_rows": 64, "rounds": 2, "not_measured": {"ray": "there is no index here."},
}  # fmt: skip
TITLES = {name: peer.title for name, peer in PEERS.items()} | {name: model.title for name, model in MODELS.items()}


def measured(per_s: float, took_ms: float = 2.0, *, lag_ms: float = 0.1, failed: int = 0) -> Measured:
    """A second of requests that took the same time."""
    count = round(per_s)
    took_s = [took_ms / 1e3] * (count - failed) + [math.inf] * failed
    return Measured(took_s, [lag_ms / 1e3] * count, 1.0)


def test_a_run_with_a_late_client_is_repeated_whatever_it_measured() -> None:
    late, slow, fast = measured(100, lag_ms=1.2), measured(100, took_ms=900.0), measured(100)
    runs = iter([late, late, slow, fast])
    found = repeated_until_on_time(lambda: next(runs))
    assert (found, found.late_runs, next(runs)) == (slow, 2, fast), "a slow server is no reason"
    runs = itertools.repeat(late)
    assert repeated_until_on_time(lambda: next(runs)).late_runs == 3, "the last one counts"
    row = latency_row("mlp", "slipway", "own", 100, [slow, fast])
    assert row["late_runs"] == 2
    page = markdown([*rows(), row], [], ABOUT, TITLES)
    assert "2 runs of random arrivals were thrown away" in page


def rows(**changes: float) -> list[dict[str, Any]]:
    rate = changes.get("rate", 2000.0)
    failed = int(changes.get("failed", 0))
    own = measured(1600, changes.get("own_ms", 6.0), lag_ms=changes.get("lag_ms", 0.1))
    routed = {"http": 1000.0, "grpc": changes.get("grpc", 900.0)}
    return [
        {"kind": "alone", "model": "mlp", "peer": "alone", "p50_ms": 0.1, "rows_per_s": 90000.0},
        saturation_row("mlp", "slipway", 64, [measured(rate, failed=failed), measured(rate * 1.1)]),
        saturation_row("mlp", "mlserver", 1, [measured(800), measured(990)]),
        sustained_row("mlp", "slipway", [changes.get("sustained", 1800.0), 1900.0]),
        sustained_row("mlp", "mlserver", [800.0, 900.0]),
        idle_row("mlp", "slipway", [changes.get("idle_ms", 1.5) / 1e3]),
        latency_row("mlp", "slipway", "own", 1600, [own]),
        latency_row("mlp", "slipway", "common", 400, [measured(400, changes.get("common_ms", 3.0))]),
        latency_row("mlp", "mlserver", "common", 400, [measured(400, 8.0)]),
        *(gateway_row("mlp", name, [(measured(per_s), 0.9)]) for name, per_s in routed.items()),
        grpc_row("mlp", "mlserver", [(measured(per_s, failed=1), 1.0) for per_s in (300, 400, 600)]),
    ]


def fallen(**changes: float) -> set[str]:
    return {bar.bar for bar in bars(rows(**changes), ["mlserver"]) if not bar.ok}


def test_a_pause_in_one_round_of_three_is_in_the_rows_and_not_in_the_median() -> None:
    row = latency_row("mlp", "slipway", "own", 100, [measured(100, 3), measured(100, 3, failed=50), measured(100, 4)])
    assert row["p99_ms"] == pytest.approx(4) and row["failed"] == 50
    assert row["rounds_p99_ms"] == pytest.approx([3, math.inf, 4])


def test_each_bar_falls_by_its_own_figure() -> None:
    assert fallen() == set()
    assert fallen(rate=1600) == {"mlp: requests per second, times those of mlserver"}
    assert fallen(own_ms=50) == {"mlp: p99 at 80% of what it sustains, ms"}
    assert fallen(sustained=1500) == {"mlp: random arrivals per second, times those of mlserver"}
    assert fallen(common_ms=4.1) == {"mlp: p99 at the common rate, times that of the best peer"}
    assert fallen(idle_ms=1.7) == {"mlp: idle p50 beyond the model's own time, ms"}
    assert fallen(grpc=690) == {"mlp: gRPC, times HTTP, requests per second"}
    assert fallen(failed=1) == {"requests of ours that failed"}
    assert fallen(lag_ms=1.1) == {"p99 of how late the client sends, ms"}


def test_ratios_are_those_within_a_round_and_failed_requests_count_for_nothing() -> None:
    ratio = next(bar.value for bar in bars(rows(failed=200), ["mlserver"]) if "mlserver" in bar.bar)
    assert ratio == pytest.approx((1800 / 800 + 2200 / 990) / 2, abs=0.01)


def test_the_page_has_every_peer_and_those_that_were_not_measured() -> None:
    page = markdown(rows(), bars(rows(), ["mlserver"]), ABOUT, TITLES)
    assert "| Slipway | yes | 2,100 | 2,000 to 2,200 | 0 | 1,850 | 1.50 | 6.0 / 6.0 | 3.0 / 3.0 |" in page
    assert "| MLServer | no | 895 | 800 to 990 | 0 | 850 | - | cannot | 8.0 / 8.0 |" in page
    assert "| gRPC | 900 | 1,000 | 0 |\n| gRPC of MLServer itself | 399 | 399 | 3 |" in page
    assert "Ray Serve: there is no index here." in page


def test_the_end_of_an_answer_is_found_by_its_head() -> None:
    assert answer_end(b"HTTP/1.1 200 OK\r\nContent-Le") == -1
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"
    assert answer_end(head) == answer_end(head + b"{}") == len(head) + 2
    assert answer_end(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n") == 0


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[Target]:
    """A server that answers each request of four bytes by `answer`."""

    async def repeat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError), contextlib.closing(writer):
            while head := await reader.readuntil(b"\r\n\r\n"):
                assert head.startswith(b"POST /predict HTTP/1.1\r\n")
                assert await reader.readexactly(4) == b"body"
                await answer(reader, writer)

    server = await asyncio.start_server(repeat, "127.0.0.1", 0)
    async with server:
        yield Target(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/predict", b"body")
        await asyncio.sleep(0.1)  # connections that the client has closed end here too


async def test_answers_are_counted_and_other_statuses_fail() -> None:
    """Two in three requests get a 200, whole or in chunks, in two parts; the third one a 503."""
    kinds = (b"200 OK\r\nContent-Length: 2\r\n\r\n{}", b"503 No\r\nContent-Length: 0\r\n\r\n",
             b"200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n")  # fmt: skip
    numbers = itertools.count()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        whole = b"HTTP/1.1 " + kinds[next(numbers) % 3]
        writer.write(whole[:20])
        await writer.drain()
        await asyncio.sleep(0)
        writer.write(whole[20:])

    async with serving(answer) as target:
        done = await closed_loop(target, 2, 0.3)
    assert abs(done.failed - len(done.took_s) / 3) <= 2
    assert done.per_s > 0


async def test_an_open_loop_sends_at_its_times_while_nothing_is_answered() -> None:
    """And latency counts from the intended time: the first request waits until the last one was sent."""
    draw, due_s = random.Random(1), [0.0]
    while due_s[-1] < 0.5:
        due_s.append(due_s[-1] + draw.expovariate(400))
    due_s = due_s[1:-1]
    received, all_here = itertools.count(1), asyncio.Event()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if next(received) == len(due_s):
            all_here.set()
        await all_here.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with serving(answer) as target:
        done = await open_loop(target, 400, 0.5, 1)
    assert len(done.took_s) == len(done.lag_s) == len(due_s) > 100
    assert not done.failed
    assert max(done.took_s) >= due_s[-1] - due_s[0]
    assert done.open == (sum(at_s <= 0.25 for at_s in due_s), len(due_s))


def test_a_rate_is_sustained_when_all_is_answered_and_no_queue_grows() -> None:
    assert measured(1000, failed=1).is_sustained
    assert not measured(1000, failed=2).is_sustained
    assert replace(measured(1000), open=(40, 50)).is_sustained
    assert not replace(measured(1000), open=(40, 51)).is_sustained


async def test_the_highest_rate_that_is_sustained_is_found_by_bisection_and_holds_for_longer() -> None:
    tried: list[tuple[float, float]] = []

    async def measure(per_s: float, seconds: float, limit_per_s: float) -> Measured:
        tried.append((per_s, seconds))
        return measured(1000, failed=0 if per_s <= limit_per_s else 500)

    found = await highest_sustained(lambda per_s, seconds: measure(per_s, seconds, 730), 1000, 6, 8.0)
    assert 730 - 1000 / 2**6 <= found <= 730
    assert [seconds for _, seconds in tried] == [2.0] * 6 + [8.0]
    # In a short run, a fast moment allows more than the whole time does.
    found = await highest_sustained(lambda per_s, seconds: measure(per_s, seconds, 730 - 10 * seconds), 1000, 6, 8.0)
    assert 0.9 * 650 < found <= 650 and tried[-1] == (found, 8.0)
    assert await highest_sustained(lambda per_s, seconds: measure(per_s, seconds, 0), 1000, 6, 8.0) == 0
    # One that no rate holds for long is given up.
    tried.clear()
    assert await highest_sustained(lambda per_s, s: measure(per_s, s, 730 if s == 2.0 else 0), 1000, 6, 8.0) == 0
    assert len(tried) == 6 + 8


@pytest.mark.integration
@pytest.mark.timeout(400)
def test_a_short_run_measures_ours_and_the_gateway_without_a_failed_request() -> None:
    """A bar on speed may fall here, where other tests run beside."""
    (ROOT / "build" / "reports" / "predict.json").unlink(missing_ok=True)
    command = [sys.executable, "-m", "bench.predict", "--models", "mlp", "--seconds", "0.5", "--busy-ok"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"QUICK": "1"}, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    made: dict[str, Any] = json.loads((ROOT / "build" / "reports" / "predict.json").read_text())
    measured = {(row["kind"], row.get("protocol")) for row in made["rows"]}
    # On a busy machine the server may sustain no rate of random arrivals: then there is none to take latencies at.
    kinds = {("alone", None), ("saturation", None), ("sustained", None), ("idle", None)}
    assert measured - {("latency", None)} == {*kinds, ("gateway", "http"), ("gateway", "grpc")}
    sustained = sum(row["per_s"] for row in made["rows"] if row["kind"] == "sustained")
    assert any(row.get("at") == "own" for row in made["rows"]) == (sustained > 0), made["rows"]
    # Random arrivals may find a full queue, where other tests take the cores from the server.
    assert not any(row.get("failed") for row in made["rows"] if row["kind"] != "latency"), made["rows"]
    assert all(row["requests"] > row["failed"] for row in made["rows"] if row["kind"] == "latency"), made["rows"]
