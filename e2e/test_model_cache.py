"""Weights that are kept on the nodes: one download for each node, whatever the pods (`make nodes`)."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime

import pytest

from e2e.stages import Stages
from testkit.cluster.deployment import Deployment, Json, canary
from testkit.cluster.installation import Installation
from testkit.until import until

pytestmark = [pytest.mark.extended, pytest.mark.timeout(900, func_only=True)]

PODS = 20
UP_S = 300.0
HUB = "hub"
HOSTNAMES = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
SPREAD = {"topologySpreadConstraints": [HOSTNAMES]}
SLOW_MIB, SLOW_PAUSE_S = 40, 0.4  # of the third repository: so much, with so long a pause after each
# A hub with two repositories that differ in one file, and a slow one; it counts the requests for weights.
SCRIPT = """
import hashlib, http.server, json, pathlib, sys, threading, time
FOLDER = pathlib.Path("/opt/slipway/models/tiny-v1")
COMMITS = {"tiny": "a" * 40, "other": "b" * 40, "slow": "c" * 40}
tiny = {path.name: path.read_bytes() for path in FOLDER.iterdir()}
slow = {"config.json": b"{}", "model.safetensors": bytes(int(sys.argv[1]) << 20)}
files = {"tiny": tiny, "other": {**tiny, "note.txt": b"another version"}, "slow": slow}
def listed(name, body):
    large = {"size": len(body), "sha256": hashlib.sha256(body).hexdigest()}
    return {"rfilename": name, "size": len(body), **({"lfs": large} if name.endswith(".safetensors") else {})}
lock, fetched = threading.Lock(), {name: 0 for name in files}
class Hub(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        path = self.path.partition("?")[0]
        parts, body = path.split("/"), None
        if path == "/fetched":
            body = json.dumps(fetched).encode()
        elif path.startswith("/api/models/org/") and parts[4] in files:
            siblings = [listed(*item) for item in files[parts[4]].items()]
            body = json.dumps({"sha": COMMITS[parts[4]], "siblings": siblings}).encode()
        elif len(parts) == 6 and parts[3:5] == ["resolve", COMMITS.get(parts[2])]:
            body = files[parts[2]].get(parts[5])
            with lock:
                fetched[parts[2]] += parts[5] == "model.safetensors"
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        for start in range(0, len(body or b""), 1 << 20):
            self.wfile.write(body[start : start + (1 << 20)])
            time.sleep(float(sys.argv[2]) if body is slow["model.safetensors"] else 0)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("", 8000), Hub).serve_forever()
"""


@pytest.fixture(scope="module")
def stages() -> Iterator[Stages]:
    found = Stages("model-cache")
    yield found
    found.write()


@pytest.fixture
def hub(slipway: Installation, namespace: str) -> str:
    """URL of a hub in the cluster."""
    slipway.kube.apply(hub_pod(slipway.images.server), namespace)
    slipway.kube.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": HUB},
                        "spec": {"selector": {"app": HUB}, "ports": [{"port": 8000}]}}, namespace)  # fmt: skip
    slipway.kube.kubectl("wait", f"pod/{HUB}", "-n", namespace, "--for=condition=Ready", "--timeout=120s",
                         timeout_s=130)  # fmt: skip
    return f"http://{HUB}.{namespace}.svc:8000"


@pytest.fixture
def cached(slipway: Installation, namespace: str) -> Iterator[None]:
    """The namespace has a cache on each node."""
    slipway.upgrade(modelCache={"namespaces": [namespace], "maxBytes": 2**30})
    yield
    slipway.upgrade()


@pytest.mark.usefixtures("cached")
def test_twenty_pods_on_three_nodes_download_the_weights_three_times(
    slipway: Installation, namespace: str, deploy: Callable[..., Deployment], hub: str, stages: Stages
) -> None:
    with stages.stage(f"{PODS} pods of a custom engine") as row:
        chat = deploy("v1", **spec_of(hub, namespace, server_of(slipway)), replicas=PODS)
        chat.until("all pods are ready", lambda status: status["ready"] == f"{PODS}/{PODS}", UP_S)
        nodes = Counter(pod["spec"]["nodeName"] for pod in chat.pods())
        row |= {"pods_by_node": dict(nodes), "downloads": downloads(slipway, namespace)}
        assert len(nodes) == 3 and row["downloads"] == 3
    with stages.stage("one more pod on each node") as row:
        before = chat.pod_uids()
        chat.scale(PODS + 3)
        chat.until("they are ready", lambda status: status["ready"] == f"{PODS + 3}/{PODS + 3}", UP_S)
        added = [pod for pod in chat.pods() if pod["metadata"]["uid"] not in before]
        row |= {"downloads": downloads(slipway, namespace) - 3, "fetch_s": [fetch_s(pod) for pod in added]}
        assert row["downloads"] == 0, "the weights are on the node"


@pytest.mark.usefixtures("cached")
def test_a_rollout_of_slipways_own_engine_serves_from_the_cache(
    slipway: Installation, namespace: str, deploy: Callable[..., Deployment], hub: str, stages: Stages
) -> None:
    """The next version has the same weights; a pod that was deleted comes back without a download."""
    with stages.stage("a new version with the same weights, a deleted pod") as row:
        chat = deploy("v1", **spec_of(hub, namespace, {}), strategy=canary({"setWeight": 100}))
        chat.until_stable("v1")
        first = downloads(slipway, namespace)
        chat.edit(model={"version": "v2"})
        chat.until_stable("v2")
        [pod] = chat.pods(chat.status["stableRevision"])
        name = pod["metadata"]["name"]
        slipway.kube.kubectl("delete", "pod", name, "-n", namespace, "--wait=false")
        until(lambda: name not in {one["metadata"]["name"] for one in chat.pods()}, f"{name} is gone", UP_S)
        chat.until("its successor is ready", lambda status: status["ready"] == "1/1", UP_S)
        nodes = {one["spec"]["nodeName"] for one in chat.pods()} | {pod["spec"]["nodeName"]}
        row |= {"downloads_first": first, "downloads": downloads(slipway, namespace), "nodes": len(nodes)}
        assert first == 1 and row["downloads"] <= 3


@pytest.mark.usefixtures("cached")
def test_nodes_of_stable_pods_download_while_the_canary_is_paused(
    slipway: Installation, namespace: str, deploy: Callable[..., Deployment], hub: str, stages: Stages
) -> None:
    with stages.stage("a canary with other weights beside three stable pods") as row:
        strategy = canary({"setWeight": 30}, {"pause": {}})
        chat = deploy(
            "v1", **spec_of(hub, namespace, server_of(slipway)), replicas=3, strategy=strategy, placement=SPREAD
        )
        chat.until_stable("v1")
        chat.until("all pods are ready", lambda status: status["ready"] == "3/3", UP_S)
        chat.edit(model={"uri": "hf://org/other", "version": "v2"})
        chat.until_state("Paused")
        until(lambda: downloads(slipway, namespace, "other"), "three nodes have it", 60, holds=lambda found: found == 3)
        until(lambda: ended_jobs(slipway, namespace), "both Jobs ended", 60, holds=lambda found: found == 2)
        assert len(chat.pods(chat.status["canaryRevision"])) == 1, "only the canary's pod was needed so far"
        chat.promote()
        chat.until_stable("v2", UP_S)
        chat.until_alone()
        row["downloads"] = downloads(slipway, namespace, "other")
        assert row["downloads"] == 3


def test_the_status_shows_how_far_a_download_is(
    slipway: Installation, namespace: str, deploy: Callable[..., Deployment], hub: str, stages: Stages
) -> None:
    with stages.stage("a download of 16 s") as row:
        spec = spec_of(hub, namespace, server_of(slipway))
        chat = deploy("v1", **spec | {"model": {**spec["model"], "uri": "hf://org/slow", "cache": "none"}})
        seen: list[str] = []

        def is_up(status: Json) -> bool:
            seen.append(str(status.get("reason")))
            return status.get("ready") == "1/1"

        chat.until("its pod is ready", is_up, UP_S)
        row["reasons"] = list(dict.fromkeys(seen))
        percents = [int(word.split()[1]) for word in row["reasons"] if re.fullmatch(r"Fetching \d+ %", word)]
        assert len(percents) >= 2 and percents == sorted(percents)
        assert "fetching" not in chat.status["revisions"][0], "nothing is left of it"


def ended_jobs(slipway: Installation, namespace: str) -> int:
    jobs = slipway.kube.api.items("batch/v1/jobs", namespace)
    return sum((job.get("status") or {}).get("succeeded", 0) for job in jobs)


def spec_of(hub: str, namespace: str, engine: Json) -> Json:
    variables = {"env": [{"name": "HF_ENDPOINT", "value": hub}]}
    # A name of its own: one that another test's namespace had is kept for that namespace.
    model = {"uri": "hf://org/tiny", "cache": "node", "version": "v1", "name": f"chat.{namespace}"}
    return {"model": model, "engine": engine | variables}


def server_of(slipway: Installation) -> Json:
    """A program that needs almost nothing: what is measured is what comes before it."""
    command = ["python3", "-m", "http.server", "$(SLIPWAY_PORT)", "--directory", "$(SLIPWAY_MODEL_PATH)"]
    custom = {"readinessPath": "/config.json", "livenessPath": "/config.json", "preStopSeconds": 5}
    return {"type": "custom", "image": slipway.images.server, "command": command, "custom": custom}


def downloads(slipway: Installation, namespace: str, repository: str = "tiny") -> int:
    """How often the weights of a repository were requested."""
    page = slipway.kube.api.text(f"api/v1/namespaces/{namespace}/pods/{HUB}:8000/proxy/fetched")
    return int(json.loads(page)[repository])


def fetch_s(pod: Json) -> int:
    """How long its fetcher ran, in whole seconds: Kubernetes has no others."""
    [fetcher] = [one for one in pod["status"]["initContainerStatuses"] if one["name"] == "fetch"]
    ran = fetcher["state"]["terminated"]
    return round((datetime.fromisoformat(ran["finishedAt"]) - datetime.fromisoformat(ran["startedAt"])).total_seconds())


def hub_pod(image: str) -> Json:
    container = {
        "name": HUB, "image": image, "command": ["python3", "-c", SCRIPT, str(SLOW_MIB), str(SLOW_PAUSE_S)],
        "readinessProbe": {"httpGet": {"path": "/fetched", "port": 8000}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }  # fmt: skip
    security = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": HUB, "labels": {"app": HUB}},
        "spec": {"containers": [container], "securityContext": security, "automountServiceAccountToken": False},
    }
