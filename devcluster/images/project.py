"""The project's own images: built from the real Dockerfiles, tagged by content, loaded into the cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from devcluster import pins
from devcluster.engine.engine import Engine, find
from devcluster.engine.facts import machine
from devcluster.errors import DevclusterError
from devcluster.gobuild import build_steps
from devcluster.images import nodeimage
from devcluster.images.archive import Image, write_archive
from devcluster.images.bases import LANE, base_reference, base_steps
from devcluster.images.pullable import can_pull, full_name
from devcluster.images.torchset import torch_steps
from devcluster.keys import key_of, key_of_files
from devcluster.node import access, cluster, host
from devcluster.places import REPOSITORY, Places, appears_whole, exclusive
from devcluster.steps.progress import run_steps
from devcluster.steps.schedule import Step

_SHARED = (".dockerignore", "pyproject.toml", "uv.lock", "requirements", "README.md", "LICENSE")
_KEEP = 4  # older images of ours in the engine's store
PLANE = "plane/slipway_plane/_native.abi3.so"  # the gateway's data plane, as `make setup` builds it


@dataclass(frozen=True, slots=True)
class ProjectImage:
    """One image and the files that its content comes from."""

    name: str
    dockerfile: str
    sources: tuple[str, ...]
    target: str = ""  # of the Dockerfile; empty: its last stage


OPERATOR = ProjectImage(
    "operator",
    "Dockerfile.operator",
    ("operator", "gateway", "jobs", "cli", "console", "process", "contracts", "plane"),
)
SERVER = ProjectImage("server", "Dockerfile.server", ("server", "process", "contracts", "examples/models"))
# The packages of the server's image without its last layer of them: seconds, once that is built.
PREDICT = ProjectImage("server-predict", SERVER.dockerfile, SERVER.sources, "predict")
_IMAGES = (OPERATOR, SERVER, PREDICT)


_ENGINES = (
    ProjectImage("vllm-cpu", "e2e/engines/Dockerfile.vllm-cpu", ("e2e/engines/vllm-overrides.txt", "examples/models")),
    ProjectImage("llama-cpp", "e2e/engines/Dockerfile.llama-cpp", ("e2e/engines/tiny_gguf.py", "examples/models")),
)
ENGINES = {image.name: image for image in _ENGINES}
SIMULATOR = "simulator"


def build_engine(places: Places, console: Console, name: str) -> str:
    """The image of another engine, for tests: built and in the cluster; returns its reference."""
    with exclusive(places):
        engine, _ = find(places)
        tag, steps = _simulator(places, engine) if name == SIMULATOR else _engine(places, engine, ENGINES[name])
        run_steps(steps, console)
    return tag


def _engine(places: Places, engine: Engine, image: ProjectImage) -> tuple[str, list[Step]]:
    base = _base(places, engine)
    files = content(REPOSITORY, (image.dockerfile, *image.sources))
    tag = f"localhost/slipway-{image.name}:dev-{key_of([base, key_of_files(files)])}"
    build = _build_step(engine, image, tag, base, "layer")
    load = _load_step(places, engine, [tag], (image,))
    return tag, [*(base_steps(places, engine, tar=False) if base == base_reference() else ()), build, load]


def _simulator(places: Places, engine: Engine) -> tuple[str, list[Step]]:
    """One static binary: its image is an archive, and goes to the node without the engine's store."""
    binary = places.binary(pins.SIMULATOR)
    tag = f"localhost/slipway-{SIMULATOR}:{binary.parent.name}"
    image = Image(tag, ((f"/{pins.SIMULATOR}", binary),), entrypoint=(f"/{pins.SIMULATOR}",))

    def load() -> None:
        with appears_whole(places.work / "simulator.tar") as archive:
            write_archive(image, archive, machine())
            access.load_archive(places, engine, archive)
            archive.unlink()

    there = lambda: tag in access.node_images(places, engine)  # noqa: E731 - a step's condition
    build = build_steps(places, [pins.SIMULATOR])
    after = tuple(step.title for step in build)
    return tag, [*build, Step(f"load {tag}", there, load, lane=nodeimage.LANE, after=after)]


def build_and_load(places: Places, console: Console, *, torch: str | None, load: bool) -> dict[str, str]:
    """All images, in the engine's store and (when it runs) in the cluster; returns name → reference."""
    with exclusive(places):
        engine, _ = find(places)
        host.remember(places)
        record = cluster.read_record(places)
        mode = torch or ("layer" if record and not record.mounts_torch else "mount")
        if mode == "mount" and record and not record.mounts_torch:
            raise DevclusterError("The cluster does not mount torch: `down`, `up --torch mount`, or use --torch layer.")
        base = _base(places, engine)
        references = _references(base, mode)
        steps = _steps(places, engine, base, references, mode)
        if load and record:
            steps.append(_load_step(places, engine, list(references.values()), _IMAGES))
        run_steps(steps, console)
        _drop_old(engine, references)
    return references


def beside(places: Places, engine: Engine, record: cluster.Record) -> list[Step]:
    """The same while a cluster is brought up: what waits for a network is done when the node is there to take it."""
    mode = "mount" if record.mounts_torch else "layer"
    base = _base(places, engine)
    references = _references(base, mode)
    return [
        *_steps(places, engine, base, references, mode),
        _load_step(places, engine, list(references.values()), _IMAGES),
    ]


def reference(image: ProjectImage, base: str, torch: str) -> str:
    """Name and tag: the tag is a key of everything that the image is made from, so equal tags are equal images.

    The prefix keeps a missing image from being looked for in a public registry.
    """
    files = content(REPOSITORY, (*_SHARED, image.dockerfile, *image.sources))
    if image is OPERATOR and has_plane(REPOSITORY):
        files[PLANE] = (REPOSITORY / PLANE).read_bytes()
    return f"localhost/slipway-{image.name}:dev-{key_of([base, torch, key_of_files(files)])}"


def has_plane(root: Path) -> bool:
    """Whether this tree has the library of the data plane, built from the sources that are there now."""
    library = root / PLANE
    sources = [root / "plane/Cargo.toml", root / "plane/Cargo.lock", *(root / "plane/src").rglob("*.rs")]
    return library.exists() and library.stat().st_mtime >= max(source.stat().st_mtime for source in sources)


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


def uv_cache(environment: Mapping[str, str], home: Path) -> Path:
    """Where uv keeps what it downloaded: one download serves the virtual environment here and the images."""
    named = environment.get("UV_CACHE_DIR")
    return Path(named) if named else Path(environment.get("XDG_CACHE_HOME") or home / ".cache") / "uv"


def _base(places: Places, engine: Engine) -> str:
    """The base image's name: one that is pulled, or ours."""
    return full_name(pins.PYTHON_BASE_IMAGE, engine.name) if can_pull(places, engine) else base_reference()


def _references(base: str, torch: str) -> dict[str, str]:
    return {image.name: reference(image, base, torch) for image in _IMAGES}


def _steps(places: Places, engine: Engine, base: str, references: dict[str, str], torch: str) -> list[Step]:
    return [
        *(base_steps(places, engine, tar=False) if base == base_reference() else ()),
        *(_build_step(engine, image, references[image.name], base, torch) for image in _IMAGES),
        *(torch_steps(places, LANE) if torch == "mount" else ()),
    ]


def _build_step(engine: Engine, image: ProjectImage, tag: str, base: str, torch: str) -> Step:
    arguments = ["--build-arg", f"BASE_IMAGE={base}"]
    if engine.name == "podman":  # BuildKit, docker's builder, has no such mounts
        cache = uv_cache(os.environ, Path.home())
        cache.mkdir(parents=True, exist_ok=True)
        mounts = [*build_mounts(os.environ, Path.home()), f"{cache}:/root/.cache/uv"]
        arguments += ["--build-arg", "UV_NO_CACHE=0", *(part for mount in mounts for part in ("-v", mount))]
    if image is SERVER:
        arguments += ["--build-arg", f"TORCH={torch}"]
    note = f"{tag}; downloads the locked dependencies, where their layer is not there yet"
    # The compiler in an image has 450 MB, and Debian's mirrors are not everywhere: the library is that of the checkout.
    if image is OPERATOR:
        is_there = has_plane(REPOSITORY)
        arguments += ["--build-arg", f"PLANE={'checkout' if is_there else 'none'}"]
        note += "" if is_there else "; without the gateway's data plane, which `make setup` builds"
    if image.target:
        arguments += ["--target", image.target]
    return Step(
        _built(image),
        lambda: engine.has_image(tag),
        lambda: engine.run("build", *arguments, "-t", tag, "-f", REPOSITORY / image.dockerfile, REPOSITORY),
        note,
        lane=LANE,
    )


def _built(image: ProjectImage) -> str:
    return f"build the {image.name} image"


def _load_step(places: Places, engine: Engine, tags: list[str], images: tuple[ProjectImage, ...]) -> Step:
    return Step(
        "load the images",
        lambda: set(tags) <= set(access.node_images(places, engine)),
        lambda: access.load_images(places, engine, tags),
        ", ".join(tags),
        lane=nodeimage.LANE,
        after=tuple(map(_built, images)),
    )


def _drop_old(engine: Engine, keep: dict[str, str]) -> None:
    for name, current in keep.items():
        lines = engine.run("images", "--filter", f"reference=localhost/slipway-{name}:dev-*", "--format",
                           "{{.Repository}}:{{.Tag}}").split()  # fmt: skip
        for old in [line for line in lines if line != current][_KEEP:]:
            engine.succeeds("rmi", old)
    # Layers that no tag leads to speed up the next build; those of last week's lock file do not.
    engine.succeeds("image", "prune", "-f", "--filter", "until=168h")
