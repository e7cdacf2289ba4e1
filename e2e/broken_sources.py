"""A hub and a store in the cluster that have what cannot be served, and manifests that the API server refuses."""

from e2e.broken_setups import CUSTOM, Setup
from testkit.cluster.deployment import Json

# As a hub lists repositories, and as S3 answers for a bucket that it does not have.
_SCRIPT = """
import http.server, json
LARGE = {"size": 10 << 30, "sha256": "0" * 64}
FILES = {
    "large": [{"rfilename": "model.safetensors", "size": 10 << 30, "lfs": LARGE}],
    "pickled": [{"rfilename": "pytorch_model.bin", "size": 10 << 20, "lfs": {**LARGE, "size": 10 << 20}}],
}
NO_BUCKET = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>NoSuchBucket</Code><Message>The bucket does' \\
    ' not exist</Message><BucketName>weights</BucketName></Error>'
class Source(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        path = self.path.partition("?")[0]
        files = FILES.get(path.removeprefix("/api/models/org/").partition("/")[0])
        status, kind, body = 404, "application/json", '{"error": "Repository not found"}'
        if path == "/ready":
            status = 200
        elif path.startswith("/weights"):
            kind, body = "application/xml", NO_BUCKET
        elif files is not None:
            listed = [{"rfilename": "config.json", "size": 2}, *files]
            status, body = 200, json.dumps({"sha": "a" * 40, "siblings": listed})
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("", 8000), Source).serve_forever()
"""


def store(image: str, namespace: str) -> list[Json]:
    """The pod that answers at the address of `broken_setups.STORE`, and its Service."""
    labels = {"app": "store"}
    container = {
        "name": "store",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", _SCRIPT],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8000}, "periodSeconds": 1},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    user = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"terminationGracePeriodSeconds": 0, "securityContext": user, "containers": [container]}
    pod = {"name": "store", "namespace": namespace, "labels": labels}
    return [
        {"apiVersion": "v1", "kind": "Pod", "metadata": pod, "spec": spec},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "store", "namespace": namespace},
         "spec": {"selector": labels, "ports": [{"port": 8000}]}},
    ]  # fmt: skip


def _refused(name: str, mistake: str, words: tuple[str, ...], spec: Json) -> Setup:
    return Setup(name, mistake, "Invalid", words, spec, condition="kubectl apply")


_VLLM: Json = {"type": "vllm", "image": "vllm/vllm-openai:v0.32.0"}
REFUSED = (
    _refused("own-flag", "a flag of vLLM that the operator sets, abbreviated",
             ("spec.engine.args of a vllm engine must not set", "write spec.model"),
             {"engine": {**_VLLM, "args": ["--tensor-par=4"]}}),
    _refused("old-engine", "a version of vLLM that drops requests at SIGTERM",
             ("vLLM must be 0.18 or later", "write it as the tag"),
             {"engine": {"type": "vllm", "image": "vllm/vllm-openai:v0.11.0"}}),
    _refused("no-engine-image", "another engine without an image",
             ("spec.engine.image is required for the engine types", "write for example"),
             {"engine": {"type": "sglang"}}),
    _refused("open-secret", "a secret as the value of a variable",
             ("spec.engine.env must not hold a secret", "valueFrom.secretKeyRef"),
             {"engine": {"env": [{"name": "WANDB_API_KEY", "value": "canary"}]}}),
    _refused("control-plane", "a toleration of the control plane's taint",
             ("a toleration in spec.placement names a taint of your own nodes", "for example nvidia.com/gpu"),
             {"placement": {"tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}]}}),
    _refused("too-many-nodes", "several machines for slipway-server",
             ("spec.engine.parallelism is for the engine types vllm, sglang and custom", "remove it"),
             {"engine": {"parallelism": {"nodes": 2}}}),
    _refused("over-the-model", "a mount over the operator's own directory",
             ("mountPath in spec.engine.volumeMounts is a directory of the operator", "write for example /data"),
             {"pod": {"volumes": [{"name": "a", "emptyDir": {"sizeLimit": "1Gi"}}]},
              "engine": {**CUSTOM, "volumeMounts": [{"name": "a", "mountPath": "/mnt/models"}]}}),
)  # fmt: skip
