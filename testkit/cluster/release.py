"""The release of the chart: installed with its images, and the way to its gateways.

install(kube, Images("slipway-operator:x", "slipway-server:x"), values={"gateway": {"replicaCount": 2}})
with gateway(kube) as url: ...                               # base URL for OpenAI clients, ending in /v1
"""

import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from devcluster.node import cluster
from devcluster.places import places
from devcluster.ports import reserve_port
from testkit import ROOT
from testkit.cluster.api import Json, KubeError
from testkit.cluster.diagnosis import logs, pods
from testkit.cluster.kube import RELEASE, SYSTEM, Kube
from testkit.cluster.tools import tool
from testkit.until import until

CHART = ROOT / "charts" / "slipway"
NODE_PORT = cluster.GATEWAY_NODE_PORT


@dataclass(frozen=True, slots=True)
class Images:
    """References of the images, as repository:tag or repository@sha256:digest."""

    operator: str
    server: str
    predict: str = ""  # without torch; empty: the server's image serves all models


def install(
    kube: Kube,
    images: Images,
    *,
    values: Json | None = None,
    namespace: str = SYSTEM,
    timeout_s: int = 180,
    chart: Path = CHART,
) -> str:
    """`helm upgrade --install` of the chart, until its pods are ready; also after one that was killed half way."""
    _forget_interrupted(kube, namespace)
    merged = merge(image_values(images), values or {})
    command = ["upgrade", "--install", RELEASE, str(chart), "--namespace", namespace, "--create-namespace"]
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
    server = {"image": _reference(images.server)}
    if images.predict:
        server["predictImage"] = _reference(images.predict)
    return {"operator": {"image": _reference(images.operator)}, "server": server}


def _reference(image: str) -> Json:
    repository, at, digest = image.partition("@")
    if at:
        return {"repository": repository, "digest": digest}
    repository, colon, tag = image.rpartition(":")
    if not colon or "/" in tag:
        return {"repository": image, "tag": "latest"}
    return {"repository": repository, "tag": tag}


def merge(under: Json, over: Json) -> Json:
    """Nested mappings joined; where both have a value, `over` holds."""
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
    local = reserve_port()
    command = [tool("kubectl"), "--kubeconfig", str(kube.kubeconfig), "-n", namespace, "port-forward", target]
    process = subprocess.Popen([*command, f"{local}:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{local}"
    finally:
        process.terminate()
        process.wait(10)


def await_answer(url: str, within_s: float) -> None:
    """Until a server responds there, whatever the response."""
    until(lambda: _silence(url), f"a gateway at {url}", within_s, holds=lambda why: not why)


def _silence(url: str) -> str:
    """Why there is no response; empty when there is one."""
    try:
        urllib.request.urlopen(f"{url}/v1/models", timeout=5).close()
    except urllib.error.HTTPError as answer:
        answer.close()
    except (OSError, ValueError) as error:
        return str(error)
    return ""
