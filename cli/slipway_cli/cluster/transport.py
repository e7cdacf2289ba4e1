"""One HTTP exchange with the API server through the Kubernetes client library.

The library and urllib3 take half a second to load, so they are imported on the first exchange: help and shell
completion of options do without them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from slipway_cli.api import Json
from slipway_cli.cluster.access import Access, Connection
from slipway_cli.errors import CommandError, Unreachable

USER_AGENT = "slipway-cli"
LARGEST_BYTES = 256 << 20  # of a response: the API server also forwards those of pods


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """A response of the API server, whatever its status code."""

    status: int
    headers: Mapping[str, str]
    body: Json
    text: str = ""


class Transport:
    """Sends requests to one API server. Reads the kubeconfig on the first use, so usage errors come first."""

    def __init__(self, access: Access) -> None:
        self._access = access

    @cached_property
    def connection(self) -> Connection:
        """Server, identity and namespace from the kubeconfig.

        Raises:
            CommandError: when there is no usable kubeconfig.
        """
        from slipway_cli.cluster.kubeconfig import connect

        return connect(self._access)

    def send(self, method: str, path: str, body: Json | None, headers: Mapping[str, str]) -> ApiResponse:
        """Send one request and read the whole response.

        Raises:
            CommandError: when there is no usable kubeconfig, or the response is too long.
            Unreachable: when there is no response.
        """
        import urllib3.exceptions
        from kubernetes.client import ApiException

        configuration = self.connection.configuration
        all_headers = {"User-Agent": USER_AGENT, **headers}
        if token := configuration.get_api_key_with_prefix("BearerToken"):
            all_headers["Authorization"] = token
        try:
            response = self._client.call_api(
                method, configuration.host + path, all_headers, body, _request_timeout=self._access.request_timeout_s
            )
            raw = response.response.read(LARGEST_BYTES + 1)
            if len(raw) > LARGEST_BYTES:
                response.response.close()
                raise CommandError(f"the response to {path.partition('?')[0]} has more than {LARGEST_BYTES} bytes")
            return ApiResponse(response.status, response.headers, _parse(raw), raw.decode(errors="replace"))
        except (urllib3.exceptions.HTTPError, OSError, ApiException) as error:
            # The library raises ApiException only when TLS fails; it returns status codes.
            raise Unreachable(self._describe(error)) from error

    @cached_property
    def _client(self) -> Any:
        from kubernetes.client import ApiClient

        return ApiClient(self.connection.configuration)

    def _describe(self, error: Exception) -> str:
        from kubernetes.client import ApiException
        from urllib3.exceptions import NewConnectionError, TimeoutError

        host = self.connection.configuration.host
        # urllib3 derives the error of a refused connection from that of a timeout.
        refused = isinstance(error, NewConnectionError)
        if isinstance(error, TimeoutError) and not refused:
            limit = f"{self._access.request_timeout_s:g} s"
            return f"the API server {host} gave no answer within {limit}: is the network up?"
        text = " ".join((error.reason if isinstance(error, ApiException) else str(error)).split())
        cause = text.removeprefix("SSLError ") or type(error).__name__
        cause = cause.rpartition(": ")[2] if refused else cause
        return f"the API server {host} cannot be reached: {cause}; is the cluster up, and --context right?"


def _parse(text: bytes) -> Json:
    try:
        value = json.loads(text)
    except ValueError:
        return {"message": text.decode(errors="replace").strip()[:200]}
    return value if isinstance(value, dict) else {"message": str(value)[:200]}
