"""The project's own images: built from the real Dockerfiles, tagged by content, loaded into the cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from devcluster import pins
from devcluster.engine.engine import ENGINE_PROGRAMS, Engine, find, install_packages, missing_packages
from devcluster.errors import DevclusterError
from devcluster.images.bases import base_reference, base_tar, import_base, make_base
from devcluster.images.pullable import can_pull, full_name
from devcluster.images.torchset import torch_steps
from devcluster.keys import key_of, key_of_files
from devcluster.node import access, cluster, host
from devcluster.places import REPOSITORY, Places, exclusive
from devcluster.progress import Step, run_steps

_SHARED = (".dockerignore", "pyproject.toml", "uv.lock", "README.md", "LICENSE")
_KEEP = 4  # older images of ours in the engine's store


@dataclass(frozen=True, slots=True)
class ProjectImage:
    """One image and the files that its content comes from."""

    name: str
    dockerfile: str
    sources: tuple[str, ...]


OPERATOR = ProjectImage("operator", "Dockerfile.operator", ("operator", "gateway", "process"))
SERVER = ProjectImage("server", "Dockerfile.server", ("server", "process", "examples/models"))


def build_and_load(places: Places, console: Console, *, torch: str | None, load: bool) -> dict[str, str]:
    """Both images, in the engine's store and (when it runs) in the cluster; returns name → reference."""
    with exclusive(places):
        engine, _ = find(places)
        host.remember(places)
        record = cluster.read_record(places)
        mode = torch or ("layer" if record and not record.mounts_torch else "mount")
        if mode == "mount" and record and not record.mounts_torch:
            raise DevclusterError("The cluster does not mount torch: `down`, `up --torch mount`, or use --torch layer.")
        base, steps = _base(places, engine)
        references = {image.name: reference(image, base, mode) for image in (OPERATOR, SERVER)}
        for image in (OPERATOR, SERVER):
            steps.append(_build_step(engine, image, references[image.name], base, mode))
        if mode == "mount":
            steps += torch_steps(places)
        if load and record:
            in_node = access.node_images(places, engine).split()
            if not set(references.values()) <= set(in_node):
                steps.append(_load_step(places, engine, list(references.values())))
        run_steps(steps, console)
        _drop_old(engine, references)
    return references


def reference(image: ProjectImage, base: str, torch: str) -> str:
    """Name and tag: the tag is a key of everything that the image is made from, so equal tags are equal images.

    The prefix keeps a missing image from being looked for in a public registry.
    """
    files = content(REPOSITORY, (*_SHARED, image.dockerfile, *image.sources))
    return f"localhost/slipway-{image.name}:dev-{key_of([base, torch, key_of_files(files)])}"


def content(root: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """All files under the names, without what an interpreter or a compiler writes beside them."""
    found: dict[str, bytes] = {}
    for name in names:
        path = root / name
        if path.is_file():
            found[name] = path.read_bytes()
        for folder, folders, files in os.walk(path):
            folders[:] = sorted(one for one in folders if one != "__pycache__")
            for file in files:
                if not file.endswith((".pyc", ".pyo", ".so")):
                    whole = Path(folder) / file
                    found[str(whole.relative_to(root))] = whole.read_bytes()
    return found


def build_mounts(environment: Mapping[str, str], home: Path) -> list[str]:
    """Mounts for the build only, where the network has its own certificates or package index: (host:image:ro)."""
    bundle = environment.get("SSL_CERT_FILE") or environment.get("PIP_CERT")
    pairs = [
        (Path(bundle), "/etc/ssl/certs/ca-certificates.crt") if bundle else None,
        (Path("/etc/pip.conf"), "/etc/pip.conf"),
        (home / ".config/pip/pip.conf", "/root/.config/pip/pip.conf"),
        (Path("/etc/uv/uv.toml"), "/etc/uv/uv.toml"),
        (home / ".config/uv/uv.toml", "/root/.config/uv/uv.toml"),
    ]
    return [f"{pair[0]}:{pair[1]}:ro" for pair in pairs if pair and pair[0].is_file()]


def _base(places: Places, engine: Engine) -> tuple[str, list[Step]]:
    """The base image's name and what makes it where it cannot be pulled."""
    if can_pull(places, engine):
        return full_name(pins.PYTHON_BASE_IMAGE, engine.name), []
    name = base_reference("python")
    tar = base_tar(places, "python")
    packages = missing_packages(ENGINE_PROGRAMS)
    return name, [
        Step("install packages", lambda: not packages, lambda: install_packages(packages), ", ".join(packages)),
        Step("base file system: python", lambda: tar.exists() or engine.has_image(name),
             lambda: make_base(places, "python"), "Debian packages"),
        Step("import the base", lambda: engine.has_image(name), lambda: import_base(places, engine, "python")),
    ]  # fmt: skip


def _build_step(engine: Engine, image: ProjectImage, tag: str, base: str, torch: str) -> Step:
    mounts = build_mounts(os.environ, Path.home()) if engine.name == "podman" else []
    # BuildKit, docker's builder, has no such mounts.
    arguments = [part for mount in mounts for part in ("-v", mount)]
    arguments += ["--build-arg", f"BASE_IMAGE={base}"]
    if image is SERVER:
        arguments += ["--build-arg", f"TORCH={torch}"]
    return Step(
        f"build {tag}",
        lambda: engine.has_image(tag),
        lambda: engine.run("build", *arguments, "-t", tag, "-f", REPOSITORY / image.dockerfile, REPOSITORY),
        "the locked dependencies, where their layer is not there yet",
    )


def _load_step(places: Places, engine: Engine, tags: list[str]) -> Step:
    return Step(f"load {', '.join(tags)}", lambda: False, lambda: access.load_images(places, engine, tags))


def _drop_old(engine: Engine, keep: dict[str, str]) -> None:
    for name, current in keep.items():
        lines = engine.run("images", "--filter", f"reference=localhost/slipway-{name}:dev-*", "--format",
                           "{{.Repository}}:{{.Tag}}").split()  # fmt: skip
        for old in [line for line in lines if line != current][_KEEP:]:
            engine.succeeds("rmi", old)
    # Layers that no tag leads to speed up the next build; those of last week's lock file do not.
    engine.succeeds("image", "prune", "-f", "--filter", "until=168h")
