"""kubectl and helm for what changes, api.py for what is looked at, and waiting; everything here blocks.

    kube = Kube(Path(kubeconfig))                                # tools of devcluster's cache first, then PATH
    kube.kubectl("get", "nodes")                                 # its output; KubeError with its words when it fails
    kube.api.items("v1/pods", "demo")                            # read without a kubectl: as often as one likes
    kube.apply(manifest, "demo")                                 # a dict, YAML text or the Path of a file
    kube.namespace("demo")                                       # there is one afterwards
    deployment = kube.deployment("chat", "demo")                 # the ModelDeployment as a dict, {} when there is none
    kube.patch("chat", "demo", {"spec": {"paused": True}})       # merge patch of a ModelDeployment
    kube.wait_for("chat", "demo", is_settled, 60, "v1 serves")   # polls; returns the object that satisfied it
    kube.remove("chat", "demo")                                  # and waits until its pods and ReplicaSets are gone
    install(kube, Images("slipway-operator:x", "slipway-server:x"), values={"gateway": {"replicaCount": 2}})
    with gateway(kube) as url: ...                               # base URL for OpenAI clients, ending in /v1

`wait_for` takes a predicate over the ModelDeployment. When it does not come true in time, or `refuses` says why it
never will, WaitFailed tells what was waited for, status.phase and status.message, the last events and the state of each
pod; `diagnosis` gives the same text at any time, with the logs of the operator and the gateways.
"""

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import yaml

from devcluster.errors import DevclusterError
from devcluster.node import cluster
from devcluster.places import places
from devcluster.tools import tool as devcluster_tool
from examples.demo.api import Api, Json
from examples.demo.api import KubeError as KubeError

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts" / "slipway"
RELEASE, SYSTEM = "slipway", "slipway-system"
NODE_PORT = cluster.GATEWAY_NODE_PORT
POLL_S = 0.15
T = TypeVar("T")
CRD = "slipway.dev/v1alpha1/modeldeployments"
CHILDREN = {
    "Pod": "v1/pods",
    "ReplicaSet": "apps/v1/replicasets",
    "Service": "v1/services",
    "ControllerRevision": "apps/v1/controllerrevisions",
}
LABEL = "slipway.dev/modeldeployment"


class WaitFailed(Exception):
    """Something did not come true; the text says what the cluster looks like instead."""


@dataclass(frozen=True, slots=True)
class Images:
    """References of the two images, as repository:tag or repository@sha256:digest."""

    operator: str
    server: str


class Kube:
    """One cluster, by its kubeconfig."""

    def __init__(self, kubeconfig: Path, poll_s: float = POLL_S) -> None:
        self.kubeconfig = kubeconfig
        self.api = Api(kubeconfig)
        self._poll_s = poll_s

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
        return self.api.get(f"apis/{group_version}/namespaces/{namespace}/{plural}/{name}")

    def children(self, name: str, namespace: str) -> list[Json]:
        """Every object that a ModelDeployment has made, also those on their way out; each has its kind."""
        chosen = f"{LABEL}={name}"
        # The items of a list do not say what they are.
        found = ((kind, self.api.items(path, namespace, selector=chosen)) for kind, path in CHILDREN.items())
        return [{"kind": kind} | one for kind, items in found for one in items]

    def patch(self, name: str, namespace: str, change: Json) -> str:
        return self.kubectl("patch", "mdep", name, "-n", namespace, "--type=merge", "-p", json.dumps(change))

    def remove(self, name: str, namespace: str, deadline_s: float = 120) -> None:
        """Deletes a ModelDeployment. A new one of that name waits for the children: theirs have the same names."""
        self.kubectl("delete", "mdep", name, "-n", namespace, "--ignore-not-found", "--wait=true", timeout_s=deadline_s)
        self.wait_until(lambda: not self.children(name, namespace), deadline_s, f"the children of {name} are gone")

    def wait_for(
        self,
        name: str,
        namespace: str,
        holds: Callable[[Json], bool],
        deadline_s: float,
        what: str,
        refuses: Callable[[Json], str] = lambda _: "",
        watch: Callable[[Json], None] = lambda _: None,
    ) -> Json:
        """Polls the ModelDeployment; `watch` sees every state of it, `refuses` ends the wait with a reason."""
        end = time.monotonic() + deadline_s
        while True:
            seen = self.deployment(name, namespace)
            watch(seen)
            if seen and holds(seen):
                return seen
            reason = refuses(seen) if seen else ""
            if reason or time.monotonic() > end:
                why = reason or f"not within {deadline_s:.0f} s"
                raise WaitFailed(f"waited for: {what}; {why}\n{diagnosis(self, name, namespace)}")
            time.sleep(self._poll_s)

    def wait_until(self, holds: Callable[[], bool], deadline_s: float, what: str) -> None:
        """Polls anything else."""
        end = time.monotonic() + deadline_s
        while not holds():
            if time.monotonic() > end:
                raise WaitFailed(f"waited for: {what}; not within {deadline_s:.0f} s")
            time.sleep(self._poll_s)


# --- the release ------------------------------------------------------------------------------------------------------


def install(
    kube: Kube, images: Images, *, values: Json | None = None, namespace: str = SYSTEM, timeout_s: int = 180
) -> str:
    """`helm upgrade --install` of the chart, until its pods are ready; also after one that was killed half way."""
    _forget_interrupted(kube, namespace)
    merged = merge(image_values(images), values or {})
    command = ["upgrade", "--install", RELEASE, str(CHART), "--namespace", namespace, "--create-namespace"]
    try:
        return kube.helm(
            *command, "--wait", f"--timeout={timeout_s}s", "-f", "-", stdin=yaml.safe_dump(merged),
            timeout_s=timeout_s + 30,
        )  # fmt: skip
    except KubeError as error:
        raise KubeError(f"{error}\n{pods(kube, namespace)}\n{logs(kube)}") from error


def _forget_interrupted(kube: Kube, namespace: str) -> None:
    """A killed helm leaves its record as pending, and every later one would refuse to start."""
    states = "status in (pending-install,pending-upgrade,pending-rollback)"
    chosen = f"owner=helm,name={RELEASE},{states}"
    kube.kubectl("delete", "secret", "-n", namespace, "-l", chosen, "--ignore-not-found")


def image_values(images: Images) -> Json:
    """The chart's values that name the images."""
    return {"operator": {"image": _reference(images.operator)}, "server": {"image": _reference(images.server)}}


def _reference(image: str) -> Json:
    repository, at, digest = image.partition("@")
    if at:
        return {"repository": repository, "digest": digest}
    repository, colon, tag = image.rpartition(":")
    if not colon or "/" in tag:
        return {"repository": image, "tag": "latest"}
    return {"repository": repository, "tag": tag}


def merge(under: Json, over: Json) -> Json:
    """Nested mappings joined; where both say something, `over` holds."""
    joined = {key: merge(under[key], value) if _both_maps(under, over, key) else value for key, value in over.items()}
    return under | joined


def _both_maps(under: Json, over: Json, key: str) -> bool:
    return isinstance(under.get(key), dict) and isinstance(over[key], dict)


@contextmanager
def gateway(kube: Kube, namespace: str = SYSTEM, deadline_s: float = 30) -> Iterator[str]:
    """Base URL for OpenAI clients: devcluster publishes the node port here; elsewhere a port-forward to one gateway."""
    record = cluster.read_record(places()) if is_devcluster(kube) else None
    if record:
        url = f"http://127.0.0.1:{record.gateway_port}"
        await_answer(url, deadline_s)
        yield f"{url}/v1"
        return
    with port_forward(kube, namespace, f"svc/{RELEASE}-gateway", 80) as url:
        await_answer(url, deadline_s)
        yield f"{url}/v1"


def is_devcluster(kube: Kube) -> bool:
    own = places().kubeconfig
    return own.exists() and own.resolve() == kube.kubeconfig.resolve()


@contextmanager
def port_forward(kube: Kube, namespace: str, target: str, port: int) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        local = probe.getsockname()[1]
    command = [tool("kubectl"), "--kubeconfig", str(kube.kubeconfig), "-n", namespace, "port-forward", target]
    process = subprocess.Popen([*command, f"{local}:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{local}"
    finally:
        process.terminate()
        process.wait(10)


def await_answer(url: str, deadline_s: float) -> None:
    end = time.monotonic() + deadline_s
    while True:
        try:
            with urllib.request.urlopen(f"{url}/v1/models", timeout=5):
                return
        except urllib.error.HTTPError:
            return  # it answers; what, is the caller's question
        except (OSError, ValueError) as error:
            if time.monotonic() > end:
                raise WaitFailed(f"waited for: a gateway at {url}; not within {deadline_s:.0f} s: {error}") from error
        time.sleep(POLL_S)


# --- what to read when something fails --------------------------------------------------------------------------------


def diagnosis(kube: Kube, name: str, namespace: str, *, with_logs: bool = False) -> str:
    """What a person would look at first. Never raises: it explains another failure."""
    status = _try(lambda: kube.deployment(name, namespace), {}).get("status") or {}
    lines = [
        f"phase:   {status.get('phase', '-')}   step {status.get('step', '-')}   weight {status.get('weight', '-')}"
        f"   ready {status.get('ready', '-')}",
        f"message: {status.get('message', '(no status)')}",
        *_verdicts(status.get("rollout") or {}),
        "pods:",
        pods(kube, namespace),
        "events:",
        events(kube, namespace),
    ]
    return "\n".join(lines) + (f"\n{logs(kube)}" if with_logs else "")


def _verdicts(rollout: Json) -> list[str]:
    """What the judge said last, with its numbers."""
    runs = ((field, (rollout.get(field) or {}).get("verdict")) for field in ("analysis", "background"))
    return [f"verdict: {field} {json.dumps(verdict)}" for field, verdict in runs if verdict]


def pods(kube: Kube, namespace: str) -> str:
    """One line for each pod, with the reason of each container that does not run."""
    found = _try(lambda: kube.api.items("v1/pods", namespace), [])
    return "\n".join(f"  {_pod_line(pod)}" for pod in found) or "  none"


def _pod_line(pod: Json) -> str:
    status = pod.get("status", {})
    containers = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    leaving = " (leaving)" if pod["metadata"].get("deletionTimestamp") else ""
    states = "; ".join(_container_line(item) for item in containers)
    return f"{pod['metadata']['name']} {status.get('phase', '?')}{leaving}: {states or 'not started'}"


def _container_line(container: Json) -> str:
    [(state, detail)] = (container.get("state") or {"unknown": {}}).items()
    last = (container.get("lastState") or {}).get("terminated") or {}
    words = [detail.get("reason", ""), detail.get("message", "") or last.get("message", "")]
    told = " ".join(word for word in words if word).strip()[:400]
    ready = " ready" if container.get("ready") and state == "running" else ""
    restarts = f", {container['restartCount']} restarts" if container.get("restartCount") else ""
    return f"{container['name']} {state}{ready}{restarts}{' ' + told if told else ''}"


def events(kube: Kube, namespace: str, last: int = 15) -> str:
    items = _try(lambda: kube.api.items("v1/events", namespace), [])
    items.sort(key=lambda item: str(item["metadata"]["creationTimestamp"]))
    lines = [
        f"  {item.get('lastTimestamp') or item.get('eventTime') or ''} {item.get('type')} {item.get('reason')}"
        f" {_involved(item)}: {item.get('message') or item.get('note') or ''}"
        for item in items[-last:]
    ]
    return "\n".join(lines) or "  none"


def _involved(event: Json) -> str:
    about = event.get("involvedObject") or event.get("regarding") or {}
    return f"{about.get('kind')}/{about.get('name')}"


def logs(kube: Kube, lines: int = 20, namespace: str = SYSTEM) -> str:
    """The tails of the operator's and the gateways' logs."""
    parts = []
    for component in ("operator", "gateway"):
        chosen = ["-n", namespace, "-l", f"app.kubernetes.io/component={component}", "--prefix", f"--tail={lines}"]
        try:
            parts.append(f"log of the {component}:\n{kube.kubectl('logs', *chosen)}")
        except (KubeError, subprocess.SubprocessError) as error:
            parts.append(f"log of the {component}: {error}")
    return "\n".join(parts)


def _try(read: Callable[[], T], otherwise: T) -> T:
    with suppress(KubeError, ValueError):
        return read()
    return otherwise


# --- tools ------------------------------------------------------------------------------------------------------------


def tool(name: str) -> str:
    """Path of kubectl or helm: as devcluster finds them, else whatever PATH has."""
    try:
        return str(devcluster_tool(places(), name))
    except DevclusterError as error:
        if found := shutil.which(name):
            return found
        raise KubeError(f"no {name} here: {error}") from error


def run(command: Sequence[str], stdin: str | None = None, timeout_s: float = 60) -> str:
    """Output of a command; its own words when it fails."""
    shown = " ".join([Path(command[0]).name, *(word for word in command[1:] if not word.startswith("/"))])
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise KubeError(f"`{shown}` did not end within {timeout_s:.0f} s") from error
    if done.returncode:
        raise KubeError(f"`{shown}` failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout
