"""An engine of several processes, run by Python alone: each token comes from a worker in another pod.

The leader answers as an OpenAI server, and is ready when every worker of its group has connected to it. A worker that
loses its leader ends, and so does a leader that lost a worker: as engines over several machines do.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

GROUP_PORT = 29500
TOKEN_S = 0.01
LAST_ANSWERS_S = 0.5  # a leader that lost a worker answers what it has with an error first
SIZE, INDEX = int(os.environ["LWS_GROUP_SIZE"]), int(os.environ["LWS_WORKER_INDEX"])
LEADER = os.environ["LWS_LEADER_ADDRESS"]
MODEL = os.environ["SLIPWAY_MODEL_NAME"]


class Group:
    """The workers that are connected; each computes one token of a round."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: list[Any] = []
        self.lost = False

    def serve(self) -> None:
        """Take connections of workers, for ever."""
        with socket.create_server(("", GROUP_PORT)) as server:
            while True:
                connection, _ = server.accept()
                with self._lock:
                    self._workers.append(connection.makefile("rw"))

    @property
    def complete(self) -> bool:
        return not self.lost and len(self._workers) == SIZE - 1

    def token(self, number: int) -> str:
        """The next token, computed by all workers in turn."""
        with self._lock:
            try:
                worker = self._workers[number % (SIZE - 1)]
                worker.write(f"{number}\n")
                worker.flush()
                word = worker.readline()
            except (OSError, IndexError):
                word = ""
            self.lost = self.lost or not word
        if not word:
            threading.Timer(LAST_ANSWERS_S, os._exit, (1,)).start()
            raise ConnectionError("a worker is gone")
        return str(word.rstrip("\n"))


def work() -> None:
    """A worker: connect to the leader, answer until it is gone."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        try:
            connection = socket.create_connection((LEADER, GROUP_PORT), timeout=5)
            break
        except OSError:
            time.sleep(0.2)
    connection.settimeout(None)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the leader needs it to its own end
    with connection, connection.makefile("rw") as leader:
        print(f"worker {INDEX} of {SIZE} serves {LEADER}", flush=True)
        for line in leader:
            time.sleep(TOKEN_S)
            leader.write(f"w{INDEX}t{line.strip()} \n")
            leader.flush()
    sys.exit("the leader is gone")


GROUP = Group()


class Handler(BaseHTTPRequestHandler):
    """OpenAI's API, as much of it as a load uses."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Nothing: the load would fill the log."""

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._send(200, "pair:waiting 0\n", "text/plain; version=0.0.4")
        elif self.path == "/health":
            self._send(200 if GROUP.complete else 503, "{}")
        else:
            self._send(200, json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        chat, count = self.path.endswith("/chat/completions"), int(body.get("max_tokens") or 16)
        if not GROUP.complete:
            self._send(503, json.dumps({"error": {"message": "a worker is gone", "type": "server_error"}}))
            return
        if body.get("stream"):
            self._stream(chat, count, bool((body.get("stream_options") or {}).get("include_usage")))
            return
        try:
            text = "".join(GROUP.token(number) for number in range(count))
        except ConnectionError as error:
            self._send(500, json.dumps({"error": {"message": str(error), "type": "server_error"}}))
            return
        content = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        choice = {"index": 0, "finish_reason": "length", **content}
        self._send(200, json.dumps(_shape(chat, [choice], stream=False) | {"usage": _usage(count)}))

    def _stream(self, chat: bool, count: int, usage: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for number in range(count):
            text = GROUP.token(number)  # a lost worker ends the stream: what was sent cannot be taken back
            content = {"delta": {"role": "assistant", "content": text}} if chat else {"text": text}
            last = "length" if number == count - 1 else None
            self._event(json.dumps(_shape(chat, [{"index": 0, "finish_reason": last, **content}], stream=True)))
        if usage:
            self._event(json.dumps(_shape(chat, [], stream=True) | {"usage": _usage(count)}))
        self._event("[DONE]")

    def _event(self, data: str) -> None:
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()

    def _send(self, status: int, text: str, content_type: str = "application/json") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _usage(count: int) -> dict[str, int]:
    return {"prompt_tokens": 1, "completion_tokens": count, "total_tokens": count + 1}


def _shape(chat: bool, choices: list[Any], *, stream: bool) -> dict[str, Any]:
    kind = ("chat.completion.chunk" if stream else "chat.completion") if chat else "text_completion"
    return {"id": "pair", "object": kind, "created": int(time.time()), "model": MODEL, "choices": choices}


class Server(ThreadingHTTPServer):
    """Ends only when the requests in progress have ended."""

    daemon_threads = False
    request_queue_size = 64


def lead() -> None:
    """The leader: serve until SIGTERM, then finish what is in progress."""
    threading.Thread(target=GROUP.serve, daemon=True).start()
    server = Server(("", int(os.environ["SLIPWAY_PORT"])), Handler)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever(poll_interval=0.1)
    server.server_close()


if __name__ == "__main__":
    if INDEX:
        signal.signal(signal.SIGUSR1, lambda *_: os._exit(7))  # a crash, for tests
        work()
    lead()
