"""The API server by path, over connections that stay: what is looked at often, without a kubectl for each look.

    api = Api(Path(kubeconfig))
    api.find("apis/slipway.dev/v1alpha1/namespaces/demo/modeldeployments/chat")    # {} when there is none
    api.items("v1/pods", "demo", selector="app=chat")                              # all of a kind, as dicts
    api.text("api/v1/namespaces/demo/pods/chat-x:8001/proxy/metrics")              # whatever it is
    api.post("/api/v1/namespaces", {...}).message                                  # a refusal is a value here

A kubectl costs a tenth of a second of a core to start. Beside a cluster on two cores, a suite that polls with it
spends more on looking than the cluster on being looked at.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from kubernetes.client import ApiException
from kubernetes.config import new_client_from_config
from urllib3.exceptions import HTTPError

Json = dict[str, Any]

TIMEOUT_S = 20.0
GROUP_PATH = "/apis/slipway.dev/v1alpha1"
_JSON, _MERGE, _APPLY = "application/json", "application/merge-patch+json", "application/apply-patch+yaml"


class KubeError(Exception):
    """A tool or the API server refused or failed; the text is its message."""


@dataclass(frozen=True)
class Answer:
    """The response of the API server to one request."""

    status: int
    body: Json
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))


class Api:
    """One API server, with the credentials of a kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig

    # --- what is expected to be there: dicts, and KubeError when it cannot be had -------------------------------------

    def find(self, path: str) -> Json:
        """One object; {} when there is none of this name."""
        status, text, _ = self._read(path)
        return {} if status == 404 else dict(json.loads(_accepted(path, status, text)))

    def items(self, kind: str, namespace: str = "", *, selector: str = "", fields: str = "") -> list[Json]:
        """All objects of a kind, named like `v1/pods` or `apps/v1/replicasets`, in a namespace or in all."""
        version, _, plural = kind.rpartition("/")
        root = f"apis/{version}" if "/" in version else f"api/{version}"
        place = f"namespaces/{namespace}/" if namespace else ""
        query = urlencode({"labelSelector": selector, "fieldSelector": fields})
        return list(json.loads(self.text(f"{root}/{place}{plural}?{query}"))["items"])

    def text(self, path: str) -> str:
        """The response of the API server, or of a pod behind it by `proxy`."""
        status, text, _ = self._read(path)
        return _accepted(path, status, text)

    # --- requests whose refusal is of interest: dicts in and out ------------------------------------------------------

    def get(self, path: str, **query: str) -> Answer:
        return self._ask("GET", path, None, _JSON, query)

    def post(self, path: str, body: Json, **query: str) -> Answer:
        return self._ask("POST", path, body, _JSON, query)

    def put(self, path: str, body: Json, **query: str) -> Answer:
        return self._ask("PUT", path, body, _JSON, query)

    def merge(self, path: str, body: Json, **query: str) -> Answer:
        return self._ask("PATCH", path, body, _MERGE, query)

    def apply(self, path: str, body: Json, **query: str) -> Answer:
        return self._ask("PATCH", path, body, _APPLY, {"fieldManager": "tests", "force": "true", **query})

    def delete(self, path: str) -> Answer:
        return self._ask("DELETE", path, None, _JSON, {})

    def close(self) -> None:
        self._client.rest_client.pool_manager.clear()

    @cached_property
    def _client(self) -> Any:
        load: Any = new_client_from_config  # has no types
        return load(str(self._kubeconfig))

    def _read(self, path: str) -> tuple[int, str, tuple[str, ...]]:
        try:
            return self._send("GET", path, None, "application/json, */*", _JSON)
        except (HTTPError, OSError) as error:
            raise KubeError(f"GET /{path.lstrip('/')}: {error}") from error

    def _ask(self, method: str, path: str, body: Json | None, kind: str, query: dict[str, str]) -> Answer:
        status, text, warnings = self._send(method, path + (f"?{urlencode(query)}" if query else ""), body, _JSON, kind)
        return Answer(status, _document(text), warnings)

    def _send(
        self, method: str, path: str, body: Json | None, accept: str, kind: str
    ) -> tuple[int, str, tuple[str, ...]]:
        """Status, text and warnings of an answer."""
        configuration = self._client.configuration
        headers = {"Accept": accept, "Content-Type": kind}
        if token := configuration.get_api_key_with_prefix("BearerToken", "authorization"):
            headers["Authorization"] = token
        url = f"{configuration.host}/{path.lstrip('/')}"
        try:
            answer = self._client.call_api(method, url, headers, body, _request_timeout=TIMEOUT_S)
        except ApiException as refusal:
            return int(refusal.status or 0), _decoded(refusal.body), ()
        return answer.status, _decoded(answer.read()), tuple(answer.response.headers.getlist("Warning"))


def _accepted(path: str, status: int, text: str) -> str:
    if not 200 <= status < 300:
        raise KubeError(f"GET /{path.lstrip('/')}: {status} {text}")
    return text


def _decoded(body: bytes | str | None) -> str:
    return body.decode() if isinstance(body, bytes) else body or ""


def _document(text: str) -> Json:
    """JSON as it is; what is not JSON (the 404 of a path that is not served) as a message."""
    try:
        return dict(json.loads(text or "{}"))
    except json.JSONDecodeError:
        return {"message": text}
