"""Clients that leave, queues that fill, engines that hang or die, and the drain."""

import json
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from openai.types import Completion

from testkit.until import until
from tests.server.process import ServerProcess, get, post

# A start imports torch and transformers: seconds on a quiet machine, a minute on a crowded one.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

LONG = {"model": "tiny-v1", "prompt": "In the beginning", "max_tokens": 470, "ignore_eos": True}


@pytest.fixture
def small(tiny_v1: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    """Two slots, one place in the queue, and little patience with its engine."""
    flags = ("--max-num-seqs", "2", "--max-queue-requests", "1", "--stall-timeout", "2", "--max-kv-tokens", "500")
    flags += ("--max-engine-restarts", "1")
    with ServerProcess(tiny_v1, *flags, termination_log=tmp_path / "last-words") as process:
        yield process.wait_ready()


def send(server: ServerProcess, body: bytes, headers: Mapping[str, str] | None = None) -> socket.socket:
    """A client that can hang up at any time."""
    address = urlsplit(server.url)
    connection = socket.create_connection((address.hostname, address.port), timeout=30)
    lines = (
        "POST /v1/completions HTTP/1.1",
        "Host: x",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in (headers or {}).items()),
    )
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
    return connection


def open_stream(client: openai.OpenAI) -> openai.Stream[Completion]:
    """470 tokens, whatever the model computes."""
    return client.completions.create(
        model="tiny-v1",
        prompt="In the beginning",
        max_tokens=470,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )


def in_thread(pool: ThreadPoolExecutor, server: ServerProcess) -> Future[Any]:
    return pool.submit(post, server.url + "/v1/completions", LONG | {"max_tokens": 5})


def count(server: ServerProcess) -> dict[str, float]:
    """API requests by how they ended."""
    prefix = "slipway_server_requests_total{outcome="
    lines = get(server.url + "/metrics")[1].decode().splitlines()
    return {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in lines if line.startswith(prefix)}


def test_full_queue_then_hang(small: ServerProcess) -> None:
    # Both share a server because a start costs seconds. A stopped engine makes each state last as long as needed.
    too_long = post(small.url + "/v1/completions", LONG | {"max_tokens": 500})
    assert (too_long[0], too_long[2]["error"]["code"]) == (400, "context_length_exceeded")
    small.engine.suspend()
    with ThreadPoolExecutor(4) as pool:
        waiting = [in_thread(pool, small) for _ in range(3)]
        until(lambda: small.metric("slipway_server_requests_in_flight") == 3, "a full queue")
        status, headers, body = post(small.url + "/v1/completions", LONG)
        assert (status, body["error"]["code"], headers["Retry-After"]) == (429, "queue_full", "1")
        small.engine.resume()
        assert [future.result()[0] for future in waiting] == [200] * 3

        small.engine.suspend()
        until(lambda: get(small.probe_url + "/healthz")[0] == 503, "the probe to see that the engine hangs")
        assert get(small.probe_url + "/readyz")[0] == 503
        small.engine.resume()
        until(lambda: get(small.probe_url + "/readyz")[0] == 200, "the engine to be back")


@pytest.mark.finding(1)
def test_an_engine_that_crashes_is_started_again(small: ServerProcess, tmp_path: Path) -> None:
    """Safety 1: until the restart the pod stayed ready, and clients read that it was loading."""
    greedy = {"model": "tiny-v1", "prompt": "In the beginning", "max_tokens": 20, "temperature": 0}
    text = post(small.url + "/v1/completions", greedy)[2]["choices"][0]["text"]
    before = count(small)
    with ThreadPoolExecutor(4) as pool, openai.OpenAI(base_url=small.url + "/v1", api_key="x", max_retries=0) as client:
        stream = open_stream(client)
        next(stream)
        small.engine.suspend()
        # One that would run beside the stream, and one that waits for a slot: neither was being computed.
        lost = [in_thread(pool, small) for _ in range(2)]
        until(lambda: small.metric("slipway_server_requests_in_flight") == 3, "three requests")
        first = small.engine
        first.kill()
        with pytest.raises(openai.APIError, match="engine process ended"):
            list(stream)
        for status, headers, body in [future.result() for future in lost]:
            assert (status, body["error"]["code"]) == (503, "server_lost") and "Retry-After" in headers
    # A new process takes longer to import torch than this one takes to ask.
    status, headers, body = post(small.url + "/v1/completions", greedy)
    assert (status, body["error"]["code"]) == (503, "engine_restarting") and "Retry-After" in headers
    for url in (small.url, small.probe_url):
        status, report = get(url + "/readyz")
        assert status == 503 and json.loads(report)["reason"].startswith(
            "engine_restarting: The engine process crashed"
        )
        assert get(url + "/healthz")[0] == 200
    until(lambda: get(small.probe_url + "/readyz")[0] == 200, "the engine to be back")
    assert small.engine.pid != first.pid
    assert post(small.url + "/v1/completions", greedy)[2]["choices"][0]["text"] == text
    after = count(small)
    assert {name: after[name] - before[name] for name in after if after[name] != before[name]} == {
        "error": 3,
        "engine_restarting": 1,
        "completed": 1,
    }
    assert small.metric("slipway_server_requests_in_flight") == small.running() == 0
    assert small.metric("slipway_server_engine_crashes_total") == 1
    assert small.metric("slipway_server_engine_restarts_total") == 1

    # One restart is allowed here.
    small.engine.kill()
    assert small.wait() == 1
    assert (tmp_path / "last-words").read_text() == "The engine process was killed by signal 9."


RESUMABLE = {"X-Slipway-Resumable": "1"}


@pytest.mark.finding(1)
def test_requests_running_at_a_crash_are_named(server: ServerProcess) -> None:
    """Safety 1: a gateway counts who was in flight at a crash: by a code, or in a stream by a comment at its break."""
    body = LONG | {"model": "chat"}
    stream = send(server, json.dumps(body | {"stream": True}).encode(), RESUMABLE)
    try:
        received = stream.recv(65536)
        assert b"200 OK" in received
        with ThreadPoolExecutor(4) as pool:
            whole = [pool.submit(post, server.url + "/v1/completions", body) for _ in range(3)]
            until(lambda: server.running() == 4, "four running requests")
            server.engine.kill()
            for status, headers, answer in [future.result() for future in whole]:
                assert (status, answer["error"]["code"]) == (503, "engine_crashed") and "Retry-After" in headers
        while part := stream.recv(65536):
            received += part
    finally:
        stream.close()
    # A chunk of its own, then nothing: neither an error event nor the chunk of length 0 that ends a body.
    assert received.endswith(b"\r\n: engine_crashed\n\n\r\n")
    assert b"error" not in received and b"[DONE]" not in received
    until(lambda: get(server.probe_url + "/readyz")[0] == 200, "the engine to be back")


# What stopped engines: safety 1, 2 and 3.
HOSTILE: list[tuple[dict[str, Any], set[int]]] = [
    ({"temperature": 1e-45, "top_p": 0.9}, {200}),
    ({"temperature": 1e-45}, {200}),
    ({"repetition_penalty": 1e-300, "top_p": 0.9}, {200, 400}),
    ({"allowed_token_ids": [5], "stop_token_ids": [5], "min_tokens": 5, "top_p": 0.9}, {400}),
    ({"allowed_token_ids": [5], "stop_token_ids": [5], "min_tokens": 5, "temperature": 0}, {400}),
    ({"top_k": 10**25}, {400}),
    ({"min_tokens": 10**30}, {400}),
    ({"prompt": [2**31]}, {400}),
    ({"frequency_penalty": 2, "presence_penalty": -2, "temperature": 2, "top_p": 1e-300, "min_p": 1}, {200}),
]


def test_no_request_ends_an_engine_or_holds_its_queue(server: ServerProcess) -> None:
    engine, crashes = server.engine.pid, server.metric("slipway_server_engine_crashes_total")
    for _ in range(3):
        for fields, expected in HOSTILE:
            status, _, answer = post(server.url + "/v1/completions", LONG | {"model": "chat", "max_tokens": 8} | fields)
            assert status in expected, (fields, status, answer)
            if status == 400:
                assert answer["error"]["type"] == "invalid_request_error" and answer["error"]["message"]
    # More of those that filled the queue than it has places.
    bad = LONG | {"model": "chat", "top_k": 10**25}
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: post(server.url + "/v1/completions", bad)[0], range(300)))
    assert answers == [400] * 300
    assert post(server.url + "/v1/completions", LONG | {"model": "chat", "max_tokens": 2})[0] == 200
    assert server.engine.pid == engine and server.metric("slipway_server_engine_crashes_total") == crashes
    assert server.metric("slipway_server_requests_in_flight") == 0


def test_clients_that_leave_free_their_slots(server: ServerProcess) -> None:
    cancelled = 'slipway_server_requests_total{outcome="cancelled"}'
    for stream in (True, False):
        before = server.metric(cancelled)
        # Several at once take long enough to be seen running before they are over.
        body = json.dumps(LONG | {"model": "chat", "stream": stream}).encode()
        connections = [send(server, body) for _ in range(12)]
        until(lambda: server.running() == 12, "twelve running requests")
        for connection in connections:
            connection.close()
        until(lambda: server.running() == 0, "free slots")
        until(lambda before=before: server.metric(cancelled) == before + 12, "twelve cancelled requests")
    assert server.metric("vllm:kv_cache_usage_perc") == 0
    assert post(server.url + "/v1/completions", LONG | {"model": "chat", "max_tokens": 2})[0] == 200


def test_drain_lets_streams_finish(tiny_v1: Path) -> None:
    with ServerProcess(tiny_v1, "--drain-timeout", "60") as server:
        server.wait_ready()
        with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            stream = open_stream(client)
            chunks = [next(stream)]
            server.process.send_signal(signal.SIGTERM)
            until(lambda: server.message("draining"), "the drain")
            assert get(server.probe_url + "/readyz")[0] == 503
            status, headers, body = post(server.url + "/v1/completions", LONG)
            assert (status, body["error"]["code"]) == (503, "draining") and "Retry-After" in headers
            chunks += list(stream)
        assert chunks[-1].usage.completion_tokens == 470
        assert server.wait() == 0


@pytest.mark.finding("S14")
def test_drain_waits_for_no_connection_without_a_request(tiny_v1: Path) -> None:
    with ServerProcess(tiny_v1, "--drain-timeout", "600") as server:
        server.wait_ready()
        served = send(server, json.dumps(LONG | {"max_tokens": 1}).encode())
        assert served.recv(12) == b"HTTP/1.1 200"
        address = urlsplit(server.url)
        half = socket.create_connection((address.hostname, address.port), timeout=30)
        half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n")
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
        assert time.monotonic() - began < 30, "it is the end of two processes, and no time of a drain"
        served.close()
        half.close()


def test_drain_that_runs_out_of_time_ends_streams_with_an_error(tiny_v1: Path) -> None:
    with ServerProcess(tiny_v1, "--drain-timeout", "0.2") as server:
        server.wait_ready()
        with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            stream = open_stream(client)
            next(stream)
            server.engine.suspend()
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(openai.APIError, match="shutting down"):
                list(stream)
        assert server.wait() == 0


def test_a_missing_shard_is_reported_in_one_sentence(tiny_broken: Path, tmp_path: Path) -> None:
    words = tmp_path / "last-words"
    with ServerProcess(tiny_broken, termination_log=words) as server:
        assert server.wait() == 65
    assert "model-00002-of-00002.safetensors is missing" in words.read_text()
    assert server.lines[-1]["level"] == "error" and server.lines[-1]["msg"] == words.read_text()


def test_a_cpu_that_is_not_there_is_reported_in_one_sentence(tiny_v1: Path, tmp_path: Path) -> None:
    words = tmp_path / "last-words"
    with ServerProcess(tiny_v1, "--cpu-threads-bind", "0,4095", termination_log=words) as server:
        assert server.wait() == 65
    assert "--cpu-threads-bind names CPU 4095, and this process may use " in words.read_text()


def test_engine_computes_on_the_cpus_that_it_is_bound_to(tiny_v1: Path) -> None:
    cpu = max(os.sched_getaffinity(0))
    with ServerProcess(tiny_v1, "--cpu-threads-bind", str(cpu)).wait_ready() as server:
        assert server.engine.cpu_affinity() == [cpu]
