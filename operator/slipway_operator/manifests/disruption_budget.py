"""The PodDisruptionBudget of a ModelDeployment's pods: a drained node evicts them one after the other."""

from typing import Any

from slipway_operator.manifests.owner import Owner
from slipway_operator.model import labels

COMPONENT = "disruption-budget"  # value of the component label
SUFFIX = "pdb"  # end of the name


def disruption_budget(owner: Owner, min_available: int) -> dict[str, Any]:
    """A budget over the pods of all revisions.

    `min_available` is a number and no percentage: a canary whose pods still load would count in the percentage, and
    block the drain of every node. Pods that are not ready may always be evicted.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": owner.component_metadata(SUFFIX, COMPONENT),
        "spec": {
            "minAvailable": min_available,
            "selector": {"matchLabels": {labels.MODEL_DEPLOYMENT: owner.name}},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
