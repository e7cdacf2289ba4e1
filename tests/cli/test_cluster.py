"""Faults that a real API server does not make to order: conflicts and moments without an answer."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from slipway_cli.cluster import client, transport
from slipway_cli.cluster.access import Access
from slipway_cli.cluster.client import ClusterClient
from slipway_cli.errors import CommandError, Unreachable

CONFLICT = {"kind": "Status", "reason": "Conflict", "message": "the object has been modified"}
PATCH = {"spec": {"rollout": {"promote": "aaaaaaaaaa/1/1"}}}
Answers = Callable[..., tuple[ClusterClient, list[dict[str, Any]]]]


@pytest.fixture
def answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Answers]:
    """A server that answers in turn with these statuses, and the requests that it got."""
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 0)
    statuses: list[int] = []
    requests: list[dict[str, Any]] = []

    class Faulty(BaseHTTPRequestHandler):
        def do_PATCH(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append({"path": self.path, "type": self.headers["Content-Type"], "body": body})
            answer = json.dumps(CONFLICT).encode()
            self.send_response(statuses.pop(0))
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Faulty) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        named = {"name": "a", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        context = {"name": "a", "context": {"cluster": "a", "user": "a", "namespace": "demo"}}
        config = {
            "clusters": [named],
            "contexts": [context],
            "users": [{"name": "a", "user": {}}],
            "current-context": "a",
        }
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(config))

        def answer(*given: int) -> tuple[ClusterClient, list[dict[str, Any]]]:
            statuses.extend(given)
            return ClusterClient(Access(kubeconfig=str(path))), requests

        yield answer
        server.shutdown()
        thread.join()


def test_a_patch_goes_through_conflicts_and_short_absences(answering: Answers) -> None:
    client, requests = answering(409, 503, 429, 200)
    client.patch("chat", PATCH)
    assert len(requests) == 4
    path = "/apis/slipway.dev/v1alpha1/namespaces/demo/modeldeployments/chat?fieldManager=slipway-cli"
    assert requests[0] == requests[3] == {"path": path, "type": "application/merge-patch+json", "body": PATCH}


def test_last_message_of_the_api_server_is_shown(answering: Answers) -> None:
    client, requests = answering(409, 409, 409, 409)
    with pytest.raises(Unreachable, match="refused 4 times, at last with 409: the object has been modified"):
        client.patch("chat", PATCH)
    assert len(requests) == 4


def test_a_response_without_an_end_is_not_kept(answering: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(json.dumps(CONFLICT))
    client, _ = answering(200, 200)
    monkeypatch.setattr(transport, "LARGEST_BYTES", size)
    client.patch("chat", PATCH)
    monkeypatch.setattr(transport, "LARGEST_BYTES", size - 1)
    with pytest.raises(CommandError, match=f"modeldeployments/chat has more than {size - 1} bytes"):
        client.patch("chat", PATCH)


def test_a_refusal_is_not_repeated(answering: Answers) -> None:
    client, requests = answering(422)
    with pytest.raises(CommandError, match="the object has been modified"):
        client.patch("chat", PATCH)
    assert len(requests) == 1
