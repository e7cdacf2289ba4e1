"""Liveness and readiness on a port and a thread of their own: they answer while the loop or the engine is busy."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import msgspec

from slipway_process.serving.heartbeat import Heartbeat
from slipway_process.supervisor import keep_thread

Profiles = Callable[[str], tuple[int, str]]  # answers a query string with status and text; it blocks
# By path: answers the body of a POST with status and body; it blocks. By GET_ and path: answers a GET.
Commands = Mapping[str, Callable[[bytes], tuple[int, bytes]]]
MAX_COMMAND_BYTES = 64 << 10
GET_ = "GET "

JSON, TEXT = "application/json", "text/plain; charset=utf-8"


@dataclass(slots=True)
class Health:
    """What both ports answer from. Plain attributes: written by the event loop, read by the probe thread."""

    heartbeat: Heartbeat
    stall_s: float
    loaded: bool = False
    draining: bool = False
    crashed: bool = False  # from a crash of the engine until it serves again
    loop_beat_s: float = field(default_factory=time.monotonic)
    # What tasks of this process fail again and again: without some it serves nothing, without others less.
    failing: str = ""
    missing: str = ""

    def trouble(self, now_s: float) -> str | None:
        """Why the process should be restarted; None when it should not."""
        engine_s, loop_s = self.heartbeat.age_s(now_s), now_s - self.loop_beat_s
        if engine_s > self.stall_s:
            return f"the engine has not moved for {engine_s:.0f} s"
        if loop_s > self.stall_s:
            return f"the event loop has not moved for {loop_s:.0f} s"
        return None

    def unready(self, now_s: float) -> str | None:
        """Why this server should get no requests; None when it should."""
        if self.draining:
            return "draining"
        if not self.loaded:
            return ": ".join(self.why_not_loaded)
        return self.trouble(now_s) or self.failing or None

    @property
    def why_not_loaded(self) -> tuple[str, str]:
        """A code and a sentence, for clients and probes."""
        if self.crashed:
            return "engine_restarting", "The engine process crashed and is being started again."
        return "loading", "The model is still loading."

    def engine_is_ready(self) -> None:
        self.loaded, self.crashed = True, False

    def engine_has_crashed(self) -> None:
        self.loaded, self.crashed = False, True

    def answer(self, path: str) -> tuple[int, bytes]:
        checks: dict[str, Callable[[float], str | None]] = {
            "/healthz": self.trouble,
            "/readyz": self.unready,
            "/health": self.unready,  # where clients of vLLM and TGI look
        }
        check = checks.get(path.partition("?")[0])
        if check is None:
            return 404, b'{"status":"not found"}'
        reason = check(time.monotonic())
        shown = reason or self.missing or None
        body = {"status": "failing" if reason else "ok", "reason": shown, "engine_steps": self.heartbeat.steps}
        return (503 if reason else 200), msgspec.json.encode(body)


class ProbeServer:
    """`profiles` answers /debug/profile, where there is one, and `commands` answer POSTs.

    `on_restart` gets the name of a thread that failed.
    """

    def __init__(
        self,
        health: Health,
        host: str,
        port: int,
        profiles: Profiles | None = None,
        commands: Commands | None = None,
        on_restart: Callable[[str], None] = lambda thread: None,
    ) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 5

            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                if profiles and path == "/debug/profile":
                    status, text = profiles(query)
                    self.answer(status, text.encode(), TEXT)
                elif commands and (listing := commands.get(GET_ + path)):
                    self.answer(*listing(b""), JSON)
                else:
                    self.answer(*health.answer(path), JSON)

            def do_POST(self) -> None:
                command = (commands or {}).get(self.path)
                length = self.headers.get("Content-Length", "")
                if command is None:
                    self.answer(404, b'{"status":"not found"}', JSON)
                elif not (length.isascii() and length.isdigit() and len(length) <= 9):
                    self.answer(411, b'{"status":"no Content-Length"}', JSON)
                elif int(length) > MAX_COMMAND_BYTES:
                    self.answer(413, b'{"status":"the body is too large"}', JSON)
                else:
                    status, body = command(self.rfile.read(int(length)))
                    self.answer(status, body, TEXT if status == 200 else JSON)

            def answer(self, status: int, body: bytes, kind: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Log nothing: probes come every few seconds."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self._ended = Event()
        kept = ("probes", self._server.serve_forever, on_restart, self._ended)
        self._thread = Thread(target=keep_thread, args=kept, name="probes", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
