"""A hostile namespace: what its owner makes there, with all rights in it and none elsewhere, and what came of it.

Its owner is impersonated with kubectl's --as, so that what Kubernetes' own rights refuse is refused here too.
"""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e import hostile_client
from e2e.impersonation import Impersonation
from testkit.cluster.api import KubeError
from testkit.cluster.deployment import MODELS, REVISION_LABEL, Deployment, Json
from testkit.cluster.kube import CRD, LABEL, RELEASE, SYSTEM, Kube

ACCOUNT = "stranger"
CLIENT = "client"  # pod that sends to the gateways
SQUATTER = "squatter"  # ModelDeployment with a victim's model name
SCRIPT, SEEN = "/stranger/hostile_client.py", "/tmp/seen"
READY_S = 120
_GROUP = "slipway.dev/v1alpha1"
# Of pods that serve whatever comes: each request with its head and body goes to the log.
_RECEIVER = """
import http.server
class Recorder(http.server.BaseHTTPRequestHandler):
    def answer(self):
        size = min(int(self.headers.get("Content-Length") or 0), 1 << 20)
        print(self.requestline, dict(self.headers), self.rfile.read(size), flush=True)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
    do_GET = do_POST = answer
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("", 8000), Recorder).serve_forever()
"""


@dataclass(slots=True)
class Hostile:
    """The namespace of a stranger who wants what is sent to the victims, or wants them to fail."""

    kube: Kube
    namespace: str
    image: str  # of the model server: it has Python and aiohttp
    victims: list[Deployment]
    refused: list[str] = field(default_factory=list)  # what the API server rejected
    taken: list[str] = field(default_factory=list)  # what it took

    # --- what stands there all the time -------------------------------------------------------------------------------

    def settle(self) -> None:
        """Pods that listen and a squatter for each victim; ready when this returns."""
        self._as_admin(*_rights(self.namespace), *limits(), _script())
        for number, victim in enumerate(self.victims):
            self.apply(squatter(number, self.namespace, victim))
            self.apply(receiver(number, self.image, victim))
        self.apply(bare_pod(CLIENT, self.image, ["sleep", "3600"], {}, script=True))
        names = [f"pod/{CLIENT}", *(f"pod/receiver-{number}" for number in range(len(self.victims)))]
        self.kube.kubectl("wait", *names, "-n", self.namespace, "--for=condition=Ready", f"--timeout={READY_S}s",
                          timeout_s=READY_S + 10)  # fmt: skip

    def _as_admin(self, *manifests: Json) -> None:
        for manifest in manifests:
            self.kube.apply(manifest, self.namespace)

    # --- what it does -------------------------------------------------------------------------------------------------

    def apply(self, manifest: Json, namespace: str = "") -> None:
        """As the stranger, who is noted to have been refused or not."""
        what = f"{manifest['kind']} {manifest['metadata']['name']}" + (f" in {namespace}" if namespace else "")
        try:
            self._kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", "-n",
                          namespace or self.namespace, stdin=json.dumps(manifest))  # fmt: skip
            self.taken.append(what)
        except KubeError as error:
            self.refused.append(f"{what}: {str(error).strip().splitlines()[-1][:200]}")

    def intrude(self) -> None:
        """Everything that is made by objects, once."""
        for manifest in (*deputies(self.image), *_decoys(self.namespace, self.victims), *_policies()):
            self.apply(manifest)
        for victim in self.victims:
            for manifest in (*_policies(), deputies(self.image)[-1]):
                self.apply(manifest, victim.namespace)
        with Impersonation(self.kube, self.user) as as_stranger:
            for victim in self.victims:
                self.forge_status(as_stranger, victim)
            forged = json.dumps({"status": {"phase": "Degraded", "traffic": None}})
            self._try("patch", "mdep", victim.name, "-n", victim.namespace, "--subresource=status", "--type=merge",
                      "-p", forged)  # fmt: skip

    def use_deputies(self) -> None:
        """Rollouts of the squatters that are judged by templates which the API server took."""
        for number, name in enumerate(("hidden", "metadata")):
            steps = [{"setWeight": 50}, {"analysis": {"templates": [{"templateName": name}], "maxDuration": "5m"}}]
            change = {"spec": {"model": {"version": "deputy"}, "strategy": {"canary": {"steps": steps}}}}
            self._try("patch", "mdep", f"{SQUATTER}-{number}", "-n", self.namespace, "--type=merge",
                      "-p", json.dumps(change))  # fmt: skip

    def forge_status(self, as_stranger: Impersonation, victim: Deployment) -> None:
        """Its squatter claims to be the victim, with the pod that it made up."""
        traffic = {"model": victim.model, "generation": 10**9, "salt": "1",
                   "backends": [{"revision": f"receiver-{victim.name}", "version": "v1", "weight": 100}]}  # fmt: skip
        forged = {"status": {"model": victim.model, "phase": "Healthy", "conditions": [], "traffic": traffic}}
        group, _, plural = CRD.rpartition("/")
        for number in range(len(self.victims)):
            path = f"apis/{group}/namespaces/{self.namespace}/{plural}/{SQUATTER}-{number}/status"
            refused = as_stranger.patch(path, forged)
            (self.refused if refused else self.taken).append(f"PATCH {path}: {refused}"[:200])

    def attack(self, windows: list[tuple[float, float]]) -> Json:
        """All that is sent to the gateways, within these windows; blocks. Gives counts of statuses by kind."""
        names = [name for victim in self.victims for name in (victim.model, victim.route)]
        plan = {"gateway": f"http://{RELEASE}-gateway.{SYSTEM}", "models": names, "windows": windows, "seen": SEEN}
        output = self._kubectl("exec", CLIENT, "-n", self.namespace, "--", "python3", SCRIPT, json.dumps(plan),
                               timeout_s=windows[-1][1] - time.time() + 60)  # fmt: skip
        return dict(json.loads(output.strip().splitlines()[-1]))

    def _try(self, *arguments: str) -> None:
        try:
            self._kubectl(*arguments)
            self.taken.append(" ".join(arguments[:5]))
        except KubeError as error:
            self.refused.append(f"{' '.join(arguments[:5])}: {str(error).strip().splitlines()[-1][:200]}")

    @property
    def user(self) -> str:
        return f"system:serviceaccount:{self.namespace}:{ACCOUNT}"

    def _kubectl(self, *arguments: str, stdin: str | None = None, timeout_s: float = 60) -> str:
        return self.kube.kubectl(f"--as={self.user}", *arguments, stdin=stdin, timeout_s=timeout_s)

    # --- what came of it ----------------------------------------------------------------------------------------------

    def everything(self) -> str:
        """All that reached it: logs of all its pods, and all answers that its client kept."""
        found = [self.kube.kubectl("exec", CLIENT, "-n", self.namespace, "--", "cat", SEEN)]
        for pod in self.pods():
            if pod["status"].get("phase") == "Pending":
                continue  # nothing of it ran
            name = pod["metadata"]["name"]
            found.append(self.kube.kubectl("logs", name, "-n", self.namespace, "--all-containers", "--tail=-1"))
        for path in ("v1/configmaps", "v1/secrets", "v1/events", CRD):
            found.append(json.dumps(self.kube.api.items(path, self.namespace)))
        return "\n".join(found)

    def pods(self) -> list[Json]:
        return self.kube.api.items("v1/pods", self.namespace)

    def powerful_pods(self) -> list[str]:
        """Pods there that reach their node, or call the API server as a service account of the stranger."""
        return [pod["metadata"]["name"] for pod in self.pods() if _is_powerful(pod["spec"])]

    def received(self) -> int:
        """Requests that the squatters' own model pods had."""
        selectors = [f"{LABEL}={SQUATTER}-{number}" for number in range(len(self.victims))]
        pods = [pod for one in selectors for pod in self.kube.api.items("v1/pods", self.namespace, selector=one)]
        return sum(counted(self.kube, pod, FINISHED) for pod in pods)

    def states(self) -> dict[str, str]:
        """Messages of the operator in the status of each of its ModelDeployments."""
        found = self.kube.api.items(CRD, self.namespace)
        return {one["metadata"]["name"]: str((one.get("status") or {}).get("message")) for one in found}


FINISHED, CRASHES = "vllm:request_success_total", "slipway_server_engine_crashes_total"


def counted(kube: Kube, pod: Json, metric: str) -> int:
    """A counter of a model pod, over all its labels."""
    where = pod["metadata"]
    page = kube.api.text(f"api/v1/namespaces/{where['namespace']}/pods/{where['name']}:8000/proxy/metrics")
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in page.splitlines() if line.startswith(metric))


def _is_powerful(spec: Json) -> bool:
    privileged = any((one.get("securityContext") or {}).get("privileged") for one in spec["containers"])
    on_host = any("hostPath" in volume for volume in spec.get("volumes") or ())
    shares = any(spec.get(name) for name in ("hostNetwork", "hostPID", "hostIPC"))
    return bool(privileged or on_host or shares or spec.get("serviceAccountName", "default") != "default")


# --- objects ----------------------------------------------------------------------------------------------------------


def object_of(api_version: str, kind: str, name: str, **content: Any) -> Json:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **content}


def _rights(namespace: str) -> list[Json]:
    """Everything in its namespace, as an owner of one has."""
    rbac = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}
    return [
        object_of("v1", "ServiceAccount", ACCOUNT),
        object_of(f"{rbac}/v1", "Role", ACCOUNT, rules=[{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]),
        object_of(f"{rbac}/v1", "RoleBinding", ACCOUNT, subjects=[subject],
            roleRef={"apiGroup": rbac, "kind": "Role", "name": ACCOUNT}),
    ]  # fmt: skip


def limits(pods: int = 12) -> list[Json]:
    """What a cluster gives strangers: a share of the node. Without one its processors are shared without limit."""
    limit = {"type": "Container", "default": {"cpu": "250m", "memory": "1Gi"},
             "defaultRequest": {"cpu": "10m", "memory": "64Mi"}}  # fmt: skip
    return [
        object_of("v1", "LimitRange", "share", spec={"limits": [limit]}),
        object_of("v1", "ResourceQuota", "share", spec={"hard": {"pods": str(pods), "limits.cpu": str(pods / 6)}}),
    ]


def _script() -> Json:
    source = Path(hostile_client.__file__).read_text()
    return object_of("v1", "ConfigMap", "script", data={"hostile_client.py": source})


def squatter(number: int, namespace: str, victim: Deployment) -> Json:
    """A model of its own under a victim's name."""
    model = {"uri": f"{MODELS}/tiny-v1", "version": "squat", "name": victim.model}
    made = object_of(_GROUP, "ModelDeployment", f"{SQUATTER}-{number}", spec={"model": model})
    made["metadata"]["labels"] = {LABEL: victim.name}
    return made


def receiver(number: int, image: str, victim: Deployment) -> Json:
    """A pod that looks like the victim's, down to the revision."""
    labels = {LABEL: victim.name, REVISION_LABEL: str(victim.status["stableRevision"]),
              "app.kubernetes.io/managed-by": "slipway"}  # fmt: skip
    return bare_pod(f"receiver-{number}", image, ["python3", "-c", _RECEIVER], labels)


def bare_pod(name: str, image: str, command: list[str], labels: Json, *, script: bool = False) -> Json:
    user = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    mounts = [{"name": "script", "mountPath": str(Path(SCRIPT).parent)}] if script else []
    container = {
        "name": "server",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "ports": [{"name": "http", "containerPort": 8000}],
        "volumeMounts": mounts,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    volumes = [{"name": "script", "configMap": {"name": "script"}}] if script else []
    spec = {"terminationGracePeriodSeconds": 0, "securityContext": user, "containers": [container], "volumes": volumes}
    made = object_of("v1", "Pod", name, spec=spec)
    made["metadata"]["labels"] = labels
    return made


def _job(image: str, pod: Json, container: Json | None = None) -> Json:
    one = {"name": "take", "image": image, "command": ["true"], **(container or {})}
    return {"job": {"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [one], **pod}}}}}


def deputies(image: str) -> list[Json]:
    """Templates by which the operator is to do what their writer may not."""
    on_host = {"volumes": [{"name": "node", "hostPath": {"path": "/"}}]}
    providers: dict[str, Json] = {
        "host-path": _job(image, on_host, {"volumeMounts": [{"name": "node", "mountPath": "/node"}]}),
        "privileged": _job(image, {}, {"securityContext": {"privileged": True}}),
        "account": _job(image, {"serviceAccountName": ACCOUNT}),
        "host-network": _job(image, {"hostNetwork": True}),
        "token": _job(image, {"automountServiceAccountToken": True}),
        "hidden": _hidden(image),
        "metadata": {"web": {"url": "http://169.254.169.254/latest/meta-data/"}},
        "admin-port": {"web": {"url": f"http://{RELEASE}-gateway-admin.{SYSTEM}:8001/internal/routes"}},
        "kubernetes": {"web": {"url": "https://kubernetes.default.svc/api", "insecure": True}},
    }
    return [_template(name, provider) for name, provider in providers.items()]


def _template(name: str, provider: Json) -> Json:
    """One measurement. A Job succeeds by itself; what else answers needs a condition."""
    condition = {"successCondition": "true"} if "web" in provider else {}
    return object_of(
        _GROUP,
        "AnalysisTemplate",
        name,
        spec={"metrics": [{"name": name, "provider": provider, "count": 1, **condition}]},
    )


def _hidden(image: str) -> Json:
    """Power in fields that a template's schema does not name."""
    powerful = {"name": "first", "image": image, "command": ["true"], "securityContext": {"privileged": True}}
    secret = {"envFrom": [{"secretRef": {"name": "anything"}}]}
    return _job(image, {"initContainers": [powerful], "serviceAccount": ACCOUNT, "nodeName": "any"}, secret)


def _decoys(namespace: str, victims: list[Deployment]) -> list[Json]:
    """EndpointSlices and Services with the labels of the victims and of the release."""
    slices = []
    for number, victim in enumerate(victims):
        labels = {LABEL: victim.name, REVISION_LABEL: str(victim.status["stableRevision"]),
                  "kubernetes.io/service-name": f"{RELEASE}-gateway-admin"}  # fmt: skip
        one = object_of("discovery.k8s.io/v1", "EndpointSlice", f"decoy-{number}", addressType="IPv4",
                  endpoints=[{"addresses": ["192.0.2.1"], "conditions": {"ready": True}}],
                  ports=[{"name": "http", "port": 8000}, {"name": "admin", "port": 8001}])  # fmt: skip
        one["metadata"]["labels"] = labels
        slices.append(one)
    service = object_of("v1", "Service", f"{RELEASE}-gateway", spec={"ports": [{"port": 80, "targetPort": 8000}],
                  "selector": {"app.kubernetes.io/component": "gateway"}})  # fmt: skip
    return [*slices, service]


def _policies() -> list[Json]:
    """One that shuts all pods of its namespace off, and one that opens them."""
    policy = "networking.k8s.io/v1"
    return [
        object_of(policy, "NetworkPolicy", "shut", spec={"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}),
        object_of(policy, "NetworkPolicy", "open", spec={"podSelector": {}, "ingress": [{}], "egress": [{}]}),
    ]
