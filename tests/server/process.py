"""A real slipway-server process on free ports, as a person would start it."""

import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil

from testkit.until import until

DEADLINE_S = 240.0
ENGINES = ("slipway_server.engine.process", "slipway_predict.process.child")
ROOT = Path(__file__).parents[2]
SOURCES = f"{ROOT / 'server'}{os.pathsep}{ROOT / 'process'}{os.pathsep}{ROOT / 'contracts'}"


class ServerProcess:
    def __init__(
        self, model: Path, *flags: str, termination_log: Path | None = None, python: str | Path = sys.executable
    ) -> None:
        environment = dict(os.environ, PYTHONPATH=SOURCES, OMP_NUM_THREADS="1")
        if termination_log:
            environment["SLIPWAY_TERMINATION_LOG"] = str(termination_log)
        self.process = subprocess.Popen(
            [
                *(str(python), "-m", "slipway_server", "--model", str(model)),
                *("--host", "127.0.0.1", "--port", "0", "--probe-port", "0", *flags),
            ],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            # The engine ends by itself when its server is gone, unless a test stopped it.
            for child in psutil.Process(self.process.pid).children():
                child.kill()
            self.process.kill()
        self.wait()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listening()['port']}"

    @property
    def probe_url(self) -> str:
        return f"http://127.0.0.1:{self._listening()['probe_port']}"

    @property
    def engine(self) -> psutil.Process:
        """The process of the engine, or of the classic model: not those that read bodies."""
        children = psutil.Process(self.process.pid).children()
        (engine,) = [child for child in children if not {*ENGINES}.isdisjoint(child.cmdline())]
        return engine

    def wait_ready(self) -> "ServerProcess":
        until(lambda: self.process.poll() is not None or self.message("ready"), "the server", DEADLINE_S)
        assert self.process.poll() is None, self.lines
        return self

    def wait(self) -> int:
        status = self.process.wait(DEADLINE_S)
        self._reader.join()
        if self.process.stderr:
            self.process.stderr.close()
        return status

    def message(self, text: str) -> dict[str, Any] | None:
        return next((line for line in self.lines if line["msg"] == text), None)

    def metric(self, sample: str) -> float:
        status, body = get(self.url + "/metrics")
        assert status == 200
        values = [line.rpartition(" ")[2] for line in body.decode().splitlines() if line.startswith(sample)]
        assert len(values) == 1, (sample, values)
        return float(values[0])

    def running(self) -> float:
        return self.metric("vllm:num_requests_running")

    def _listening(self) -> dict[str, Any]:
        found = until(lambda: self.process.poll() is not None or self.message("listening"), "the ports", DEADLINE_S)
        assert isinstance(found, dict), self.lines
        return found

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            try:
                self.lines.append(json.loads(line))
            except ValueError:
                self.lines.append({"msg": line.rstrip()})


def get(url: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def post(url: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"} | (headers or {}))
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return answer.status, dict(answer.headers), _decoded(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), _decoded(error.read())


def _decoded(body: bytes) -> Any:
    return json.loads(body) if body.startswith(b"{") else body.decode()
