"""A real API server takes every object, runs the pods as restricted ones, and gives each account only its rights."""

from functools import partial
from typing import Any

import pytest

from testkit.cluster.api import Api
from testkit.until import until
from tests.chart.rendered import SCENARIOS, objects, of_kind
from tests.support.pod_security import enforce_restricted

pytestmark = pytest.mark.integration

NAMES = [path.name.removesuffix("-values.yaml") for path in SCENARIOS]
RBAC = "/apis/rbac.authorization.k8s.io/v1"
PREFIXES = {
    "CustomResourceDefinition": ("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions"),
    "Deployment": ("/apis/apps/v1", "deployments"),
    "DaemonSet": ("/apis/apps/v1", "daemonsets"),
    "PersistentVolume": ("/api/v1", "persistentvolumes"),
    "PersistentVolumeClaim": ("/api/v1", "persistentvolumeclaims"),
    "Service": ("/api/v1", "services"),
    "Pod": ("/api/v1", "pods"),
    "HorizontalPodAutoscaler": ("/apis/autoscaling/v2", "horizontalpodautoscalers"),
    "Ingress": ("/apis/networking.k8s.io/v1", "ingresses"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
    "ServiceAccount": ("/api/v1", "serviceaccounts"),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "PriorityClass": ("/apis/scheduling.k8s.io/v1", "priorityclasses"),
    "ClusterRole": (RBAC, "clusterroles"),
    "ClusterRoleBinding": (RBAC, "clusterrolebindings"),
    "Role": (RBAC, "roles"),
    "RoleBinding": (RBAC, "rolebindings"),
}
READ, WRITE = ("get", "list", "watch"), ("create", "update", "patch", "delete", "deletecollection")
GROUPS = {
    "modeldeployments": "slipway.dev",
    "analysistemplates": "slipway.dev",
    "analysisruns": "slipway.dev",
    "tenants": "slipway.dev",
    "modelpools": "slipway.dev",
    "modeladapters": "slipway.dev",
    "modelroutes": "slipway.dev",
    "experiments": "slipway.dev",
    "referencegrants": "gateway.networking.k8s.io",
    "replicasets": "apps",
    "controllerrevisions": "apps",
    "leaderworkersets": "leaderworkerset.x-k8s.io",
    "statefulsets": "apps",
    "deployments": "apps",
    "jobs": "batch",
    "networkpolicies": "networking.k8s.io",
    "poddisruptionbudgets": "policy",
    "horizontalpodautoscalers": "autoscaling",
    "apiservices": "apiregistration.k8s.io",
    "endpointslices": "discovery.k8s.io",
    "leases": "coordination.k8s.io",
    "clusterroles": "rbac.authorization.k8s.io",
    "rolebindings": "rbac.authorization.k8s.io",
    "customresourcedefinitions": "apiextensions.k8s.io",
    "tokenreviews": "authentication.k8s.io",
}
# Every call that the operator makes, and nothing else.
OPERATOR = {
    "modeldeployments": READ,
    "analysistemplates": ("get",),
    "analysisruns": ("get", "list", "create", "update", "delete"),
    "modeldeployments/status": ("update",),
    "modeldeployments/finalizers": ("update",),
    "modeladapters": READ,
    "modeladapters/status": ("update",),
    "modeladapters/finalizers": ("update",),
    "modelpools": ("list",),
    "modelpools/status": ("update",),
    "modelpools/finalizers": ("update",),
    "modelroutes": ("list",),
    "modelroutes/status": ("update",),
    "experiments": ("list",),
    "experiments/status": ("update",),
    "referencegrants": ("list",),
    "replicasets": (*READ, "create", "patch", "delete"),
    "controllerrevisions": (*READ, "create", "patch", "delete"),
    "leaderworkersets": ("get", "list", "create", "patch", "delete"),
    "statefulsets": ("get", "create", "patch"),
    "services": (*READ, "create", "patch", "delete"),
    "horizontalpodautoscalers": (*READ, "create", "patch", "delete"),
    "pods": (*READ, "patch"),
    "pods/eviction": ("create",),
    "nodes": ("list", "watch"),
    "configmaps": ("create",),
    "jobs": ("get", "create", "delete"),
    "networkpolicies": ("create", "patch"),
    "poddisruptionbudgets": ("create", "patch"),
    "endpointslices": READ,
    "events": ("get", "list", "create", "patch"),
    "namespaces": ("get", "list"),
    "tenants": ("list",),
    "tenants/status": ("update",),
}
# Those that register the metrics API, by name.
REGISTRATIONS = ("v1beta1.custom.metrics.k8s.io", "v1beta2.custom.metrics.k8s.io", "v1beta1.external.metrics.k8s.io")
LEASE = {"get", "update"}  # its own one, in its own namespace
NAMES_OBJECT = {"slipway-operator": {"get", "update"}, "slipway-gateway": set(READ)}  # who owns which model name
# Secrets: in the release's namespace or in a served one, by name. `create` at home knows no names.
KEYS: tuple[tuple[bool, str, set[str]], ...] = (
    (True, "slipway-keys", {"create", "get", "update"}),
    (True, "slipway-key-pepper", {"create", "get"}),
    (True, "another", {"create"}),
    (False, "slipway-tenant-key", {"create", "patch"}),
    (False, "slipway-keys", set()),
    (False, "another", set()),
)
GATEWAY = {
    "modeldeployments": READ,
    "modeladapters": READ,
    "modelroutes": READ,
    "experiments": READ,
    "tenants": READ,
    "pods": READ,
    "endpointslices": READ,
}
OTHERS = ("secrets", "configmaps", "nodes", "namespaces", "serviceaccounts", "serviceaccounts/token", "pods/exec")
OTHERS += (
    "apiservices",
    "deployments",
    "leases",
    "clusterroles",
    "rolebindings",
    "customresourcedefinitions",
    "modeldeployments/scale",
    "tokenreviews",
)


@pytest.fixture
def teams(api: Api) -> None:
    """The namespaces that scenarios name."""
    for name in ("team-a", "team-b"):
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        assert api.apply(f"/api/v1/namespaces/{name}", body).ok


@pytest.mark.usefixtures("teams")
@pytest.mark.parametrize("name", NAMES)
def test_every_object_is_accepted_strictly(api: Api, namespace: str, name: str) -> None:
    for item in objects(name, namespace):
        # CRDs of the Prometheus operator are not here.
        if item["apiVersion"] != "monitoring.coreos.com/v1":
            answer = api.apply(object_path(item), item, dryRun="All", fieldValidation="Strict")
            assert answer.ok, f"{item['kind']} {item['metadata']['name']}: {answer.message}"
            assert not answer.warnings


@pytest.mark.parametrize("name", NAMES)
def test_pods_pass_pod_security_restricted(api: Api, namespace: str, name: str) -> None:
    enforce_restricted(api, namespace)
    rendered = objects(name, namespace)
    for template in (*(one["spec"]["template"] for one in of_kind(rendered, "Deployment")), *of_kind(rendered, "Pod")):
        metadata = {**template["metadata"], "name": "trial"}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        answer = api.post(f"/api/v1/namespaces/{namespace}/pods", body, dryRun="All", fieldValidation="Strict")
        assert answer.ok, answer.message


@pytest.mark.parametrize(("account", "allowed"), [("slipway-operator", OPERATOR), ("slipway-gateway", GATEWAY)])
def test_account_has_exactly_its_rights(api: Api, namespace: str, account: str, allowed: dict) -> None:
    _install_rbac(api, "default", namespace)
    may = partial(_may, api, f"{namespace}:{account}", "default")
    _wait_for(partial(may, "watch", "modeldeployments"))
    for resource in sorted({*OPERATOR, *GATEWAY, *OTHERS}):
        granted = {verb for verb in (*READ, *WRITE) if may(verb, resource)}
        assert granted == set(allowed.get(resource, ())), resource
    for lease, verbs in (("slipway-operator", LEASE if account == "slipway-operator" else set()), ("another", set())):
        own = partial(_may, api, f"{namespace}:{account}", namespace)
        assert {verb for verb in (*READ, *WRITE) if own(verb, "leases", lease)} == verbs
    for one, verbs in (("slipway-model-names", NAMES_OBJECT[account]), ("kube-root-ca.crt", set())):
        everywhere = set(allowed.get("configmaps", ()))
        assert {verb for verb in (*READ, *WRITE) if own(verb, "configmaps", one)} == verbs | everywhere
    assert {verb for verb in (*READ, *WRITE) if may(verb, "configmaps", "slipway-model-pools")} == (
        {"create", "patch", "delete"} if account == "slipway-operator" else set()
    )
    for home, one, of_operator in KEYS:
        where = namespace if home else "default"
        verbs = of_operator if account == "slipway-operator" else set()
        secret = partial(_may, api, f"{namespace}:{account}", where)
        assert {verb for verb in (*READ, *WRITE) if secret(verb, "secrets", one)} == verbs, (where, one)


def test_the_metrics_api_is_registered_by_name_and_by_the_operator_alone(api: Api, namespace: str) -> None:
    _install_rbac(api, "default", namespace)
    operator, gateway = f"{namespace}:slipway-operator", f"{namespace}:slipway-gateway"
    _wait_for(partial(_may, api, operator, "", "patch", "apiservices", REGISTRATIONS[0]))
    for name in (*REGISTRATIONS, "v1.apps", "v1beta1.metrics.k8s.io"):
        granted = {verb for verb in (*READ, *WRITE) if _may(api, operator, "", verb, "apiservices", name)}
        assert granted == ({"get", "create", "patch", "delete"} if name in REGISTRATIONS else set())
        assert not _may(api, gateway, "", "get", "apiservices", name)
    own, config = f"{namespace}-slipway-metrics-api", "extension-apiserver-authentication"
    assert _may(api, operator, "", "get", "clusterroles", own)
    assert not _may(api, operator, "", "get", "clusterroles", "cluster-admin")
    _wait_for(partial(_may, api, operator, "kube-system", "get", "configmaps", config))
    assert not _may(api, operator, "kube-system", "get", "configmaps", "kube-root-ca.crt")
    assert not _may(api, gateway, "kube-system", "get", "configmaps", config)


def test_only_gateways_review_tokens_and_only_with_an_audience(api: Api, namespace: str) -> None:
    _install_rbac(api, "ha", namespace)
    operator, gateway = f"{namespace}:slipway-operator", f"{namespace}:slipway-gateway"
    _wait_for(partial(_may, api, gateway, "", "create", "tokenreviews"))
    assert not _may(api, operator, "", "create", "tokenreviews")


def test_namespaced_accounts_end_at_their_namespaces(api: Api, namespace: str, teams: None) -> None:
    _install_rbac(api, "namespaced", namespace)
    operator = f"{namespace}:slipway-operator"
    _wait_for(partial(_may, api, operator, "team-b", "create", "replicasets"))
    _wait_for(partial(_may, api, operator, namespace, "list", "endpointslices"))
    assert _may(api, operator, "team-a", "create", "replicasets")
    assert {
        verb for verb in (*READ, *WRITE) if _may(api, operator, namespace, verb, "leases", "slipway-operator")
    } == LEASE
    assert not _may(api, operator, "team-a", "update", "leases")
    for elsewhere in ("default", namespace, ""):
        assert not _may(api, operator, elsewhere, "list", "modeldeployments")
        assert not _may(api, operator, elsewhere, "create", "replicasets")
        assert not _may(api, f"{namespace}:slipway-gateway", elsewhere, "list", "modeldeployments")


def test_roles_of_people_leave_status_alone(api: Api, namespace: str) -> None:
    roles = {
        role["metadata"]["name"].rpartition("-")[2]: role
        for role in of_kind(objects(namespace=namespace), "ClusterRole")
    }
    view, edit = roles["view"], roles["edit"]
    assert view["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert {verb for rule in view["rules"] for verb in rule["verbs"]} == set(READ)
    assert not [rule for rule in edit["rules"] if "modeldeployments/status" in rule["resources"]]
    assert all(api.apply(object_path(role), role, dryRun="All", fieldValidation="Strict").ok for role in (view, edit))


@pytest.mark.finding("S12")
def test_every_user_may_see_whether_the_operator_runs(api: Api, namespace: str) -> None:
    """`slipway status` showed how long an analysis takes, long after the operator was gone."""
    _install_rbac(api, "default", namespace)
    authenticated = partial(_may, api, f"{namespace}:default", namespace, groups=("system:authenticated",))
    _wait_for(partial(authenticated, "get", "leases", "slipway-operator"))
    assert [verb for verb in (*READ, *WRITE) if authenticated(verb, "leases", "slipway-operator")] == ["get"]
    assert not [verb for verb in (*READ, *WRITE) if authenticated(verb, "leases", "another")]


def _install_rbac(api: Api, scenario: str, namespace: str) -> None:
    kinds = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount")
    for item in of_kind(objects(scenario, namespace), *kinds):
        applied = api.apply(object_path(item), item)
        assert applied.ok, applied.message


def _may(
    api: Api, account: str, namespace: str, verb: str, resource: str, name: str = "", groups: tuple[str, ...] = ()
) -> bool:
    """Ask the API server whether a service account (NAMESPACE:NAME) may do this."""
    plural, _, subresource = resource.partition("/")
    attributes = {"verb": verb, "resource": plural, "subresource": subresource, "namespace": namespace, "name": name}
    attributes["group"] = GROUPS.get(plural, "")
    spec = {"user": f"system:serviceaccount:{account}", "groups": groups, "resourceAttributes": attributes}
    body: dict[str, Any] = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    return bool(api.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", body).body["status"]["allowed"])


def _wait_for(allowed: Any) -> None:
    """A new role counts as soon as the API server's own watch has seen it."""
    until(allowed, "the role takes effect")


def object_path(item: dict[str, Any]) -> str:
    prefix, plural = PREFIXES[item["kind"]]
    namespace = item["metadata"].get("namespace")
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{prefix}{scope}/{plural}/{item['metadata']['name']}"
