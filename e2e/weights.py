"""The faulty models on a claim of a test's namespace, made there by a pod of the server image."""

from pathlib import Path

from e2e import faulty_models
from testkit.cluster.api import Json
from testkit.cluster.kube import Kube

GOOD = "/opt/slipway/models/tiny-v1"
URI = "pvc://faults"
DONE_S = 120

CLAIM: Json = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "faults"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "128Mi"}}},
}


def begin(kube: Kube, namespace: str, image: str) -> None:
    """Start to make them; other pods may start meanwhile."""
    kube.apply(CLAIM, namespace)
    kube.apply(maker(image), namespace)


def await_made(kube: Kube, namespace: str) -> None:
    done = "--for=jsonpath={.status.phase}=Succeeded"
    limit = f"--timeout={DONE_S}s"
    kube.kubectl("wait", "pod/faults", "--namespace", namespace, done, limit, timeout_s=DONE_S + 10)


def maker(image: str) -> Json:
    """Passes Pod Security "restricted", as everything in these namespaces must."""
    source = Path(faulty_models.__file__).read_text()
    user = {"runAsNonRoot": True, "runAsUser": 65532, "fsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    container = {
        "name": "make",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", source, GOOD, "/weights"],
        "volumeMounts": [{"name": "weights", "mountPath": "/weights"}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    volume = {"name": "weights", "persistentVolumeClaim": {"claimName": "faults"}}
    spec = {"restartPolicy": "Never", "securityContext": user, "containers": [container], "volumes": [volume]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "faults"}, "spec": spec}
