"""One cluster: kubectl and helm for what changes, api.py for what is looked at; everything here blocks.

kube = Kube(Path(kubeconfig))                                # tools of devcluster's cache first, then PATH
kube.kubectl("get", "nodes")                                 # its output; KubeError with its words when it fails
kube.api.items("v1/pods", "demo")                            # read without a kubectl: as often as one likes
kube.apply(manifest, "demo")                                 # a dict, YAML text or the Path of a file
kube.namespace("demo")                                       # there is one afterwards
deployment = kube.deployment("chat", "demo")                 # the ModelDeployment as a dict, {} when there is none
kube.patch("chat", "demo", {"spec": {"paused": True}})       # merge patch of a ModelDeployment
kube.remove("chat", "demo")                                  # and waits until its pods and ReplicaSets are gone
"""

import json
from pathlib import Path

import yaml

from testkit.cluster.api import Api, Json
from testkit.cluster.tools import run, tool
from testkit.until import until

RELEASE, SYSTEM = "slipway", "slipway-system"
CRD = "slipway.dev/v1alpha1/modeldeployments"
CHILDREN = {
    "Pod": "v1/pods",
    "ReplicaSet": "apps/v1/replicasets",
    "Service": "v1/services",
    "ControllerRevision": "apps/v1/controllerrevisions",
}
LABEL = "slipway.dev/modeldeployment"


class Kube:
    """One cluster, by its kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.api = Api(kubeconfig)

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_s: float = 60) -> str:
        return run([tool("kubectl"), "--kubeconfig", str(self.kubeconfig), *arguments], stdin, timeout_s)

    def helm(self, *arguments: str, stdin: str | None = None, timeout_s: float = 300) -> str:
        return run([tool("helm"), "--kubeconfig", str(self.kubeconfig), *arguments], stdin, timeout_s)

    def apply(self, manifest: Json | str | Path, namespace: str) -> str:
        if isinstance(manifest, Path):
            manifest = manifest.read_text()
        text = manifest if isinstance(manifest, str) else yaml.safe_dump(manifest)
        return self.kubectl("apply", "-n", namespace, "-f", "-", stdin=text)

    def namespace(self, name: str) -> None:
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}, "default")

    def deployment(self, name: str, namespace: str) -> Json:
        group_version, _, plural = CRD.rpartition("/")
        return self.api.find(f"apis/{group_version}/namespaces/{namespace}/{plural}/{name}")

    def children(self, name: str, namespace: str) -> list[Json]:
        """Every object that a ModelDeployment has made, also those on their way out; each has its kind."""
        chosen = f"{LABEL}={name}"
        # The items of a list have no kind.
        found = ((kind, self.api.items(path, namespace, selector=chosen)) for kind, path in CHILDREN.items())
        return [{"kind": kind} | one for kind, items in found for one in items]

    def patch(self, name: str, namespace: str, change: Json) -> str:
        return self.kubectl("patch", "mdep", name, "-n", namespace, "--type=merge", "-p", json.dumps(change))

    def remove(self, name: str, namespace: str, deadline_s: float = 120) -> None:
        """Deletes a ModelDeployment. A new one of that name waits for the children: theirs have the same names."""
        self.kubectl("delete", "mdep", name, "-n", namespace, "--ignore-not-found", "--wait=true", timeout_s=deadline_s)
        until(lambda: not self.children(name, namespace), f"the children of {name} are gone", deadline_s)
