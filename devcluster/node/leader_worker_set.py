"""LeaderWorkerSet, for replicas of several pods: built from its pinned Go module, installed where it is wanted."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import yaml
from rich.console import Console

from devcluster import pins
from devcluster.engine.engine import Engine, find
from devcluster.engine.facts import machine
from devcluster.gobuild import build_steps, drop_build_caches, module_folder, required_version
from devcluster.images.archive import Image, write_archive
from devcluster.node import access
from devcluster.places import Places, appears_whole, exclusive
from devcluster.processes import run
from devcluster.steps.progress import run_steps
from devcluster.steps.schedule import Step
from devcluster.tools import tool

NAMESPACE = "lws-system"
_PATH = "sigs.k8s.io/lws"
_MODULE = pins.MODULES["lws"]
_UPSTREAM = "us-central1-docker.pkg.dev/k8s-staging-images/lws/lws"  # as its own manifests call the image
_PROGRAM = "/manager"
_USER = 65532
_CRD = Path("crd") / "bases" / "leaderworkerset.x-k8s.io_leaderworkersets.yaml"
_READY_WITHIN_S = 180


def install(places: Places, console: Console) -> None:
    """Builds it where it is not built, loads it, applies its own manifests, and waits until its webhooks answer.

    Raises:
        DevclusterError: when there is no cluster, or it does not come to answer.
    """
    access.kubeconfig(places)
    with exclusive(places):
        engine, _ = find(places)
        run_steps([*_steps(places), *_cluster_steps(places, engine)], console)


def crd(places: Places) -> Path:
    """Its CustomResourceDefinition, of the version that is pinned; the module is downloaded where it is not there."""
    if not _manifests(places).exists():
        _save_manifests(places)
    return _manifests(places) / _CRD


def reference() -> str:
    """The image's name in the cluster."""
    return f"localhost/slipway-lws:{required_version(_MODULE, _PATH)}"


def kustomization(image: str) -> str:
    """How its manifests differ here: the image, its user, one replica, and webhooks for its own pods alone (pure)."""
    name, _, tag = image.rpartition(":")
    template = "/spec/template/spec"
    deployment = [
        {"op": "replace", "path": "/spec/replicas", "value": 1},
        {"op": "add", "path": f"{template}/securityContext/runAsUser", "value": _USER},
        # Two cores are all that the node may have.
        {"op": "replace", "path": f"{template}/containers/0/resources/requests/cpu", "value": "10m"},
        {"op": "replace", "path": f"{template}/containers/0/resources/requests/memory", "value": "64Mi"},
        {"op": "replace", "path": f"{template}/containers/0/readinessProbe/initialDelaySeconds", "value": 1},
        {"op": "replace", "path": f"{template}/containers/0/readinessProbe/periodSeconds", "value": 2},
    ]
    # As they come, they refuse every pod of the cluster while the controller is away.
    selected = {"matchExpressions": [{"key": "leaderworkerset.sigs.k8s.io/name", "operator": "Exists"}]}
    own_pods = [{"op": "add", "path": "/webhooks/1/objectSelector", "value": selected}]
    webhooks = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    return yaml.safe_dump({
        "resources": ["config/default"],
        "images": [{"name": _UPSTREAM, "newName": name, "newTag": tag}],
        "patches": [
            {"target": {"kind": "Deployment"}, "patch": yaml.safe_dump(deployment)},
            *({"target": {"kind": kind}, "patch": yaml.safe_dump(own_pods)} for kind in webhooks),
        ],
    })  # fmt: skip


def _steps(places: Places) -> list[Step]:
    return [
        *build_steps(places, (pins.LWS,)),
        Step("LeaderWorkerSet's own manifests", _manifests(places).exists, lambda: _save_manifests(places),
             after=("compile lws",)),
        Step("remove build caches", lambda: False, lambda: drop_build_caches(places)),
    ]  # fmt: skip


def _cluster_steps(places: Places, engine: Engine) -> list[Step]:
    return [
        Step(f"load {reference()}", lambda: reference() in access.node_images(places, engine),
             lambda: _load(places, engine)),
        Step("install LeaderWorkerSet", lambda: False, lambda: _apply(places)),
    ]  # fmt: skip


def _manifests(places: Places) -> Path:
    return places.cache / "lws-files" / places.binaries(_MODULE).name


def _save_manifests(places: Places) -> None:
    """They come with its module, so they are never copied here; the module cache goes afterwards."""
    module = module_folder(places, _MODULE, _PATH, required_version(_MODULE, _PATH))
    with appears_whole(_manifests(places)) as target:
        shutil.copytree(module / "config", target, copy_function=shutil.copyfile)


def _load(places: Places, engine: Engine) -> None:
    image = Image(reference(), ((_PROGRAM, places.binary(pins.LWS)),), entrypoint=(_PROGRAM,))
    with appears_whole(places.work / "lws.tar") as archive:
        write_archive(image, archive, machine())
        access.load_archive(places, engine, archive)
        archive.unlink()


def _apply(places: Places) -> None:
    kubectl: list[str | Path] = [tool(places, "kubectl"), "--kubeconfig", places.kubeconfig]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(_manifests(places), Path(folder) / "config")
        (Path(folder) / "kustomization.yaml").write_text(kustomization(reference()))
        run([*kubectl, "apply", "--server-side", "-k", folder])
    within = f"--timeout={_READY_WITHIN_S}s"
    run([*kubectl, "wait", "--namespace", NAMESPACE, "--for=condition=Available", "deployment", "--all", within])
