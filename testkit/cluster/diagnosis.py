"""What to read when something fails: a ModelDeployment, pods, Events, logs."""

import json
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from testkit.cluster.api import Json, KubeError
from testkit.cluster.kube import SYSTEM, Kube

T = TypeVar("T")


def diagnosis(kube: Kube, name: str, namespace: str, *, with_logs: bool = False) -> str:
    """What a person would look at first. Never raises: it explains another failure."""
    nothing: Json = {}
    status = _try(lambda: kube.deployment(name, namespace), nothing).get("status") or {}
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
    """The last verdict of the judge, with its numbers."""
    runs = ((field, (rollout.get(field) or {}).get("verdict")) for field in ("analysis", "background"))
    return [f"verdict: {field} {json.dumps(verdict)}" for field, verdict in runs if verdict]


def pods(kube: Kube, namespace: str) -> str:
    """One line for each pod, with the reason of each container that does not run."""
    found = _items(kube, "v1/pods", namespace)
    return "\n".join(f"  {pod_line(pod)}" for pod in found) or "  none"


def pod_line(pod: Json) -> str:
    """Name, phase and what each container does or why it does not run."""
    status = pod.get("status", {})
    containers = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    leaving = " (leaving)" if pod["metadata"].get("deletionTimestamp") else ""
    states = "; ".join(_container_line(item) for item in containers)
    return f"{pod['metadata']['name']} {status.get('phase', '?')}{leaving}: {states or 'not started'}"


def _container_line(container: Json) -> str:
    [(state, detail)] = (container.get("state") or {"unknown": {}}).items()
    last = (container.get("lastState") or {}).get("terminated") or {}
    words = [detail.get("reason", ""), detail.get("message", "") or last.get("message", "")]
    message = " ".join(word for word in words if word).strip()[:400]
    ready = " ready" if container.get("ready") and state == "running" else ""
    restarts = f", {container['restartCount']} restarts" if container.get("restartCount") else ""
    return f"{container['name']} {state}{ready}{restarts}{' ' + message if message else ''}"


def events(kube: Kube, namespace: str, last: int = 15) -> str:
    items = _items(kube, "v1/events", namespace)
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


def _items(kube: Kube, kind: str, namespace: str) -> list[Json]:
    nothing: list[Json] = []
    return _try(lambda: kube.api.items(kind, namespace), nothing)


def _try(read: Callable[[], T], otherwise: T) -> T:
    with suppress(KubeError, ValueError):
        return read()
    return otherwise
