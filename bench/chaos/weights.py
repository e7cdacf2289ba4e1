"""The model of the run: tiny-v2 with a longer context, on a claim, so that one stream alone can last a minute."""

from testkit.cluster.api import Json
from testkit.cluster.kube import Kube

CONTEXT_TOKENS = 8192
URI = "pvc://weights/tiny-long"
# It learned from 512 tokens. What it generates after them is no better than noise, and the same noise each time.
_COPY = (
    "cp -r /opt/slipway/models/tiny-v2 /weights/tiny-long && "
    f'sed -i \'s/"max_position_embeddings": 512/"max_position_embeddings": {CONTEXT_TOKENS}/\' '
    "/weights/tiny-long/config.json"
)
_CLAIM: Json = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "weights"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "64Mi"}}},
}


def put(kube: Kube, namespace: str, image: str) -> None:
    """Make the claim and copy the model there, where that was not done before."""
    kube.apply(_CLAIM, namespace)
    kube.apply(_copier(image), namespace)
    done = "--for=jsonpath={.status.phase}=Succeeded"
    kube.kubectl("wait", "pod/weights", "--namespace", namespace, done, "--timeout=120s", timeout_s=130)


def _copier(image: str) -> Json:
    user = {"runAsNonRoot": True, "runAsUser": 65532, "fsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    container = {
        "name": "copy",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", f"test -d /weights/tiny-long || {{ {_COPY}; }}"],
        "volumeMounts": [{"name": "weights", "mountPath": "/weights"}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    volume = {"name": "weights", "persistentVolumeClaim": {"claimName": "weights"}}
    spec = {"restartPolicy": "Never", "securityContext": user, "containers": [container], "volumes": [volume]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "weights"}, "spec": spec}
