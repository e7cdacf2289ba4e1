"""Kinds that the operator reads or writes, and their paths in the API."""

from dataclasses import dataclass
from urllib.parse import quote

from slipway_contracts import adapters
from slipway_contracts.experiments import spec as experiments
from slipway_contracts.model_routes import spec as model_routes
from slipway_operator.model import labels


@dataclass(frozen=True, slots=True)
class Resource:
    """One namespaced or cluster-scoped kind."""

    api_version: str
    kind: str
    plural: str

    @property
    def group_version(self) -> tuple[str, str]:
        """Group and version; the core group is empty."""
        group, _, version = self.api_version.rpartition("/")
        return group, version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the path of the collection, of an object, or of a subresource."""
        root = "/api/" if "/" not in self.api_version else "/apis/"
        parts = ["namespaces", namespace, self.plural] if namespace else [self.plural]
        parts += [part for part in (name, subresource) if part]
        return root + self.api_version + "".join(f"/{quote(part, safe='')}" for part in parts if part)


MODEL_DEPLOYMENTS = Resource(labels.API_VERSION, labels.KIND, labels.PLURAL)
MODEL_ADAPTERS = Resource(labels.API_VERSION, adapters.KIND, adapters.PLURAL)
ANALYSIS_RUNS = Resource(labels.API_VERSION, "AnalysisRun", "analysisruns")
ANALYSIS_TEMPLATES = Resource(labels.API_VERSION, "AnalysisTemplate", "analysistemplates")
MODEL_POOLS = Resource(labels.API_VERSION, labels.POOL_KIND, "modelpools")
TENANTS = Resource(labels.API_VERSION, "Tenant", "tenants")
MODEL_ROUTES = Resource(labels.API_VERSION, model_routes.KIND, model_routes.PLURAL)
EXPERIMENTS = Resource(labels.API_VERSION, experiments.KIND, experiments.PLURAL)
REFERENCE_GRANTS = Resource("gateway.networking.k8s.io/v1beta1", "ReferenceGrant", "referencegrants")
REPLICA_SETS = Resource("apps/v1", "ReplicaSet", "replicasets")
LEADER_WORKER_SETS = Resource(labels.GROUPS_API_VERSION, labels.LEADER_WORKER_SET, "leaderworkersets")
STATEFUL_SETS = Resource("apps/v1", "StatefulSet", "statefulsets")
CONTROLLER_REVISIONS = Resource("apps/v1", "ControllerRevision", "controllerrevisions")
SERVICES = Resource("v1", "Service", "services")
PODS = Resource("v1", "Pod", "pods")
EVENTS = Resource("v1", "Event", "events")
ENDPOINT_SLICES = Resource("discovery.k8s.io/v1", "EndpointSlice", "endpointslices")
JOBS = Resource("batch/v1", "Job", "jobs")
SECRETS = Resource("v1", "Secret", "secrets")
CERTIFICATES = Resource("cert-manager.io/v1", "Certificate", "certificates")
LEASES = Resource("coordination.k8s.io/v1", "Lease", "leases")
AUTOSCALERS = Resource("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
NETWORK_POLICIES = Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
DISRUPTION_BUDGETS = Resource("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
CONFIG_MAPS = Resource("v1", "ConfigMap", "configmaps")
NODES = Resource("v1", "Node", "nodes")
NAMESPACES = Resource("v1", "Namespace", "namespaces")
API_SERVICES = Resource("apiregistration.k8s.io/v1", "APIService", "apiservices")
CUSTOM_RESOURCE_DEFINITIONS = Resource(
    "apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions"
)
ACCESS_REVIEWS = Resource("authorization.k8s.io/v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews")
CLUSTER_ROLES = Resource("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles")

WORKLOADS = (REPLICA_SETS, LEADER_WORKER_SETS)
CHILDREN = (*WORKLOADS, CONTROLLER_REVISIONS, SERVICES, AUTOSCALERS)


def child(api_version: str, kind: str) -> Resource:
    """Return the resource of a child object.

    Raises:
        KeyError: for a kind that is not among our children: a plan must not name it.
    """
    return {(item.api_version, item.kind): item for item in CHILDREN}[api_version, kind]
