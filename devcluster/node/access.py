"""What a person does with a running cluster: look at it, load images, read logs, open a shell."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from devcluster import pins
from devcluster.engine.engine import Engine, find
from devcluster.errors import DevclusterError
from devcluster.images import layout
from devcluster.node import cluster
from devcluster.node.config import LAYOUT
from devcluster.places import Places, appears_whole, exclusive
from devcluster.processes import merged, run
from devcluster.tools import tool

_CTR = ("ctr", "-n", "k8s.io")
# By ctr itself: through containerd's transfer service each byte goes over a stream of small messages, and that takes
# four times as long.
_IMPORT = (*_CTR, "images", "import", "--local")


def describe(places: Places, show: Callable[[str], object]) -> bool:
    """Shows what runs and what is built; whether the cluster is up."""
    record = cluster.read_record(places)
    healthy = cluster.is_healthy(places)
    built = [name for name in pins.MODULES if _is_built(places, name)]
    show(f"cluster:    {places.cluster}, {_condition(healthy=healthy, exists=record is not None)}")
    if record:
        show(f"engine:     {record.engine}")
        show(f"node image: {record.node_image}")
        show(f"gateway:    http://127.0.0.1:{record.gateway_port}")
        show(f"torch:      {'mounted' if record.mounts_torch else 'in the image'}")
        show(f"kubeconfig: {places.kubeconfig}")
    show(f"cache:      {places.cache}")
    show(f"built:      {', '.join(built) or 'nothing'}")
    return healthy


def kubeconfig(places: Places) -> Path:
    """The path, when there is a cluster."""
    if not places.kubeconfig.exists():
        raise DevclusterError("The cluster is not up: run `python -m devcluster up` first.")
    return places.kubeconfig


def load(places: Places, what: str) -> None:
    """A file is an archive; anything else is an image in the engine's store."""
    kubeconfig(places)
    engine, _ = find(places)
    if Path(what).is_file():
        load_archive(places, engine, Path(what))
        return
    if not engine.has_image(what):
        raise DevclusterError(f"{what} is neither a file nor an image that {engine.name} has.")
    with exclusive(places):
        load_images(places, engine, [what])


def load_images(places: Places, engine: Engine, references: list[str]) -> None:
    """The caller has the lock. podman writes single layers, so only those travel that the node does not have."""
    if engine.name == "podman":
        layout.save(engine, references, places.layout)
        for name in nodes(places, engine):
            present = set(engine.run("exec", name, *_CTR, "content", "list", "-q").split())
            files = shlex.join(layout.files(places.layout, present))
            command = f"tar -C {LAYOUT} -c {files} | {shlex.join(_IMPORT)} -"
            engine.run("exec", name, "bash", "-o", "pipefail", "-c", command)
        return
    with appears_whole(places.work / "load.tar") as archive:
        engine.run("save", "-o", archive, *references)
        load_archive(places, engine, archive)
        archive.unlink()


def load_archive(places: Places, engine: Engine, archive: Path) -> None:
    """An archive of the docker or the OCI kind, from any folder."""
    for name in nodes(places, engine):
        with archive.open("rb") as file:
            run([engine.name, "exec", "-i", name, *_IMPORT, "-"], env=engine.env, stdin=file)


def node_images(places: Places, engine: Engine) -> list[str]:
    """The references that every node has; none where there is no node yet."""
    found = [
        set(engine.run("exec", name, *_CTR, "images", "list", "-q").split())
        for name in engine.containers(places.cluster)
    ]
    return sorted(set.intersection(*found)) if found else []


def export_logs(places: Places, folder: Path) -> None:
    """Everything that helps to understand a failure."""
    kubeconfig(places)
    engine, _ = find(places)
    run([tool(places, "kind"), "export", "logs", folder, "--name", places.cluster], env=engine.env)


def shell(places: Places, command: tuple[str, ...]) -> int:
    """Runs a command in the node with this terminal; returns its exit status."""
    engine, _ = find(places)
    terminal = ["-it"] if sys.stdin.isatty() else ["-i"]
    arguments = [engine.name, "exec", *terminal, nodes(places, engine)[0], *(command or ("bash",))]
    return subprocess.run(arguments, env=merged(engine.env)).returncode


def nodes(places: Places, engine: Engine) -> list[str]:
    """The nodes' containers, that of the control plane first."""
    names = engine.containers(places.cluster) if cluster.read_record(places) else []
    if not names:
        raise DevclusterError("The cluster is not up: run `python -m devcluster up` first.")
    return names


def _is_built(places: Places, module: str) -> bool:
    names = [name for name, _ in pins.MODULES[module].binaries if name not in pins.TOOLS]  # these PATH may have
    return all(places.binary(name).exists() for name in names)


def _condition(*, healthy: bool, exists: bool) -> str:
    if healthy:
        return "up"
    return "half made or broken (`up` starts again, `down` removes it)" if exists else "not up"
