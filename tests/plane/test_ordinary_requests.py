"""No ordinary request is left to Python: those of the benchmark, and those that unmodified clients send.

Each client talks to a real socket, which keeps the bytes that it sent.
"""

import asyncio
import contextlib
import json
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import openai
import pytest

from bench.gateway import messages, stream_load
from slipway_gateway.wire.inference import ROUTED_PATHS
from tests.plane.native import needs_plane, twins

pytestmark = needs_plane

ANSWER = json.dumps({"id": "r", "object": "x", "choices": [], "data": [], "output": [], "model": "m"}).encode()
REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)
MESSAGES: Any = [
    {"role": "system", "content": "You are helpful."},
    {"role": "user", "content": [{"type": "text", "text": 'H\u00e9llo \U0001f600 "quoted"\n'}]},
]
TOOLS: Any = [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object"}}}]
SCHEMA: Any = {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": {"type": "object"}}}


class Recorder:
    """Answers requests on one port and keeps them: (head, body)."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.requests: list[tuple[bytes, bytes]] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        data = b""
        with connection, contextlib.suppress(OSError):
            while more := connection.recv(1 << 16):
                data += more
                head, end, body = data.partition(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0) if end else 0
                if end and len(body) >= length:
                    with self._changed:
                        self.requests.append((head + end, body[:length]))
                        self._changed.notify_all()
                    data = body[length:]
                    connection.sendall(REPLY)

    def wait_for(self, count: int) -> None:
        """Returns when so many requests are there."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.requests) >= count, timeout=10)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    one = Recorder()
    yield one
    one.close()


def check_all_are_served(recorder: Recorder, least: int) -> None:
    """Each request is one that Rust reads, head, credentials and body. `least`: as many there are."""
    assert len(recorder.requests) >= least
    for head, body in recorder.requests:
        path, length, _ = twins.plain_head_of(head, list(ROUTED_PATHS), 65_536)
        assert length == len(body)
        lines = [line.split(b": ", 1) for line in head.split(b"\r\n")[1:] if line]
        listed = [(name.decode(), value) for name, value in lines]
        twins.credentials([pair for pair in listed if pair[0].lower() == "authorization"])
        fields = twins.request_fields_of(body)
        assert fields["model"] == "m"
        twins.estimate_of(body, path, 512, True, True)
        twins.names_of(listed, body, "id", (True, True, True), "", "salt", "a")
        assert twins.to_upstream(listed, "id", "t", [], 0, 1)
        if fields["lacks_usage"]:
            assert not twins.request_fields_of(twins.with_usage(body))["lacks_usage"]
        assert twins.request_fields_of(twins.with_model(body, "other"))["model"] == "other"


OPENAI_CALLS: tuple[Callable[[openai.OpenAI], object], ...] = (
    lambda client: client.chat.completions.create(model="m", messages=MESSAGES),
    lambda client: client.chat.completions.create(model="m", messages=MESSAGES, user="u1", n=2, max_tokens=64, seed=3),
    lambda client: client.chat.completions.create(model="m", messages=MESSAGES, tools=TOOLS, tool_choice="auto"),
    lambda client: client.chat.completions.create(model="m", messages=MESSAGES, response_format=SCHEMA, stop=["e"]),
    lambda client: client.chat.completions.create(
        model="m", messages=MESSAGES, temperature=0.7, top_p=1, logit_bias={"50256": -100}, prompt_cache_key="k"
    ),
    lambda client: client.completions.create(model="m", prompt=["a", "b"], max_tokens=5, logprobs=1),
    lambda client: client.completions.create(model="m", prompt=[1, 2, 3]),
    lambda client: client.embeddings.create(model="m", input=["a", "b"], encoding_format="float"),
    lambda client: client.responses.create(model="m", input="hi", max_output_tokens=12, instructions="be brief"),
    lambda client: client.chat.completions.create(model="m", messages=MESSAGES, extra_headers={"X-Session-Id": "s"}),
)


@pytest.mark.parametrize("key", ["slw_bench1_x", "none", "sk-no-key-required"])
def test_requests_of_openais_client(recorder: Recorder, key: str) -> None:
    with openai.OpenAI(base_url=f"{recorder.url}/v1", api_key=key, max_retries=0, timeout=10) as client:
        for call in OPENAI_CALLS:
            call(client)
        for options in ({}, {"stream_options": {"include_usage": True}}):
            stream = client.chat.completions.create(model="m", messages=MESSAGES, stream=True, **options)
            stream.close()
    check_all_are_served(recorder, len(OPENAI_CALLS) + 2)


async def test_requests_of_the_benchmark(recorder: Recorder) -> None:
    """By aiohttp, by the protocol that opens streams, and as wrk writes them."""
    headers = {"Content-Type": "application/json", "Authorization": "Bearer slw_bench1_x"}
    async with aiohttp.ClientSession() as session:
        for message in (messages.CHAT, messages.STREAM):
            async with session.post(recorder.url + message.path, data=message.body, headers=headers) as reply:
                await reply.read()
    loop = asyncio.get_running_loop()
    host, port = recorder.url.removeprefix("http://").split(":")
    transport, _ = await loop.create_connection(
        lambda: stream_load._Client(loop.create_future(), headers), host, int(port)
    )
    reader, writer = await asyncio.open_connection(host, int(port))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    path, body = messages.CHAT.path, messages.CHAT.body
    head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await reader.readuntil(ANSWER[-8:])
    writer.close()
    await asyncio.to_thread(recorder.wait_for, 4)
    transport.abort()
    check_all_are_served(recorder, 4)


def test_requests_of_the_standard_library_and_of_classic_models(recorder: Recorder) -> None:
    """Which close their connections."""
    bodies = {
        "/api/v1/predict": {"model": "m", "instances": [[1.5, -2e-3, 3]], "parameters": {"a": None}},
        "/v1/rerank": {"model": "m", "query": "q", "documents": ["a", {"text": "b"}], "top_n": 1},
        "/v1/score": {"model": "m", "text_1": "a", "text_2": ["b", "c"]},
        "/tokenize": {"model": "m", "prompt": "a"},
        "/v1/generate": {"model": "m", "prompt": "a", "stream": False},
    }
    for path, body in bodies.items():
        sent = urllib.request.Request(
            recorder.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(sent, timeout=10).close()
    check_all_are_served(recorder, len(bodies))
