"""Nanoseconds per call of each twin beside Python's, in one run: `python -m tests.plane.measure_twins`.

The inputs are those of `plane/examples/measure_twins.rs`, which it compiles and runs first.
"""

import runpy
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from multidict import CIMultiDict

from slipway_contracts.headers import STREAM
from slipway_gateway.balancing.endpoint_picker import LeastLoad
from slipway_gateway.identity import api_keys
from slipway_gateway.quotas.bounds import UsageBound
from slipway_gateway.quotas.estimate import estimate
from slipway_gateway.quotas.meter import Meter
from slipway_gateway.quotas.tenant import INPUT, OUTPUT, REQUESTS, Limits, Reservation, TenantQuota
from slipway_gateway.quotas.usage import last_usage
from slipway_gateway.routing import split
from slipway_gateway.routing.router import pick_in_revision
from slipway_gateway.routing.table import Route, RouteTable
from slipway_gateway.upstream import tenant_proof
from slipway_gateway.wire import headers, request_fields
from slipway_gateway.wire.resume import StreamProgress
from slipway_gateway.wire.sse import EventAligner
from testkit import ROOT
from tests.plane.test_headers import aiohttp_reads, make_key

ROUNDS, CALLS = 5, 2000
WORDS = b"hello " * 20
BODY = b'{"model":"m","max_tokens":64,"messages":[{"role":"user","content":"%b"}],"user":"u1"}' % WORDS
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nAccept: application/json\r\n"
    b"Accept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\nContent-Type: application/json\r\n"
    b"User-Agent: OpenAI/Python 2.8.1\r\nX-Stainless-Lang: python\r\nX-Stainless-Async: false\r\n"
    b"X-Stainless-Retry-Count: 0\r\nAuthorization: Bearer slw_bench1_x\r\nContent-Length: 242\r\n\r\n"
)
ANSWER = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"Hello! How can I help you today?"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":9,"completion_tokens":9,"total_tokens":18}}'
)
EVENT = (
    b': 12.0a1b2c3d 1234\ndata: {"id":"c-1","object":"chat.completion.chunk","created":1,"model":'
    b'"m","choices":[{"index":0,"delta":{"content":" hello"},"finish_reason":null}]}\n\n'
)
PATH = "/v1/chat/completions"


def wire_calls() -> dict[str, Callable[[], object]]:
    fields, given = request_fields.parse(BODY), aiohttp_reads(HEAD).headers
    sources = ("session", "user", "key")
    return {
        "fields": lambda: request_fields.parse(BODY),
        "head": lambda: aiohttp_reads(HEAD),
        "to_upstream": lambda: headers.to_upstream(given, "r1", "t", priority_limit=0),
        "to_client": lambda: headers.to_client(given, "r1", "v1"),
        "sticky_key": lambda: request_fields.sticky_key(given, fields, "r1", sources, "key:t/k"),
    }


def policy_calls() -> dict[str, Callable[[], object]]:
    fields, pepper, key = request_fields.parse(BODY), b"\7" * 32, make_key("bench1", "0" * 43)
    urls = tuple(f"http://10.0.0.{n}:8000" for n in range(3))
    loads = {url: n % 2 for n, url in enumerate(urls)}
    route = Route("ns/a", "uid", "m")
    table = RouteTable({"ns/a": route}, {"m": route}, {("ns/a", "v1"): urls})
    quota = TenantQuota(Limits(*[10**9] * 3))
    amounts, used = {REQUESTS: 1, INPUT: 60, OUTPUT: 64}, {REQUESTS: 1, INPUT: 9, OUTPUT: 9}
    reserved = estimate(fields, PATH, len(BODY), 512, computes=True, writes_text=True)
    now_s = 0.0

    def reserve() -> None:
        nonlocal now_s
        now_s += 1e-5
        reservation = quota.reserve(amounts, now_s)
        assert isinstance(reservation, Reservation)
        quota.headers(now_s)
        quota.settle(reservation, used, now_s)

    def metered() -> None:
        meter = Meter("i", "t", "k", estimate=reserved, bound=UsageBound(BODY, (64,)))
        meter.begin("v1", {})
        meter.add_body(ANSWER)
        meter.used(left=False)

    return {
        "key": lambda: (api_keys.key_id(key), api_keys.digest(key, pepper)),
        "choose": lambda: split.choose([10, 90], "1", "user:u1"),
        "pick": lambda: pick_in_revision(table, route, "v1", "user:u1", LeastLoad(loads)),
        "estimate": lambda: estimate(fields, PATH, len(BODY), 512, computes=True, writes_text=True),
        "quota": reserve,
        "last_usage": lambda: last_usage(ANSWER),
        "meter": metered,
        "proof": lambda: tenant_proof.proof("k1", pepper, "t", "ns/a", 1),
    }


def kept_proofs(folder: Path) -> Callable[[], object]:
    path = folder / "keys.json"
    path.write_text('{"keys":[{"id":"k1","key":"BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc="}]}')
    signer, sent = tenant_proof.TenantSigner(str(path), lambda: 60.0), CIMultiDict({"X-Slipway-Tenant": "t"})
    return lambda: signer.sign(sent, "ns/a")


def stream_calls() -> dict[str, Callable[[], object]]:
    aligner, progress = EventAligner(), StreamProgress.begin({STREAM: f"a-b-{'0' * 32}"}, "v1", "00ff")
    assert progress is not None
    meter = Meter(
        "i", "t", "k", estimate=estimate(request_fields.parse(BODY), PATH, 9, 9, computes=True, writes_text=True)
    )
    meter.begin("v1", {})
    return {
        "aligner": lambda: aligner.feed(EVENT),
        "ids": lambda: progress.add_ids(EVENT),
        "meter_event": lambda: meter.add_events(EVENT),
    }


def python_ns(call: Callable[[], object]) -> float:
    """The fastest of some rounds, each of many calls."""
    best = float("inf")
    for _ in range(ROUNDS):
        began_s = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, (time.perf_counter() - began_s) * 1e9 / CALLS)
    return best


def rust_ns() -> dict[str, float]:
    cargo = runpy.run_path(str(ROOT / "plane" / "build.py"))["find_cargo"]()
    command = [
        cargo.path,
        *["run", "--release", "--locked", "--no-default-features", "--quiet", "--example", "measure_twins"],
    ]
    done = subprocess.run(
        command, cwd=ROOT / "plane", env=cargo.environment, capture_output=True, text=True, check=True
    )
    return {name: float(ns) for name, ns in (line.split("\t") for line in done.stdout.splitlines())}


def main() -> None:
    rust = rust_ns()
    with tempfile.TemporaryDirectory() as folder:
        calls = wire_calls() | policy_calls() | {"proof_kept": kept_proofs(Path(folder))} | stream_calls()
        print(f"{'twin':14}{'Rust ns':>9}{'Python ns':>11}{'ratio':>8}")
        for name, call in calls.items():
            ns = python_ns(call)
            print(f"{name:14}{rust[name]:9.0f}{ns:11.0f}{ns / rust[name]:8.1f}")


if __name__ == "__main__":
    main()
