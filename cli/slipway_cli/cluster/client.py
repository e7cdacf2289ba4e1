"""The requests that commands send to the API server; retries, and one kind of error for each cause."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import quote, urlencode

from slipway_cli.api import (
    ADAPTERS,
    COMPONENT_LABEL,
    EXPERIMENTS,
    GROUP_VERSION,
    KIND,
    MODEL_DEPLOYMENT_LABEL,
    POOL_LABEL,
    POOLS,
    ROUTES,
    TENANTS,
    Json,
    adapter_of,
    label_of,
)
from slipway_cli.cluster.access import Access
from slipway_cli.cluster.transport import USER_AGENT, ApiResponse, Transport
from slipway_cli.errors import CommandError, Conflict, Forbidden, ObjectNotFound, Unreachable

FIELD_MANAGER = USER_AGENT
ATTEMPTS = 4  # the first and three more
FIRST_PAUSE_S = 0.2

_JSON, _MERGE_PATCH = "application/json", "application/merge-patch+json"
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
# A conflict is the API server's own race with another writer, unless a patch has a precondition.
_RETRIED = (409, 429, 500, 502, 503, 504)


class ClusterClient:
    """Calls to one API server about one namespace.

    Each raises CommandError when there is no usable kubeconfig or the API server returns an error; ObjectNotFound,
    Forbidden and Unreachable are the kinds that callers distinguish.
    """

    def __init__(self, access: Access) -> None:
        self._access, self._transport = access, Transport(access)
        self._now: datetime | None = None

    @property
    def namespace(self) -> str:
        """The namespace that the user named, else that of the kubeconfig."""
        return self._transport.connection.namespace

    @property
    def flags(self) -> list[str]:
        """The flags, without the namespace, with which kubectl uses the same cluster."""
        flags = {"--context": self._access.context, "--kubeconfig": self._access.kubeconfig}
        return [f"{flag}={value}" for flag, value in flags.items() if value]

    def deployment(self, name: str) -> Json:
        """One ModelDeployment; or a ModelAdapter, where the name is modeladapter/NAME, here and in what follows."""
        return self._call("GET", self._path(name))

    def deployments(self, everywhere: bool) -> Json:
        """The ModelDeployments of the namespace, or of all, as a list object."""
        return self._call("GET", self._path(everywhere=everywhere))

    def table(self, name: str | None, everywhere: bool) -> Json:
        """One or all ModelDeployments as a meta.k8s.io Table, with the columns that kubectl prints."""
        return self._call("GET", self._path(name, everywhere=everywhere), accept=_TABLE)

    def patch(self, name: str, body: Json) -> Json:
        """Change a ModelDeployment by merge patch; returns the changed object."""
        return self._call("PATCH", self._path(name) + f"?fieldManager={FIELD_MANAGER}", body)

    def pods(self, name: str) -> list[Json]:
        """The pods of a ModelDeployment."""
        return self._items("/api/v1", "pods", labelSelector=f"{MODEL_DEPLOYMENT_LABEL}={label_of(name)}")

    def model_pods(self, everywhere: bool) -> list[Json]:
        """The pods of all ModelDeployments of the namespace, or of all namespaces."""
        where = "" if everywhere else f"/namespaces/{quote(self.namespace, safe='')}"
        query = urlencode({"labelSelector": MODEL_DEPLOYMENT_LABEL})
        return self._call("GET", f"/api/v1{where}/pods?{query}").get("items") or []

    def history(self, name: str) -> list[Json]:
        """The ControllerRevisions of a ModelDeployment."""
        selector = f"{MODEL_DEPLOYMENT_LABEL}={label_of(name)}"
        return self._items("/apis/apps/v1", "controllerrevisions", labelSelector=selector)

    def events(self, uid: str) -> list[Json]:
        """The Events about an object."""
        return self._items("/api/v1", "events", fieldSelector=f"involvedObject.uid={uid}")

    def analysis_template(self, name: str) -> Json | None:
        """An AnalysisTemplate; None when there is no object of that name."""
        return self._find("analysistemplates", name)

    def analysis_run(self, name: str) -> Json | None:
        """An AnalysisRun; None when there is no object of that name."""
        return self._find("analysisruns", name)

    def _find(self, plural: str, name: str) -> Json | None:
        where = f"namespaces/{quote(self.namespace, safe='')}/{plural}/{quote(name, safe='')}"
        try:
            return self._call("GET", f"/apis/{GROUP_VERSION}/{where}")
        except ObjectNotFound:
            return None

    def lease(self, namespace: str, name: str) -> Json | None:
        """A Lease, of any namespace; None when there is none."""
        where = f"namespaces/{quote(namespace, safe='')}/leases/{quote(name, safe='')}"
        try:
            return self._call("GET", f"/apis/coordination.k8s.io/v1/{where}")
        except ObjectNotFound:
            return None

    def pool(self, name: str) -> Json:
        """One ModelPool."""
        return self._call("GET", self._path(name, kind=POOLS))

    def pools(self, everywhere: bool) -> Json:
        """The ModelPools of the namespace, or of all, as a list object."""
        return self._call("GET", self._path(everywhere=everywhere, kind=POOLS))

    def pool_table(self, everywhere: bool) -> Json:
        """The ModelPools as a meta.k8s.io Table, with the columns that kubectl prints."""
        return self._call("GET", self._path(everywhere=everywhere, kind=POOLS), accept=_TABLE)

    def pool_pods(self, pool: str) -> list[Json]:
        """The pods of a ModelPool."""
        return self._items("/api/v1", "pods", labelSelector=f"{POOL_LABEL}={pool}")

    def model_route(self, name: str) -> Json:
        """One ModelRoute."""
        return self._call("GET", self._path(name, kind=ROUTES))

    def model_routes(self, everywhere: bool) -> Json:
        """The ModelRoutes of the namespace, or of all, as a list object."""
        return self._call("GET", self._path(everywhere=everywhere, kind=ROUTES))

    def model_route_table(self, name: str | None, everywhere: bool) -> Json:
        """One or all ModelRoutes as a meta.k8s.io Table, with the columns that kubectl prints."""
        return self._call("GET", self._path(name, everywhere=everywhere, kind=ROUTES), accept=_TABLE)

    def experiment(self, name: str) -> Json:
        """One Experiment."""
        return self._call("GET", self._path(name, kind=EXPERIMENTS))

    def experiments(self, everywhere: bool) -> Json:
        """The Experiments of the namespace, or of all, as a list object."""
        return self._call("GET", self._path(everywhere=everywhere, kind=EXPERIMENTS))

    def experiment_table(self, name: str | None, everywhere: bool) -> Json:
        """One or all Experiments as a meta.k8s.io Table, with the columns that kubectl prints."""
        return self._call("GET", self._path(name, everywhere=everywhere, kind=EXPERIMENTS), accept=_TABLE)

    def tenant(self, name: str) -> Json:
        """One Tenant."""
        return self._call("GET", _tenant_path(name))

    def tenants(self) -> Json:
        """All Tenants, as a list object."""
        return self._call("GET", _tenant_path())

    def tenant_table(self, name: str | None) -> Json:
        """One or all Tenants as a meta.k8s.io Table, with the columns that kubectl prints."""
        return self._call("GET", _tenant_path(name), accept=_TABLE)

    def patch_tenant(self, name: str, body: Json) -> Json:
        """Change a Tenant by merge patch; returns the changed object.

        Raises:
            Conflict: when the patch has a resourceVersion that is not the present one.
        """
        return self._call("PATCH", _tenant_path(name) + f"?fieldManager={FIELD_MANAGER}", body, conditional=True)

    def secret(self, namespace: str, name: str) -> Json | None:
        """A Secret, of any namespace; None when there is none."""
        try:
            return self._call("GET", f"/api/v1/namespaces/{quote(namespace, safe='')}/secrets/{quote(name, safe='')}")
        except ObjectNotFound:
            return None

    def pod(self, namespace: str, name: str) -> Json | None:
        """A pod, of any namespace; None when there is none."""
        try:
            return self._call("GET", f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}")
        except ObjectNotFound:
            return None

    def gateway_pods(self, namespace: str) -> list[Json]:
        """The pods of the gateways of releases in a namespace."""
        return self._component_pods(namespace, "gateway")

    def operator_pods(self, namespace: str) -> list[Json]:
        """The pods of the operators of releases in a namespace."""
        return self._component_pods(namespace, "operator")

    def _component_pods(self, namespace: str, component: str) -> list[Json]:
        query = urlencode({"labelSelector": f"{COMPONENT_LABEL}={component}"})
        return self._call("GET", f"/api/v1/namespaces/{quote(namespace, safe='')}/pods?{query}").get("items") or []

    def page(self, namespace: str, pod: str, path: str) -> str:
        """The text of a page of a pod. `pod`: NAME:PORT. The API server forwards the request."""
        where = f"namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe=':')}"
        return self._exchange("GET", f"/api/v1/{where}/proxy/{path}", accept="text/plain").text

    def gateway(self, namespace: str, pod: str, path: str) -> Json:
        """The response of a gateway's admin port. `pod`: NAME:PORT. The API server forwards the request."""
        where = f"namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe=':')}"
        return self._call("GET", f"/api/v1/{where}/proxy/{path}")

    def now(self) -> datetime:
        """The API server's clock at its last answer, before that this machine's clock, which may be wrong."""
        return self._now or datetime.now(UTC)

    def version(self) -> str:
        """The version of the API server."""
        return str(self._call("GET", "/version").get("gitVersion"))

    def served_versions(self) -> list[str]:
        """The versions of ModelDeployment that the API server serves; empty where Slipway's CRDs are not installed."""
        try:
            group = self._call("GET", f"/apis/{GROUP_VERSION.split('/')[0]}")
        except CommandError as error:
            if isinstance(error, Unreachable | Forbidden):
                raise
            return []
        return [item["version"] for item in group.get("versions") or ()]

    def _path(self, name: str | None = None, everywhere: bool = False, kind: str = KIND) -> str:
        where = "" if everywhere else f"/namespaces/{quote(self.namespace, safe='')}"
        if kind == KIND and name and (adapter := adapter_of(name)) is not None:
            kind, name = ADAPTERS, adapter
        return f"/apis/{GROUP_VERSION}{where}/{kind}" + (f"/{quote(name, safe='')}" if name else "")

    def _items(self, root: str, kind: str, **query: str) -> list[Json]:
        path = f"{root}/namespaces/{quote(self.namespace, safe='')}/{kind}?{urlencode(query)}"
        return self._call("GET", path).get("items") or []

    def _call(
        self, method: str, path: str, body: Json | None = None, accept: str = _JSON, *, conditional: bool = False
    ) -> Json:
        return self._exchange(method, path, body, accept, conditional=conditional).body

    def _exchange(
        self, method: str, path: str, body: Json | None = None, accept: str = _JSON, *, conditional: bool = False
    ) -> ApiResponse:
        # Imported here, as in the transport: help and completion start without it.
        from tenacity import Retrying, retry_if_result, stop_after_attempt, wait_exponential

        headers = {"Accept": accept, **({} if body is None else {"Content-Type": _MERGE_PATCH})}
        retrying = Retrying(
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_exponential(multiplier=FIRST_PAUSE_S),
            retry=retry_if_result(
                lambda response: _is_passing(response) and not (conditional and response.status == 409)
            ),
            retry_error_callback=lambda state: state.outcome and state.outcome.result(),
        )
        response = retrying(self._transport.send, method, path, body, headers)
        self._now = _parse_date(response.headers.get("Date"))
        if conditional and response.status == 409:
            raise Conflict(str(response.body.get("message")))
        if response.status >= 400:
            raise self._error(response.status, response.body)
        return response

    def _error(self, status: int, answer: Json) -> CommandError:
        # Gateways, to which the API server forwards requests, have the message in `error`.
        message = str(answer.get("message") or answer.get("error") or f"status {status}")
        if status == 401:
            context = self._transport.connection.context
            who = f"the credentials of {context} are missing, wrong or have expired: log in again"
            return CommandError(f"the API server does not know who you are: {who}")
        if status == 403:
            return Forbidden(f"you may not do this: {message}")
        if status == 404:
            return self._not_found(answer)
        if status in _RETRIED:
            return Unreachable(f"the API server refused {ATTEMPTS} times, at last with {status}: {message}")
        return CommandError(message)

    def _not_found(self, answer: Json) -> CommandError:
        details = answer.get("details") or {}
        name = details.get("name")
        if name and details.get("kind") == TENANTS:
            return ObjectNotFound(f"there is no Tenant {name}: `slipway tenants` lists all there are")
        if name and details.get("kind") == ADAPTERS:
            where = f"namespace {self.namespace}"
            return ObjectNotFound(f"there is no ModelAdapter {name} in {where}: `kubectl get madapter -A`")
        if name and details.get("kind") == POOLS:
            return ObjectNotFound(f"there is no ModelPool {name} in namespace {self.namespace}: `slipway pools -A`")
        if name and details.get("kind") == ROUTES:
            return ObjectNotFound(f"there is no ModelRoute {name} in namespace {self.namespace}: `slipway routes -A`")
        if name:
            where = f"namespace {self.namespace}"
            return ObjectNotFound(
                f"there is no ModelDeployment {name} in {where}: `slipway get -A` lists all there are"
            )
        return CommandError(f"this cluster does not serve {KIND}.{GROUP_VERSION}: install Slipway's chart (README.md)")


def _tenant_path(name: str | None = None) -> str:
    return f"/apis/{GROUP_VERSION}/{TENANTS}" + (f"/{quote(name, safe='')}" if name else "")


def _is_passing(response: ApiResponse) -> bool:
    return response.status in _RETRIED


def _parse_date(text: str | None) -> datetime | None:
    """The time of a Date header; None when a proxy made it invalid."""
    try:
        return parsedate_to_datetime(text).astimezone(UTC) if text else None
    except ValueError:
        return None
