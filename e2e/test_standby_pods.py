"""More replicas are served by a pod that waits with its model in memory, and fewer send it back: on a real cluster."""

import time
from collections.abc import Callable

from e2e.test_scale_down import name_of, stream_at, until_ready
from testkit.cluster.deployment import START_S, Deployment, Json
from testkit.cluster.installation import Installation, is_ready
from testkit.until import until

LOADS_S = 40  # a new pod's model; a standby pod has it before
# The first argument: seconds until it serves.
ENGINE = """
import http.server, json, os, sys, time
time.sleep(float(sys.argv[1]))
class Engine(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        choice = {"index": 0, "text": os.environ["HOSTNAME"], "finish_reason": "stop"}
        shape = {"id": "a", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b"data: " + json.dumps(shape).encode() + b"\\n\\ndata: [DONE]\\n\\n")
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("", 8000), Engine).serve_forever()
"""


def test_a_standby_pod_serves_at_once_and_waits_again(slipway: Installation, deploy: Callable[..., Deployment]) -> None:
    command = ["python3", "-c", ENGINE, str(LOADS_S)]
    custom = {"readinessPath": "/health", "preStopSeconds": 5}
    engine = {"type": "custom", "image": slipway.images.server, "command": command, "custom": custom}
    chat = deploy("v1", engine=engine, drain={"timeoutSeconds": 5}, standbyReplicas=1)
    chat.until_stable("v1")
    chat.until("a standby pod has loaded", lambda status: standby_of(status) == (1, 0), START_S)
    until_ready(chat, 1)
    [standby] = [pod for pod in chat.pods() if not is_ready(pod)]
    priorities = {name_of(pod): pod["spec"]["priority"] for pod in chat.pods()}
    assert priorities.pop(name_of(standby)) == -10 and set(priorities.values()) == {0}

    began_s = time.monotonic()
    chat.scale(2)
    with stream_at(slipway.url, chat.model, lambda pod: pod == name_of(standby), within_s=LOADS_S / 2):
        first_s = time.monotonic() - began_s
    until_ready(chat, 2)
    print(f"a request is at the standby pod after {first_s:.1f} s; a new pod loads for {LOADS_S} s")
    chat.until("another one has loaded", lambda status: standby_of(status) == (1, 1), START_S)

    chat.scale(1)
    chat.until("it waits again", lambda status: standby_of(status) == (1, 0), START_S)
    until_ready(chat, 1)
    # The kubelet closes the pod's gate some moments after the gateways have left it.
    until(
        lambda: [is_ready(pod) for pod in chat.pods()],
        "one serves, one waits, and the one in its place is gone",
        START_S,
        holds=lambda ready: sorted(ready) == [False, True],
    )


def standby_of(status: Json) -> tuple[int, int]:
    """Standby pods that have loaded, and further ones that serve."""
    standby = status.get("standby") or {}
    return standby.get("ready", 0), standby.get("serving", 0)


def is_serving(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
