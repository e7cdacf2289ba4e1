"""The release of the chart: its operator and gateways, how to hurt them, and how to see that they are well again."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from testkit.cluster.api import Json
from testkit.cluster.deployment import Deployment
from testkit.cluster.kube import RELEASE, SYSTEM, Kube
from testkit.cluster.release import CHART, NODE_PORT, Images, install, merge
from testkit.until import until

GATEWAYS = 2
LABEL = "slipway.dev/e2e"  # on every namespace that this suite makes
WELL_S = 90.0
# An address without a host, from the block that is kept for documentation.
NOWHERE = "192.0.2.1"
VALUES = {
    "gateway": {
        "replicaCount": GATEWAYS,
        "service": {"type": "NodePort", "nodePort": NODE_PORT},
        # On a node with two cores there has to be room for model pods that ask for some.
        "resources": {"requests": {"cpu": "100m"}},
    },
    # Tests wait again and again for the next operator, which may have to wait for the lease of one that was killed.
    "operator": {"readinessProbe": {"periodSeconds": 1}, "extraArgs": ["--lease-seconds=10"]},
}


@dataclass(frozen=True)
class Installation:
    """The release and its parts."""

    kube: Kube
    images: Images
    url: str = ""  # base URL for OpenAI clients on this machine
    chart: Path = CHART

    def upgrade(self, **values: Json) -> None:
        """`helm upgrade --install` with the values of this suite and these; waits until its pods are ready."""
        install(self.kube, self.images, values=merge(VALUES, values), chart=self.chart)

    def pods(self, component: str) -> list[Json]:
        """Pods of the operator or the gateway that are not on their way out."""
        selector = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component={component}"
        found = self.kube.api.items("v1/pods", SYSTEM, selector=selector)
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def ready(self, component: str) -> dict[str, str]:
        """Name → uid of its ready pods."""
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.pods(component) if is_ready(pod)}

    def kill(self, pod: str) -> None:
        """A forced deletion, as of a pod whose node is lost: SIGTERM, and SIGKILL two seconds later."""
        self.kube.kubectl("delete", "pod", pod, "--namespace", SYSTEM, "--grace-period=0", "--force", "--wait=false")

    def dismiss(self, pod: str) -> None:
        """An ordinary deletion: SIGTERM, and the whole grace period of the pod."""
        self.kube.kubectl("delete", "pod", pod, "--namespace", SYSTEM, "--wait=false")

    def is_there(self, pod: str) -> bool:
        return bool(self.kube.api.find(f"api/v1/namespaces/{SYSTEM}/pods/{pod}"))

    def kill_operator(self) -> None:
        """Kill the operator and wait for the next one."""
        [former] = self.ready("operator")
        self.kill(former)
        until(lambda: former not in self.ready("operator"), "the killed operator is gone", 30)
        self.until_well()

    def until_well(self) -> None:
        """One operator and all gateways are ready."""

        def well() -> bool:
            return (len(self.ready("operator")), len(self.ready("gateway"))) == (1, GATEWAYS)

        until(well, f"one operator and {GATEWAYS} gateways are ready", WELL_S)

    def route(self, gateway: str, route: str) -> Json:
        """The report of one gateway on one ModelDeployment (NAMESPACE/NAME)."""
        return dict(json.loads(self.admin_page(gateway, "internal/routes"))["routes"][route])

    def inflight(self, gateway: str, route: str) -> int:
        """Requests of one ModelDeployment (NAMESPACE/NAME) in progress at one gateway, by its own report."""
        return sum(int(counts["inflight"]) for counts in self.route(gateway, route)["revisions"].values())

    def outcomes(self, gateway: str, model: str) -> dict[str, int]:
        """How the requests of one model ended at one gateway, as it counts them: each exactly once."""
        return self._counted(gateway, "slipway_gateway_requests_total", model, "outcome")

    def mirrored(self, gateway: str, model: str) -> dict[str, int]:
        """What copies of the requests of one model came to."""
        return self._counted(gateway, "slipway_gateway_mirror_total", model, "result")

    def _counted(self, gateway: str, metric: str, model: str, label: str) -> dict[str, int]:
        """A gateway's counter of one model, by a label."""
        page = self.admin_page(gateway, "metrics")
        counted: Counter[str] = Counter()
        for sample in (sample for family in text_string_to_metric_families(page) for sample in family.samples):
            if sample.name == metric and sample.labels["model"] == model:
                counted[sample.labels[label]] += int(sample.value)
        return dict(counted)

    def admin_page(self, gateway: str, page: str) -> str:
        """A page of a gateway's admin port, through the API server."""
        return self.kube.api.text(f"api/v1/namespaces/{SYSTEM}/pods/{gateway}:8001/proxy/{page}")

    @contextmanager
    def partitioned(self) -> Iterator[None]:
        """As if one more gateway were ready but out of the operator's reach: no weight is acknowledged meanwhile.

        So the states between a weight's publication and its acknowledgement last as long as a test needs them.
        """
        name = f"{RELEASE}-gateway-out-of-reach"
        labels = {
            "kubernetes.io/service-name": f"{RELEASE}-gateway-admin",
            "endpointslice.kubernetes.io/managed-by": "slipway-e2e",
        }
        out_of_reach = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": name, "namespace": SYSTEM, "labels": labels},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [NOWHERE], "conditions": {"ready": True}}],
            "ports": [{"name": "admin", "port": 8001, "protocol": "TCP"}],
        }
        self.kube.apply(out_of_reach, SYSTEM)
        try:
            yield
        finally:
            self.kube.kubectl("delete", "endpointslice", name, "--namespace", SYSTEM, "--ignore-not-found")

    @contextmanager
    def deployed(self, version: str, **spec: Any) -> Iterator[Deployment]:
        """A ModelDeployment in a namespace of its own, for tests that share it."""
        self.until_well()
        made = Deployment(self.kube, self.new_namespace())
        made.create(version, **spec)
        yield made
        self.drop_namespace(made.namespace)

    def new_namespace(self) -> str:
        """A fresh one that takes only pods that pass Pod Security "restricted"."""
        name = f"e2e-{os.urandom(3).hex()}"
        labels = {LABEL: "", "pod-security.kubernetes.io/enforce": "restricted"}
        made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        self.kube.apply(made, "default")
        account = f"api/v1/namespaces/{name}/serviceaccounts/default"
        # Pods are refused until the controller has made the account that they run as.
        until(lambda: bool(self.kube.api.find(account)), f"{name} has its service account", 30)
        return name

    def drop_namespace(self, name: str) -> None:
        """Mark it for deletion; its pods take a while to leave."""
        self.kube.kubectl("delete", "namespace", name, "--wait=false")

    def until_dropped(self) -> None:
        """Wait until the pods of this suite are gone; their empty namespaces follow by themselves, in half a minute."""

        api = self.kube.api

        def pods() -> list[Json]:
            # Those of a run that was killed are not ours to wait for: no controller deletes them.
            found = api.items("v1/namespaces", selector=LABEL)
            names = (one["metadata"]["name"] for one in found if one["status"]["phase"] == "Terminating")
            return [pod for name in names for pod in api.items("v1/pods", name)]

        until(lambda: not pods(), "the pods of this suite are gone", 120)


def is_ready(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
