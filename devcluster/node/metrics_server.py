"""metrics-server, for autoscaling by CPU and memory: built from its pinned Go module, installed where it is wanted."""

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

NAME = "metrics-server"
_PATH = "sigs.k8s.io/metrics-server"
_MODULE = pins.MODULES["kube"]
_UPSTREAM = "gcr.io/k8s-staging-metrics-server/metrics-server"  # as its own manifests call the image
_API = "v1beta1.metrics.k8s.io"
_AVAILABLE_WITHIN_S = 120


def install(places: Places, console: Console) -> None:
    """Builds it where it is not built, loads it, applies its own manifests, and waits until its API answers.

    Raises:
        DevclusterError: when there is no cluster, or it does not come to answer.
    """
    access.kubeconfig(places)
    with exclusive(places):
        engine, _ = find(places)
        run_steps([*_steps(places), *_cluster_steps(places, engine)], console)


def reference() -> str:
    """The image's name in the cluster."""
    return f"localhost/slipway-{NAME}:{required_version(_MODULE, _PATH)}"


def kustomization(image: str) -> str:
    """How its manifests differ here: the image, no check of the kubelet's own certificate, fewer promises (pure)."""
    name, _, tag = image.rpartition(":")
    container = "/spec/template/spec/containers/0"
    patch = [
        # The kubelet of kind signs its serving certificate itself.
        {"op": "add", "path": f"{container}/args/-", "value": "--kubelet-insecure-tls"},
        # Two cores are all that the node may have; model pods ask for theirs.
        {"op": "replace", "path": f"{container}/resources/requests/cpu", "value": "10m"},
        {"op": "replace", "path": f"{container}/readinessProbe/initialDelaySeconds", "value": 1},
        {"op": "replace", "path": f"{container}/readinessProbe/periodSeconds", "value": 2},
    ]
    return yaml.safe_dump({
        "resources": ["base"],
        "images": [{"name": _UPSTREAM, "newName": name, "newTag": tag}],
        "patches": [{"target": {"kind": "Deployment", "name": NAME}, "patch": yaml.safe_dump(patch)}],
    })  # fmt: skip


def _steps(places: Places) -> list[Step]:
    return [
        *build_steps(places, (NAME,)),
        Step(f"{NAME}'s own manifests", _manifests(places).exists, lambda: _save_manifests(places),
             after=(f"compile {NAME}",)),
        Step("remove build caches", lambda: False, lambda: drop_build_caches(places)),
    ]  # fmt: skip


def _cluster_steps(places: Places, engine: Engine) -> list[Step]:
    return [
        Step(f"load {reference()}", lambda: reference() in access.node_images(places, engine),
             lambda: _load(places, engine)),
        Step(f"install {NAME}", lambda: False, lambda: _apply(places)),
    ]  # fmt: skip


def _manifests(places: Places) -> Path:
    return places.cache / f"{NAME}-files" / places.binaries(_MODULE).name


def _save_manifests(places: Places) -> None:
    """They come with its module, so they are never copied here; the module cache goes afterwards."""
    module = module_folder(places, _MODULE, _PATH, required_version(_MODULE, _PATH))
    with appears_whole(_manifests(places)) as target:
        shutil.copytree(module / "manifests" / "base", target, copy_function=shutil.copyfile)


def _load(places: Places, engine: Engine) -> None:
    program = f"/{NAME}"
    image = Image(reference(), ((program, places.binary(NAME)),), entrypoint=(program,))
    with appears_whole(places.work / f"{NAME}.tar") as archive:
        write_archive(image, archive, machine())
        access.load_archive(places, engine, archive)
        archive.unlink()


def _apply(places: Places) -> None:
    kubectl: list[str | Path] = [tool(places, "kubectl"), "--kubeconfig", places.kubeconfig]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(_manifests(places), Path(folder) / "base")
        (Path(folder) / "kustomization.yaml").write_text(kustomization(reference()))
        run([*kubectl, "apply", "-k", folder])
    within = f"--timeout={_AVAILABLE_WITHIN_S}s"
    run([*kubectl, "wait", "--for=condition=Available", f"apiservice/{_API}", within])
