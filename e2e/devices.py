"""Devices that one node claims to have; the scheduler counts them, and nothing runs on them."""

import json

from testkit.cluster.deployment import Json
from testkit.cluster.kube import Kube

# On a node whose devices are this suite's, also when a run was killed before it took them away.
MARK = "slipway.dev/e2e-devices"


def is_simulated(node: Json) -> bool:
    """Whether the node only claims to have devices."""
    return MARK in (node["metadata"].get("annotations") or {})


class Devices:
    """One extended resource of the first node."""

    def __init__(self, kube: Kube, resource: str) -> None:
        self._kube = kube
        self._node = kube.api.items("v1/nodes")[0]["metadata"]["name"]
        name = resource.replace("/", "~1")
        # What the node has and what of it pods may have; the second follows the first by itself, within ten seconds.
        self._paths = (f"/status/capacity/{name}", f"/status/allocatable/{name}")

    def set(self, count: int) -> None:
        self._kube.kubectl("annotate", "node", self._node, "--overwrite", f"{MARK}={count}")
        self._patch([{"op": "add", "path": path, "value": str(count)} for path in self._paths])

    def remove(self) -> None:
        self._patch([{"op": "remove", "path": path} for path in self._paths])
        self._kube.kubectl("annotate", "node", self._node, f"{MARK}-")

    def _patch(self, patch: list[Json]) -> None:
        arguments = ("patch", "node", self._node, "--subresource=status", "--type=json", "-p", json.dumps(patch))
        self._kube.kubectl(*arguments)
