"""Reads the API server over connections that stay: what is looked at again and again, without a kubectl for each look.

    api = Api(Path(kubeconfig))
    api.get("apis/slipway.dev/v1alpha1/namespaces/demo/modeldeployments/chat")     # {} when there is none
    api.items("v1/pods", "demo", selector="app=chat")                              # all of a kind, as dicts
    api.text("api/v1/namespaces/demo/pods/chat-x:8001/proxy/metrics")              # whatever it is

A kubectl costs a tenth of a second of a core to start. Beside a cluster on two cores, a suite that polls with it
spends more on looking than the cluster on being looked at.
"""

import json
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from kubernetes.client import ApiException
from kubernetes.config import new_client_from_config
from urllib3.exceptions import HTTPError

Json = dict[str, Any]

TIMEOUT_S = 20.0


class KubeError(Exception):
    """A tool or the API server refused or failed; the text is what it said."""


class Api:
    """One API server, with the credentials of a kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig

    def get(self, path: str) -> Json:
        """One object; {} when there is none of this name."""
        found = self._read(path, or_none=True)
        return dict(json.loads(found)) if found else {}

    def items(self, kind: str, namespace: str = "", *, selector: str = "", fields: str = "") -> list[Json]:
        """All objects of a kind, named like `v1/pods` or `apps/v1/replicasets`, in a namespace or in all."""
        version, _, plural = kind.rpartition("/")
        root = f"apis/{version}" if "/" in version else f"api/{version}"
        place = f"namespaces/{namespace}/" if namespace else ""
        query = urlencode({"labelSelector": selector, "fieldSelector": fields})
        return list(json.loads(self._read(f"{root}/{place}{plural}?{query}"))["items"])

    def text(self, path: str) -> str:
        """What the API server answers, or somebody behind it by `proxy`."""
        return self._read(path)

    @cached_property
    def _client(self) -> Any:
        return new_client_from_config(str(self._kubeconfig))

    def _read(self, path: str, *, or_none: bool = False) -> str:
        configuration = self._client.configuration
        headers = {"Accept": "application/json, */*"}
        if token := configuration.get_api_key_with_prefix("BearerToken"):
            headers["Authorization"] = token
        try:
            answer = self._client.call_api("GET", f"{configuration.host}/{path}", headers, _request_timeout=TIMEOUT_S)
            text = str(answer.read().decode())
        except (HTTPError, OSError, ApiException) as error:
            raise KubeError(f"GET /{path}: {error}") from error
        if answer.status == 404 and or_none:
            return ""
        if answer.status >= 400:
            raise KubeError(f"GET /{path}: {answer.status} {text}")
        return text
