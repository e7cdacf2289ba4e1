"""A real MLflow tracking server for tests, in an environment of its own: it needs libraries that ours do not have.

Without the libraries that only draw, train or read tables, which the server never imports.
"""

import contextlib
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from testkit.world.program import Launch, running
from tests.support.stores.installed import environment

REQUIREMENTS = Path(__file__).with_name("mlflow-requirements.txt")
START_S = 240.0  # it makes its database, and imports much


@dataclass(frozen=True)
class Mlflow:
    """A tracking server that keeps its artifacts itself."""

    url: str
    log: Path

    def call(self, method: str, path: str, content: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call its REST API; raises HTTPError."""
        body = json.dumps(content).encode() if content is not None else None
        url = f"{self.url}/api/2.0/mlflow/{path}"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def run(self, metrics: Mapping[str, float], dataset: str, files: Mapping[str, bytes]) -> str:
        """A run with metrics, a data set, and files in its folder `model`; returns its id."""
        made = self.call("POST", "runs/create", {"experiment_id": "0", "user_id": "ann"})
        run = str(made["run"]["info"]["run_id"])
        listed = [{"key": key, "value": value, "timestamp": 1} for key, value in metrics.items()]
        self.call("POST", "runs/log-batch", {"run_id": run, "metrics": listed})
        named = {"name": dataset, "digest": "d1", "source_type": "local", "source": "{}"}
        self.call("POST", "runs/log-inputs", {"run_id": run, "datasets": [{"dataset": named}]})
        for name, content in files.items():
            self.put(f"0/{run}/artifacts/model/{name}", content)
        return run

    def put(self, path: str, content: bytes) -> None:
        """An artifact, through the server's proxy."""
        url = f"{self.url}/api/2.0/mlflow-artifacts/artifacts/{quote(path)}"
        with urllib.request.urlopen(urllib.request.Request(url, content, method="PUT"), timeout=60):
            pass

    def register(self, name: str, run: str, source: str = "") -> str:
        """A version of a registered model, which is made where it is missing; returns its number."""
        with contextlib.suppress(urllib.error.HTTPError):
            self.call("POST", "registered-models/create", {"name": name, "description": "answers questions"})
        content = {"name": name, "source": source or f"runs:/{run}/model", "run_id": run}
        return str(self.call("POST", "model-versions/create", content)["model_version"]["version"])

    def move(self, name: str, alias: str, version: str) -> None:
        """Have an alias name a version."""
        self.call("POST", "registered-models/alias", {"name": name, "alias": alias, "version": version})

    def tags(self, name: str, version: str) -> dict[str, str]:
        """The tags of a version."""
        query = urlencode({"name": name, "version": version})
        found = self.call("GET", f"model-versions/get?{query}")["model_version"].get("tags") or []
        return {item["key"]: item["value"] for item in found}


@contextlib.contextmanager
def mlflow(folder: Path, host: str = "127.0.0.1", *names: str) -> Iterator[Mlflow]:
    """A server whose database and files are in `folder`. `names`: HOST:PORT by which others reach it."""
    with socket.create_server((host, 0)) as free:
        port = free.getsockname()[1]
    url = f"http://{host}:{port}"
    command = [
        str(environment("mlflow", REQUIREMENTS, "--no-deps") / "bin" / "mlflow"),
        *(
            "server",
            "--host",
            host,
            "--port",
            str(port),
            "--allowed-hosts",
            ",".join((f"{host}:{port}", *names)),
            "--workers",
            "1",
            "--serve-artifacts",
        ),
        *("--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", f"{folder}/artifacts"),
    ]
    variables = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true", "HOME": str(folder)}
    with running(Launch(command, variables, url, f"{url}/health"), folder / "mlflow.log", START_S):
        yield Mlflow(url, folder / "mlflow.log")
