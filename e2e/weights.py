"""Models on a claim of a test's namespace, put there by a pod: the faulty ones, made by a pod of the server image."""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e import faulty_models
from testkit.cluster.api import Json
from testkit.cluster.kube import Kube

GOOD = "/opt/slipway/models/tiny-v1"
FAULTS = "faults"
URI = f"pvc://{FAULTS}"
MOUNT = "/weights"  # in the pod that fills a claim
DONE_S = 120
# Makes each folder of a claim from its model in the arguments.
WRITE_ONNX = """
import base64, pathlib, sys
for name, model in zip(sys.argv[2::2], sys.argv[3::2]):
    folder = pathlib.Path(sys.argv[1], name)
    folder.mkdir()
    (folder / "model.onnx").write_bytes(base64.b64decode(model))
"""


def begin(kube: Kube, namespace: str, image: str) -> None:
    """Start to make the faulty ones; other pods may start meanwhile."""
    source = Path(faulty_models.__file__).read_text()
    fill(kube, namespace, FAULTS, image, ["python3", "-c", source, GOOD, MOUNT])


def fill(kube: Kube, namespace: str, claim: str, image: str, command: Sequence[str]) -> None:
    """Start to fill a new claim with what a command writes to MOUNT."""
    kube.apply(claimed(claim), namespace)
    kube.apply(filler(claim, image, command), namespace)


def save_onnx(kube: Kube, namespace: str, claim: str, image: str, models: Mapping[str, bytes]) -> None:
    """Start to fill a new claim with small models, each in the folder of its name."""
    named = [text for name, model in models.items() for text in (name, base64.b64encode(model).decode())]
    fill(kube, namespace, claim, image, ["python3", "-c", WRITE_ONNX, MOUNT, *named])


def await_made(kube: Kube, namespace: str, claim: str = FAULTS) -> None:
    done = "--for=jsonpath={.status.phase}=Succeeded"
    limit = f"--timeout={DONE_S}s"
    kube.kubectl("wait", f"pod/{claim}", "--namespace", namespace, done, limit, timeout_s=DONE_S + 10)


def claimed(name: str) -> Json:
    size = {"requests": {"storage": "128Mi"}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": size},
    }


def filler(claim: str, image: str, command: Sequence[str]) -> Json:
    """A pod that writes to a claim and ends."""
    pod = hardened(claim, image, command)
    [container] = pod["spec"]["containers"]
    volume = {"name": "weights", "persistentVolumeClaim": {"claimName": claim}}
    mounts = {"volumeMounts": [{"name": "weights", "mountPath": MOUNT}]}
    return pod | {"spec": pod["spec"] | {"containers": [container | mounts], "volumes": [volume]}}


def hardened(name: str, image: str, command: Sequence[str]) -> Json:
    """A pod that passes Pod Security "restricted", as everything in these namespaces must."""
    user = {"runAsNonRoot": True, "runAsUser": 65532, "fsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {"restartPolicy": "Never", "securityContext": user, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
