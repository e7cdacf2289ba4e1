"""The NetworkPolicy of a ModelDeployment's pods: who may connect to them."""

from dataclasses import dataclass, field
from typing import Any

from slipway_contracts.adapters import ADAPTERS_PORT
from slipway_operator.manifests.engines.profile import HTTP_PORT
from slipway_operator.manifests.owner import Owner
from slipway_operator.model import labels

COMPONENT = "fence"  # value of the component label, and end of the name
GATEWAY, OPERATOR = "gateway", "operator"  # values of the chart's component label
NAMESPACE_NAME = "kubernetes.io/metadata.name"  # the API server sets it on every Namespace

Peer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class NetworkPolicySettings:
    """The identity of a release's gateways and operator, and the other peers that may read metrics."""

    namespace: str  # of the release
    release: tuple[tuple[str, str], ...]  # labels that all of its pods share, without the component
    metrics_peers: tuple[Peer, ...] = field(default=())  # NetworkPolicyPeers


def network_policy(owner: Owner, settings: NetworkPolicySettings, *, grouped: bool = False) -> dict[str, Any]:
    """Return a policy that admits gateways, the operator and `metrics_peers` to the port of API and `/metrics`.

    Gateways and the operator also read which adapters a pod has, on a port that only pods with spec.adapters open.

    `grouped`: pods of groups also reach each other on any port, because engines choose ports when they start.

    Probes come from the node's kubelet, which network plugins admit to pods of their own node. Egress stays open,
    because the user chooses from where weights are downloaded.
    """
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": owner.component_metadata(COMPONENT, COMPONENT),
        "spec": {
            "podSelector": {"matchLabels": {labels.MODEL_DEPLOYMENT: owner.name}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": _peers(settings), "ports": [{"port": HTTP_PORT, "protocol": "TCP"}]},
                {"from": _release(settings), "ports": [{"port": ADAPTERS_PORT, "protocol": "TCP"}]},
                *([{"from": [_pods_of_groups(owner)]}] if grouped else ()),
            ],
        },
    }


def pool_policy(metadata: dict[str, Any], pool: str, settings: NetworkPolicySettings) -> dict[str, Any]:
    """Return the same policy for the pods of a ModelPool, where the operator also loads entries."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": {
            "podSelector": {"matchLabels": {labels.MODEL_POOL: pool}},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": _peers(settings), "ports": [{"port": HTTP_PORT, "protocol": "TCP"}]}],
        },
    }


def _peers(settings: NetworkPolicySettings) -> list[Peer]:
    monitoring = [_as_in_release(peer, settings) for peer in settings.metrics_peers]
    return [*_release(settings), *monitoring]


def _release(settings: NetworkPolicySettings) -> list[Peer]:
    return [_release_pods(settings, GATEWAY), _release_pods(settings, OPERATOR)]


def _pods_of_groups(owner: Owner) -> Peer:
    """Return a peer for pods in any group of this ModelDeployment: a policy cannot distinguish single groups."""
    in_groups = {"key": labels.GROUP_SET, "operator": "Exists"}
    return {
        "podSelector": {"matchLabels": {labels.MODEL_DEPLOYMENT: owner.name}, "matchExpressions": [in_groups]},
    }


def _as_in_release(peer: Peer, settings: NetworkPolicySettings) -> Peer:
    """Return a peer that, without a namespace, means pods in the release's namespace, as in the release's policies."""
    if "namespaceSelector" in peer or "ipBlock" in peer:
        return peer
    return {"namespaceSelector": {"matchLabels": {NAMESPACE_NAME: settings.namespace}}, **peer}


def _release_pods(settings: NetworkPolicySettings, component: str) -> Peer:
    return {
        "namespaceSelector": {"matchLabels": {NAMESPACE_NAME: settings.namespace}},
        "podSelector": {"matchLabels": {**dict(settings.release), labels.COMPONENT: component}},
    }
