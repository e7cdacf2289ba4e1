"""One real kube-apiserver for a test session, with Slipway's CRDs in it, and a small client for plain requests."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml
from kubernetes import client, config

from devcluster import controlplane

ROOT = Path(__file__).resolve().parents[2]
CRD_FILE = ROOT / "crds" / "modeldeployments.yaml"
CRD_FILES = (CRD_FILE, ROOT / "crds" / "analysistemplates.yaml")
GROUP_PATH = "/apis/slipway.dev/v1alpha1"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True)
class Answer:
    """What the API server said to one request."""

    status: int
    body: dict[str, Any]
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))


class Api:
    """Requests by path, dicts in and out; a refusal is an answer and no exception, because tests read it."""

    def __init__(self, kubeconfig: Path) -> None:
        self._client = config.new_client_from_config(str(kubeconfig))
        self._host = self._client.configuration.host
        token = self._client.configuration.get_api_key_with_prefix("authorization")
        self._credentials = {"Authorization": token} if token else {}

    def get(self, path: str, **query: str) -> Answer:
        return self._request("GET", path, None, "application/json", query)

    def post(self, path: str, body: dict[str, Any], **query: str) -> Answer:
        return self._request("POST", path, body, "application/json", query)

    def put(self, path: str, body: dict[str, Any], **query: str) -> Answer:
        return self._request("PUT", path, body, "application/json", query)

    def merge(self, path: str, body: dict[str, Any], **query: str) -> Answer:
        return self._request("PATCH", path, body, "application/merge-patch+json", query)

    def apply(self, path: str, body: dict[str, Any], **query: str) -> Answer:
        return self._request("PATCH", path, body, _APPLY, {"fieldManager": "tests", "force": "true", **query})

    def delete(self, path: str) -> Answer:
        return self._request("DELETE", path, None, "application/json", {})

    def close(self) -> None:
        self._client.rest_client.pool_manager.clear()

    def _request(self, method: str, path: str, body: Any, kind: str, query: dict[str, str]) -> Answer:
        url = f"{self._host}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": "application/json", "Content-Type": kind, **self._credentials}
        try:
            response = self._client.call_api(method, url, headers, body, _request_timeout=20)
        except client.ApiException as refusal:
            return Answer(refusal.status, _body(refusal.body))
        raw = response.response
        return Answer(raw.status, _body(raw.data), tuple(raw.headers.getlist("Warning")))


@pytest.fixture(scope="session")
def api_server() -> Iterator[Path]:
    """Kubeconfig of a real API server with the CRDs established.

    It starts on loopback for this session and goes with it; where its binaries cannot be had, devcluster answers with
    the running kind cluster. Without either the tests fail: who asked for them wanted them to run.
    """
    with controlplane.api_server() as kubeconfig:
        install_crds(kubeconfig)
        yield kubeconfig


@pytest.fixture(scope="session")
def api(api_server: Path) -> Iterator[Api]:
    """A client of `api_server` with all rights."""
    session = Api(api_server)
    yield session
    session.close()


@pytest.fixture
def namespace(api: Api, request: pytest.FixtureRequest) -> str:
    """A namespace of its own for one test. It stays: without a controller manager nobody could empty it."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "test-"}}
    made = api.post("/api/v1/namespaces", body)
    assert made.ok, made.message
    return str(made.body["metadata"]["name"])


def _body(data: bytes | str | None) -> dict[str, Any]:
    """JSON as it is; what is not JSON (the 404 of a path that is not served) as a message."""
    try:
        return json.loads(data or "{}")
    except json.JSONDecodeError:
        return {"message": data.decode() if isinstance(data, bytes) else data}


def install_crds(kubeconfig: Path) -> None:
    """Apply the CRDs and wait until the API server serves them."""
    session = Api(kubeconfig)
    for path in CRD_FILES:
        crd = yaml.safe_load(path.read_text())
        applied = session.apply(f"{_CRDS}/{crd['metadata']['name']}", crd, fieldValidation="Strict")
        assert applied.ok, f"the API server refused {path.name}: {applied.message}"
        _wait_served(session, crd["spec"]["names"]["plural"])
    session.close()


def _wait_served(session: Api, plural: str) -> None:
    """Ask until the resource answers: an accepted CRD is served a moment later."""
    deadline = time.monotonic() + 30
    while not session.get(f"{GROUP_PATH}/{plural}").ok:
        assert time.monotonic() < deadline, "the CRD was accepted but is not served after 30 s"
        time.sleep(0.05)
