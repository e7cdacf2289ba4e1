"""`kubectl scale` to fewer pods: those without requests go, and the stream at another one goes on."""

import contextlib
import http.client
import json
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from slipway_operator.kube.reading.gateways import CACHE_S
from testkit.cluster.deployment import START_S, Deployment, Json
from testkit.cluster.installation import Installation
from testkit.until import until

COST = "controller.kubernetes.io/pod-deletion-cost"
TOKENS = 60  # half a second each: longer than pods need to go
TRIES = 40
# Streams so slow that the test knows where they are; the first event has the name of the pod.
ENGINE = """
import http.server, json, os, sys, time
class Engine(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for number in range(int(sys.argv[1])):
            choice = {"index": 0, "text": os.environ["HOSTNAME"], "finish_reason": None}
            shape = {"id": "a", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
            self.wfile.write(b"data: " + json.dumps(shape).encode() + b"\\n\\n")
            self.wfile.flush()
            time.sleep(0.5)
        self.wfile.write(b"data: [DONE]\\n\\n")
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("", 8000), Engine).serve_forever()
"""


def test_the_pod_with_a_stream_stays_and_idle_ones_go(slipway: Installation, deploy: Callable[..., Deployment]) -> None:
    command = ["python3", "-c", ENGINE, str(TOKENS)]
    custom = {"readinessPath": "/health", "preStopSeconds": 5}
    engine = {"type": "custom", "image": slipway.images.server, "command": command, "custom": custom}
    chat = deploy("v1", engine=engine, drain={"timeoutSeconds": 5})
    chat.until_stable("v1")
    until_ready(chat, 1)
    old = {name_of(pod) for pod in chat.pods()}
    chat.scale(3)
    until_ready(chat, 3)

    with stream_at(slipway.url, chat.model, lambda pod: pod not in old) as (busy, rest):
        time.sleep(2 * CACHE_S)  # the operator's view of requests is at most so old, and the stream has just begun
        chat.scale(1)
        until(lambda: {name_of(pod) for pod in chat.pods()}, "one pod is left", 60, holds=lambda names: len(names) == 1)
        [left] = chat.pods()
        assert (name_of(left), left["metadata"]["annotations"][COST]) == (busy, "1")
        events = [line for line in rest if line.startswith(b"data: ")]
    assert len(events) == TOKENS and events[-1] == b"data: [DONE]\n"


def until_ready(chat: Deployment, pods: int) -> None:
    chat.until("all are ready", lambda status: status["ready"] == f"{pods}/{pods}", START_S)


def name_of(pod: Json) -> str:
    return str(pod["metadata"]["name"])


@contextlib.contextmanager
def stream_at(
    url: str, model: str, wanted: Callable[[str], bool], within_s: float = 0.0
) -> Iterator[tuple[str, Iterator[bytes]]]:
    """The pod of a stream at one of the wanted pods, and the lines after its first event; others are closed at once.

    `within_s`: it may take so long until the gateways send any there.
    """
    body = json.dumps({"model": model, "prompt": "a", "stream": True, "max_tokens": TOKENS})
    where = urlsplit(url)
    due_s, tries = time.monotonic() + within_s, 0
    while tries < TRIES or time.monotonic() < due_s:
        tries += 1
        connection = http.client.HTTPConnection(where.netloc, timeout=60)
        with contextlib.closing(connection):
            connection.request("POST", f"{where.path}/completions", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            first = next(line for line in answer if line.startswith(b"data: "))
            pod = str(json.loads(first.removeprefix(b"data: "))["choices"][0]["text"])
            if wanted(pod):
                yield pod, iter(answer)
                return
    raise AssertionError(f"none of {tries} streams is at a wanted pod")
