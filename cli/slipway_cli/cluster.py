"""The only room that talks to the API server: plain dicts, one limit for each exchange, our own errors."""

import json
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Any
from urllib.parse import quote, urlencode

import urllib3.exceptions
from kubernetes.client import ApiClient, ApiException

from slipway_cli.access import Access
from slipway_cli.errors import Forbidden, Missing, Trouble, Unreachable
from slipway_cli.kubeconfig import Target, target

Object = dict[str, Any]

GROUP_VERSION = "slipway.dev/v1alpha1"
KIND = "modeldeployments"
MODEL_DEPLOYMENT_LABEL = "slipway.dev/modeldeployment"
FIELD_MANAGER = "slipway-cli"
ATTEMPTS = 4  # the first and three more
FIRST_PAUSE_S = 0.2

_JSON, _MERGE = "application/json", "application/merge-patch+json"
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
# A conflict is the API server's own race with another writer; our patches have no precondition.
_AGAIN = (409, 429, 500, 502, 503, 504)


class Cluster:
    """Calls to one API server about one namespace.

    Each raises Trouble when the kubeconfig leads nowhere or the API server says no: Missing, Forbidden, Unreachable.
    """

    def __init__(self, access: Access) -> None:
        """Reads nothing yet: a wrong option is told before a wrong kubeconfig."""
        self._access, self._timeout_s = access, access.request_timeout_s
        self._now: datetime | None = None

    @cached_property
    def _target(self) -> Target:
        return target(self._access)

    @cached_property
    def _client(self) -> Any:
        return ApiClient(self._target.configuration)

    @property
    def namespace(self) -> str:
        """The namespace that the user means."""
        return self._target.namespace

    @property
    def flags(self) -> list[str]:
        """What kubectl needs besides the namespace to go to the same cluster."""
        said = {"--context": self._access.context, "--kubeconfig": self._access.kubeconfig}
        return [f"{flag}={value}" for flag, value in said.items() if value]

    def deployment(self, name: str) -> Object:
        """One ModelDeployment."""
        return self._call("GET", self._path(name))

    def deployments(self, everywhere: bool) -> Object:
        """The ModelDeployments of the namespace, or of all, as a list object."""
        return self._call("GET", self._path(everywhere=everywhere))

    def table(self, name: str | None, everywhere: bool) -> Object:
        """The same as the table that kubectl prints."""
        return self._call("GET", self._path(name, everywhere=everywhere), accept=_TABLE)

    def patch(self, name: str, body: Object) -> Object:
        """Change a ModelDeployment by merge patch."""
        return self._call("PATCH", self._path(name) + f"?fieldManager={FIELD_MANAGER}", body)

    def pods(self, name: str) -> list[Object]:
        """The pods of a ModelDeployment."""
        return self._items("/api/v1", "pods", labelSelector=f"{MODEL_DEPLOYMENT_LABEL}={name}")

    def history(self, name: str) -> list[Object]:
        """The ControllerRevisions of a ModelDeployment."""
        selector = f"{MODEL_DEPLOYMENT_LABEL}={name}"
        return self._items("/apis/apps/v1", "controllerrevisions", labelSelector=selector)

    def events(self, uid: str) -> list[Object]:
        """The Events about an object."""
        return self._items("/api/v1", "events", fieldSelector=f"involvedObject.uid={uid}")

    def analysis_template(self, name: str) -> Object | None:
        """An AnalysisTemplate; None when there is no object of that name."""
        where = f"namespaces/{quote(self.namespace, safe='')}/analysistemplates/{quote(name, safe='')}"
        try:
            return self._call("GET", f"/apis/{GROUP_VERSION}/{where}")
        except Missing:
            return None

    def lease(self, namespace: str, name: str) -> Object | None:
        """A Lease, of any namespace; None when there is none."""
        where = f"namespaces/{quote(namespace, safe='')}/leases/{quote(name, safe='')}"
        try:
            return self._call("GET", f"/apis/coordination.k8s.io/v1/{where}")
        except Missing:
            return None

    def now(self) -> datetime:
        """The API server's clock at its last answer: that of this machine may be wrong."""
        return self._now or datetime.now(UTC)

    def version(self) -> str:
        """Of the API server."""
        return str(self._call("GET", "/version").get("gitVersion"))

    def served_versions(self) -> list[str]:
        """The versions of ModelDeployment that it serves."""
        try:
            group = self._call("GET", f"/apis/{GROUP_VERSION.split('/')[0]}")
        except Trouble as error:
            if isinstance(error, Unreachable | Forbidden):
                raise
            return []
        return [item["version"] for item in group.get("versions") or ()]

    def _path(self, name: str | None = None, everywhere: bool = False) -> str:
        where = "" if everywhere else f"/namespaces/{quote(self.namespace, safe='')}"
        return f"/apis/{GROUP_VERSION}{where}/{KIND}" + (f"/{quote(name, safe='')}" if name else "")

    def _items(self, root: str, kind: str, **query: str) -> list[Object]:
        path = f"{root}/namespaces/{quote(self.namespace, safe='')}/{kind}?{urlencode(query)}"
        return self._call("GET", path).get("items") or []

    def _call(self, method: str, path: str, body: Object | None = None, accept: str = _JSON) -> Object:
        for attempt in range(1, ATTEMPTS + 1):
            status, answer = self._once(method, path, body, accept)
            if status < 400:
                return answer
            if status not in _AGAIN or attempt == ATTEMPTS:
                raise self._trouble(status, answer)
            time.sleep(FIRST_PAUSE_S * 2 ** (attempt - 1))
        raise AssertionError("the loop returns or raises")

    def _once(self, method: str, path: str, body: Object | None, accept: str) -> tuple[int, Object]:
        configuration = self._target.configuration
        headers = {"Accept": accept, "User-Agent": FIELD_MANAGER}
        if token := configuration.get_api_key_with_prefix("BearerToken"):
            headers["Authorization"] = token
        if body is not None:
            headers["Content-Type"] = _MERGE
        try:
            answer = self._client.call_api(
                method, configuration.host + path, headers, body, _request_timeout=self._timeout_s
            )
            self._now = _moment(answer.headers.get("Date"))
            return answer.status, _parse(answer.read())
        except (urllib3.exceptions.HTTPError, OSError, ApiException) as error:
            # Of its own accord the library raises ApiException for TLS that fails only; statuses are returned.
            raise Unreachable(self._silence(error)) from error

    def _silence(self, error: Exception) -> str:
        host = self._target.configuration.host
        # The library calls a refused connection a timeout, too.
        refused = isinstance(error, urllib3.exceptions.NewConnectionError)
        if isinstance(error, urllib3.exceptions.TimeoutError) and not refused:
            return f"the API server {host} gave no answer within {self._timeout_s:g} s: is the network up?"
        words = error.reason if isinstance(error, ApiException) else str(error)
        said = " ".join(words.split()).removeprefix("SSLError ") or type(error).__name__
        said = said.rpartition(": ")[2] if refused else said
        return f"the API server {host} cannot be reached: {said}; is the cluster up, and --context right?"

    def _trouble(self, status: int, answer: Object) -> Trouble:
        message = str(answer.get("message") or f"status {status}")
        if status == 401:
            who = f"the credentials of {self._target.context} are missing, wrong or have expired: log in again"
            return Trouble(f"the API server does not know who you are: {who}")
        if status == 403:
            return Forbidden(f"you may not do this: {message}")
        if status == 404:
            return self._missing(answer)
        if status in _AGAIN:
            return Unreachable(f"the API server refused {ATTEMPTS} times, at last with {status}: {message}")
        return Trouble(message)

    def _missing(self, answer: Object) -> Trouble:
        name = (answer.get("details") or {}).get("name")
        if name:
            where = f"namespace {self.namespace}"
            return Missing(f"there is no ModelDeployment {name} in {where}: `slipway get -A` lists all there are")
        return Trouble(f"this cluster does not serve {KIND}.{GROUP_VERSION}: install Slipway's chart (README.md)")


def _moment(text: str | None) -> datetime | None:
    """What a Date header says; None where a proxy made nonsense of it."""
    try:
        return parsedate_to_datetime(text).astimezone(UTC) if text else None
    except ValueError:
        return None


def _parse(text: bytes) -> Object:
    try:
        value = json.loads(text)
    except ValueError:
        return {"message": text.decode(errors="replace").strip()[:200]}
    return value if isinstance(value, dict) else {"message": str(value)[:200]}
