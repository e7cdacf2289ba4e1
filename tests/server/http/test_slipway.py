"""The endpoints beside OpenAI's: their exact shapes."""

import json
from typing import Any

import pytest

from tests.server.process import ServerProcess, get, post

# A start imports torch and transformers: seconds on a quiet machine, a minute on a crowded one.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ASK = {"model": "chat", "prompt": "In the beginning", "max_tokens": 6}


def events(body: str) -> list[Any]:
    assert body.endswith("\n\n")
    lines = [line.removeprefix("data: ") for line in body.split("\n\n") if line]
    return [json.loads(line) if line.startswith("{") else line for line in lines]


def test_generate(server: ServerProcess) -> None:
    url = server.url + "/v1/generate"
    status, _, whole = post(url, ASK | {"temperature": 0, "priority": 1, "top_k": 5})
    assert status == 200
    assert set(whole) == {"id", "model", "text", "finish_reason", "usage"}
    assert whole["usage"] == {"input_tokens": 4, "output_tokens": 6} and whole["finish_reason"] == "length"
    stream = events(post(url, ASK | {"temperature": 0, "stream": True})[2])
    assert [set(event) for event in stream[:-1]] == [{"type", "token"}] * (len(stream) - 1)
    assert "".join(event["token"] for event in stream[:-1]) == whole["text"]
    assert stream[-1] == {"type": "done", "usage": whole["usage"], "finish_reason": "length"}


def test_api_generate(server: ServerProcess) -> None:
    url = server.url + "/api/v1/generate"
    whole = post(url, ASK | {"temperature": 0})[2]
    assert set(whole) == {"text", "usage", "latency_ms", "model_version"}
    assert whole["model_version"] == "v1" and whole["latency_ms"] > 0
    stream = events(post(url, ASK | {"temperature": 0, "stream": True})[2])
    assert stream[-1] == "[DONE]"
    assert "".join(event["token"] for event in stream[:-1]) == whole["text"]


def test_named_generate(server: ServerProcess) -> None:
    url = server.url + "/api/v1/models/{}/generate"
    assert post(url.format("chat"), {"prompt": "And", "max_tokens": 2})[2]["usage"]["output_tokens"] == 2
    status, _, refusal = post(url.format("other"), {"prompt": "And"})
    assert (status, refusal["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("path", ["/v1/generate", "/api/v1/generate", "/api/v1/embed", "/api/v1/models/chat/generate"])
def test_unknown_fields_are_refused_by_name(server: ServerProcess, path: str) -> None:
    status, _, refusal = post(server.url + path, {"prompt": "And", "model": "chat", "inputs": ["a"], "colour": "red"})
    assert status == 400
    assert refusal["error"]["param"] in ("colour", "inputs", "model", "prompt")
    assert "unknown field" in refusal["error"]["message"]


def test_probes_and_metrics(server: ServerProcess) -> None:
    for base in (server.url, server.probe_url):
        assert [get(base + path)[0] for path in ("/healthz", "/readyz", "/health")] == [200] * 3
    assert get(server.probe_url + "/other")[0] == 404
    before = server.metric('slipway_server_requests_total{outcome="completed"}')
    tokens = server.metric("vllm:generation_tokens_total")
    post(server.url + "/v1/generate", ASK)
    assert server.metric('slipway_server_requests_total{outcome="completed"}') == before + 1
    assert server.metric("vllm:generation_tokens_total") <= tokens + 6
    text = get(server.url + "/metrics")[1].decode()
    for name in (
        *("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc", "prompt_tokens_total"),
        *("request_success_total", "time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket"),
        *("e2e_request_latency_seconds_bucket", "request_queue_time_seconds_bucket", "num_preemptions_total"),
    ):
        assert f'vllm:{name}{{engine="0"' in text
    for name in ("prefix_evictions_total", "out_of_memory_total"):
        assert f"slipway_server_{name} 0.0" in text
