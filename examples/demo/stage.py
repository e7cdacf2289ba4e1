"""Sets the stage: a cluster, the images in it, the release, and nothing left of a former demo."""

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.node.access import kubeconfig as devcluster_kubeconfig
from devcluster.places import places
from examples.demo.screen import Screen
from testkit import ROOT
from testkit.cluster.api import Json
from testkit.cluster.diagnosis import pods
from testkit.cluster.kube import SYSTEM, Kube
from testkit.cluster.release import NODE_PORT, Images, install, is_devcluster

GATEWAYS = 2
NAMESPACE, NAME = "slipway-demo", "chat"


class StageError(Exception):
    """The demo cannot begin; the text is what to do."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The options of the demo."""

    kubeconfig: Path | None
    operator_image: str | None
    server_image: str | None

    @property
    def images(self) -> Images | None:
        both = self.operator_image and self.server_image
        return Images(str(self.operator_image), str(self.server_image)) if both else None


@dataclass(frozen=True, slots=True)
class Stage:
    """A cluster with Slipway in it."""

    kube: Kube
    images: Images
    seconds: dict[str, float]


def set_up(wish: Wish, screen: Screen) -> Stage:
    """Everything up to the first `kubectl apply`; a demo that was killed at any point is cleaned up after."""
    seconds: dict[str, float] = {}
    began = time.monotonic()
    kube = cluster(wish, screen)
    seconds["cluster"] = time.monotonic() - began
    began = time.monotonic()
    images = wish.images or built_images(screen)
    seconds["images"] = time.monotonic() - began
    began = time.monotonic()
    _release(kube, images, screen)
    seconds["helm"] = time.monotonic() - began
    began = time.monotonic()
    clear(kube)
    kube.namespace(NAMESPACE)
    seconds["clear"] = time.monotonic() - began
    return Stage(kube, images, seconds)


def clear(kube: Kube) -> None:
    """Removes the ModelDeployment of a former demo, with its pods."""
    kube.remove(NAME, NAMESPACE)


def cluster(wish: Wish, screen: Screen) -> Kube:
    if wish.kubeconfig is None or is_devcluster(Kube(wish.kubeconfig)):
        up = ["up", "--images"] if wish.images is None else ["up"]
        screen.command(["python", "-m", "devcluster", *up])
        _devcluster(*up)
        try:
            return Kube(devcluster_kubeconfig(places()))
        except DevclusterError as error:
            raise StageError(str(error)) from error
    if wish.images is None:
        raise StageError(
            f"{wish.kubeconfig} is not devcluster's: name images that this cluster can pull with --operator-image and "
            "--server-image, or unset KUBECONFIG to use a cluster on this machine"
        )
    return Kube(wish.kubeconfig)


def built_images(screen: Screen) -> Images:
    screen.command(["python", "-m", "devcluster", "images"])
    named = dict(line.split("=", 1) for line in _devcluster("images").splitlines() if "=" in line)
    try:
        return Images(operator=named["operator"], server=named["server"])
    except KeyError as error:
        raise StageError(f"devcluster named no image of the {error.args[0]}; it printed {named}") from error


def _release(kube: Kube, images: Images, screen: Screen) -> None:
    screen.command(["helm", "upgrade", "--install", "slipway", "charts/slipway", "-n", SYSTEM, "--create-namespace"])
    install(kube, images, values=_values(kube))
    screen.line(f"the release is ready:\n{pods(kube, SYSTEM)}")


def _values(kube: Kube) -> Json:
    """Small requests: everything fits on a node with two cores. The node port is devcluster's way in."""
    service = {"service": {"type": "NodePort", "nodePort": NODE_PORT}} if is_devcluster(kube) else {}
    return {"gateway": {"replicaCount": GATEWAYS, **service}}


def _devcluster(*arguments: str) -> str:
    """Its progress goes to this terminal, its answer is returned."""
    command = [sys.executable, "-m", "devcluster", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise StageError(f"`python -m devcluster {' '.join(arguments)}` failed; its output above has the reason")
    return done.stdout
