"""A real slipway-adapter-loader in a process, and files that it follows."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec

from slipway_contracts.adapters import AdapterReport
from testkit.until import until
from tests.server.process import SOURCES, get


def entry(name: str, revision: str, folder: Path | str, **more: Any) -> dict[str, Any]:
    uri = folder if isinstance(folder, str) else f"file://{folder}"
    return {"name": name, "revision": revision, "source": {"uri": uri}, **more}


def write_file(file: Path, *entries: dict[str, Any]) -> None:
    """Writes the whole file at once, as the kubelet does."""
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps({"adapters": list(entries)}))
    partial.replace(file)


class LoaderProcess:
    def __init__(
        self, file: Path, dest: Path, engine_url: str, *flags: str, port: int = 0, host: str = "127.0.0.1"
    ) -> None:
        environment = dict(os.environ, PYTHONPATH=SOURCES)
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-c", "from slipway_fetcher.adapters import main; main()"),
                *("--adapters-config", str(file), "--dest", str(dest), "--engine-url", engine_url),
                *("--port", str(port), *flags),
            ],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        until(lambda: self.lines or self.process.poll() is not None, "the port", 60)
        listening = next((line for line in self.lines if line["msg"] == "listening"), None)
        assert listening, self.lines
        self.port = int(listening["port"])
        self.url = f"http://{host}:{self.port}"

    def __enter__(self) -> "LoaderProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self._reader.join()
        self.process.wait()
        if self.process.stderr:
            self.process.stderr.close()

    def _read(self) -> None:
        """Keeps the log, so that the process never waits for its reader."""
        assert self.process.stderr
        for line in self.process.stderr:
            self.lines.append(json.loads(line))

    def states(self) -> dict[str, str]:
        """States by name and revision."""
        return {f"{one.name}@{one.revision}": one.state for one in self.report().adapters}

    def report(self) -> AdapterReport:
        status, body = get(self.url + "/adapters")
        assert status == 200
        return msgspec.json.decode(body, type=AdapterReport)

    def wait_for(self, **states: str) -> None:
        """Waits until exactly these are reported; "__" stands for @."""
        wanted = {name.replace("__", "@"): state for name, state in states.items()}
        until(lambda: self.states() == wanted, f"{wanted}")
