"""The fuzzer: what it draws covers the API, what it must see it sees, and a minute of it finds nothing."""

import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from bench.fuzz.frames import CALL, PREFACE, connections
from bench.fuzz.heads import heads
from bench.fuzz.requests import LARGE_BYTES, Request, Schemas, large
from bench.fuzz.run import busy, ended_tasks, fuzz, growth_mib, restarts
from bench.fuzz.values import DEEP, Literal, Pairs, encode
from bench.fuzz.worker import PROBE, Worker
from slipway_server.http.openapi import document

DOCUMENT = json.loads(document())


def drawn(strategy, number: int) -> list:
    found: list = []

    @seed(3)
    @settings(
        max_examples=number,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(one) -> None:
        found.append(one)

    collect()
    return found


def test_it_draws_most_fields_of_every_body_and_many_bodies_are_json() -> None:
    schemas = Schemas(DOCUMENT, "m")
    requests = drawn(schemas.requests(), 200)
    covered = {field for request in requests for field in request.fields}
    assert len(schemas.fields() - covered) <= 0.6 * len(schemas.fields())
    assert {request.path.replace("/m/", "/{name}/") for request in requests} == set(schemas.bodies)

    def is_json(request: Request) -> bool:
        try:
            return bool(json.loads(request.body))
        except (ValueError, RecursionError):
            return False

    assert sum(map(is_json, requests)) > 0.4 * len(requests)


def test_large_values_are_of_many_kinds_and_within_their_size() -> None:
    texts = [value.text.encode() for value in drawn(large(), 60)]
    assert all(len(text) <= LARGE_BYTES[-1] for text in texts) and max(map(len, texts)) > LARGE_BYTES[-1] // 2
    assert {text[:1] for text in texts} == {b'"', b"[", b"{"}
    for text in texts:
        if not text.startswith(b"[["):
            json.loads(text)


def test_heads_are_of_many_kinds() -> None:
    found = drawn(heads(), 100)
    assert len(set(found)) > 60 and any(b"chunked" in one for one in found)


def test_connections_of_http2_are_of_many_kinds() -> None:
    found = drawn(connections(), 150)
    assert len(set(found)) > 80 and any(len(pieces) > 3 for pieces in found)
    whole = [b"".join(pieces) for pieces in found]
    assert sum(PREFACE in sent for sent in whole) > 0.5 * len(whole)
    assert sum(CALL in sent for sent in whole) > 0.3 * len(whole)


def test_what_json_refuses_can_be_written() -> None:
    assert encode({"a": Literal("NaN"), "b": [1, "x"]}) == b'{"a":NaN,"b":[1,"x"]}'
    assert encode(Pairs((("a", 1), ("a", 2)))) == b'{"a":1,"a":2}'
    assert len(encode(Literal("[" * DEEP))) == DEEP


def test_pages_of_metrics_are_read() -> None:
    page = 'vllm:num_requests_running{model_name="m"} 2.0\nslipway_server_engine_restarts_total 3.0\n'
    page += 'slipway_task_restarts_total{task="a"} 1.0\nslipway_task_restarts_total{task="b"} 4.0\n'
    assert busy(page) == {"vllm:num_requests_running": 2.0} and restarts(page) == 3 and ended_tasks(page) == 5


class Broken(BaseHTTPRequestHandler):
    """A server that answers a sound request well, the first one, and fails on all others."""

    protocol_version = "HTTP/1.1"
    sound = 1

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        good = body == json.dumps(PROBE).encode() and Broken.sound > 0
        Broken.sound -= good
        answer = json.dumps({"choices": [{"text": "a"}]} if good else {"error": {"code": "internal_error"}}).encode()
        self.send_response(200 if good else 500)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


def test_memory_that_a_process_has_from_its_start_is_no_growth() -> None:
    """Seen: the process that reads large bodies starts with the first of them, which the warm-up had not sent."""
    assert growth_mib({1: 60.0, 2: 300.0}, {1: 62.0, 2: 304.5, 3: 50.0}) == 6.5


@pytest.fixture
def broken() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Broken)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.integration
def test_a_server_that_fails_is_seen(broken: str) -> None:
    worker = Worker([broken], DOCUMENT, 1, patience_s=1.0)
    found = worker.run(time.monotonic() + 60.0, lambda so_far: so_far.sent > 10)
    assert found.internal > 0 and found.wrong and found.sent > 10


@pytest.mark.attack_class(9, 10, 15, 16, 18, 20)
@pytest.mark.integration
@pytest.mark.timeout(400)
def test_a_minute_of_hostile_requests_ends_no_engine_and_disturbs_no_client() -> None:
    """Fixed seed, so that what it finds is found again; `make fuzz MINUTES=30` draws more."""
    report = fuzz(70.0, seed=20261123)
    assert all(bar["ok"] for bar in report["bars"]), json.dumps(report, indent=1)[:6000]
    row, *parts = report["rows"]
    # A slow machine sends some 2,000 of them, which have four in five of all fields.
    assert row["requests"] > 300 and row["fields_covered"] > 0.7 * row["fields"]
    assert all(part["examples"] > 10 for part in parts)
    assert {"frames: closed", "frames: open"} <= row["endings"].keys()
