"""What a person does with a running cluster: look at it, load images, read logs, open a shell."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from devcluster import pins
from devcluster.engine.engine import Engine, find
from devcluster.errors import DevclusterError
from devcluster.node import cluster
from devcluster.places import Places, appears_whole, exclusive
from devcluster.processes import merged, run
from devcluster.tools import tool


def describe(places: Places, say: Callable[[str], object]) -> bool:
    """Says what runs and what is built; whether the cluster is up."""
    record = cluster.read_record(places)
    healthy = cluster.is_healthy(places)
    built = [name for name in pins.MODULES if _is_built(places, name)]
    say(f"cluster:    {places.cluster}, {_condition(healthy=healthy, exists=record is not None)}")
    if record:
        say(f"engine:     {record.engine}")
        say(f"node image: {record.node_image}")
        say(f"gateway:    http://127.0.0.1:{record.gateway_port}")
        say(f"torch:      {'mounted' if record.mounts_torch else 'in the image'}")
        say(f"kubeconfig: {places.kubeconfig}")
    say(f"cache:      {places.cache}")
    say(f"built:      {', '.join(built) or 'nothing'}")
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
    """In one archive, where a layer that they share is but once. The caller has the lock."""
    with appears_whole(places.work / "load.tar") as archive:
        _save(engine, references, archive)
        load_archive(places, engine, archive)
        archive.unlink()


def _save(engine: Engine, references: list[str], target: Path) -> None:
    """Writes images as an uncompressed archive: faster to make and to import than any other form."""
    form = ["--format", "docker-archive", "--multi-image-archive"] if engine.name == "podman" else []
    engine.run("save", *form, "-o", target, *references)


def load_archive(places: Places, engine: Engine, archive: Path) -> None:
    """`kind load docker-image` calls the docker program, so archives are the one way that works everywhere."""
    kind = tool(places, "kind")
    run([kind, "load", "image-archive", archive, "--name", places.cluster], env=engine.env)


def node_images(places: Places, engine: Engine) -> str:
    """What the node has, one reference a line."""
    return engine.run("exec", node(places, engine), "ctr", "-n", "k8s.io", "images", "list", "-q")


def export_logs(places: Places, folder: Path) -> None:
    """Everything that helps to understand a failure."""
    kubeconfig(places)
    engine, _ = find(places)
    run([tool(places, "kind"), "export", "logs", folder, "--name", places.cluster], env=engine.env)


def shell(places: Places, command: tuple[str, ...]) -> int:
    """Runs a command in the node with this terminal; returns its exit status."""
    engine, _ = find(places)
    terminal = ["-it"] if sys.stdin.isatty() else ["-i"]
    arguments = [engine.name, "exec", *terminal, node(places, engine), *(command or ("bash",))]
    return subprocess.run(arguments, env=merged(engine.env)).returncode


def node(places: Places, engine: Engine) -> str:
    """The node's container."""
    names = engine.containers(places.cluster) if cluster.read_record(places) else []
    if not names:
        raise DevclusterError("The cluster is not up: run `python -m devcluster up` first.")
    return names[0]


def _is_built(places: Places, module: str) -> bool:
    return all(places.binary(name).exists() for name, _ in pins.MODULES[module].binaries)


def _condition(*, healthy: bool, exists: bool) -> str:
    if healthy:
        return "up"
    return "half made or broken (`up` starts anew, `down` removes it)" if exists else "not up"
