"""Builds the node image from binaries, packages and kind's own files: what `kind build node-image` does with docker."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from devcluster import pins
from devcluster.engine.engine import Engine
from devcluster.engine.facts import machine
from devcluster.errors import DevclusterError
from devcluster.gobuild import all_binaries, build_steps, drop_build_caches, module_folder, required_version
from devcluster.images.archive import write_archive
from devcluster.images.bases import BASE_IMPORTED, base_reference, base_steps, base_tar
from devcluster.images.components import component_images, read_kind_sources
from devcluster.keys import key_of
from devcluster.places import PACKAGE, Places, appears_whole
from devcluster.processes import run
from devcluster.steps.schedule import Step
from devcluster.tools import missing_tools

_CONTAINERFILE = PACKAGE / "images" / "Containerfile.node"
_NODE_BINARIES = {
    "usr/bin": ("kubeadm", "kubelet", "kubectl"),
    "usr/local/bin": ("containerd", "containerd-shim-runc-v2", "ctr", "crictl"),
    "opt/cni/bin": pins.CNI_PLUGINS,
}
_OF_THE_HOST = ("helm", "kind")
_CONTAINERD_WAIT_S = 30
LANE = "node"  # of what comes one after the other until the cluster is up
NODE_IMAGE = "node image"
COMPILED = ("compile kube", "compile containerd")  # the steps after which a node can be made


def reference(where: Places) -> str:
    """The image's name; its tag changes with everything that goes into it."""
    modules = [where.binaries(pins.MODULES[name]).name for name in pins.NODE_MODULES]
    code = [(PACKAGE / "images" / name).read_bytes() for name in ("components.py", "archive.py", "Containerfile.node")]
    return f"localhost/slipway-node:v{pins.KUBERNETES}-{key_of([*modules, *code, base_reference()])}"


def binary_steps(where: Places) -> list[Step]:
    """What compiles all that a cluster needs: programs of the node, and those of the host that PATH has not."""
    absent = missing_tools(where)
    names = [name for name in all_binaries(*pins.NODE_MODULES) if name not in _OF_THE_HOST or name in absent]
    return build_steps(where, names)


def steps(where: Places, engine: Engine) -> list[Step]:
    """Everything from nothing to the image in the engine's store."""
    if engine.has_image(reference(where)):
        return []
    compiled = binary_steps(where)
    return [
        Step("kind's own files", _saved(where).exists, lambda: _save_kind_sources(where), lane=LANE,
             after=COMPILED),
        *compiled,
        *base_steps(where, engine, tar=True),
        Step("component images", lambda: _archives_ready(where), lambda: _make_archives(where), lane=LANE,
             after=(*COMPILED, "base file system")),
        Step(NODE_IMAGE, lambda: False, lambda: _build(where, engine), lane=LANE, after=(BASE_IMPORTED,)),
        # Whatever was there when these steps were counted: they make it.
        Step("remove build caches", lambda: False, lambda: drop_build_caches(where), lane="removal",
             after=("kind's own files", *(step.title for step in compiled))),
    ]  # fmt: skip


def _saved(where: Places) -> Path:
    return where.cache / "kind-files" / where.binaries(pins.MODULES["kube"]).name


def _save_kind_sources(where: Places) -> None:
    """Keeps the few files of kind's module that the image needs, so that the module cache can go."""
    kube, kind = pins.MODULES["kube"], "sigs.k8s.io/kind"
    module = module_folder(where, kube, kind, required_version(kube, kind))
    with appears_whole(_saved(where)) as target:
        for name in ("images/base/files", "pkg/build/nodeimage"):
            shutil.copytree(module / name, target / name, copy_function=shutil.copyfile)


def _archives(where: Places) -> Path:
    return where.cache / "component-images" / reference(where).rpartition(":")[2]


def _archives_ready(where: Places) -> bool:
    return _archives(where).exists()


def _make_archives(where: Places) -> None:
    kubeadm = where.binary("kubeadm")
    tags = run([kubeadm, "config", "images", "list", "--kubernetes-version", f"v{pins.KUBERNETES}"]).split()
    binaries = {name: where.binary(name) for name in all_binaries(*pins.NODE_MODULES)}
    images = component_images(tags, read_kind_sources(_saved(where)), binaries, _catatonit(), base_tar(where))
    with appears_whole(_archives(where)) as target:
        target.mkdir()
        for number, image in enumerate(images):
            write_archive(image, target / f"{number}.tar", machine())
            target.joinpath(f"{number}.layer").unlink(missing_ok=True)


def _catatonit() -> Path:
    found = shutil.which("catatonit") or next(
        (path for path in ("/usr/libexec/podman/catatonit", "/usr/lib/podman/catatonit") if Path(path).exists()), None
    )
    if not found:
        raise DevclusterError("catatonit is not installed (it is the pause program): apt-get install catatonit.")
    return Path(found)


def _build(where: Places, engine: Engine) -> None:
    context = where.work / "node-context"
    shutil.rmtree(context, ignore_errors=True)
    context.mkdir(parents=True)
    _lay_out_context(where, context)
    bare = f"localhost/slipway-node-bare:{reference(where).rpartition(':')[2]}"
    base = f"BASE={base_reference()}"
    engine.run("build", "-q", "-t", bare, "-f", _CONTAINERFILE, "--build-arg", base, context)
    _preload(where, engine, bare)
    shutil.rmtree(context)
    shutil.rmtree(_archives(where).parent)
    base_tar(where).unlink(missing_ok=True)  # the engine's store has it
    engine.succeeds("rmi" if engine.name == "docker" else "untag", bare)
    _drop_old(engine, reference(where))


def _drop_old(engine: Engine, keep: str) -> None:
    """Older node images, a gigabyte each; one that a running cluster uses is refused by the engine and stays."""
    listed = engine.run(
        "images", "--filter", "reference=localhost/slipway-node", "--format", "{{.Repository}}:{{.Tag}}"
    )
    for old in listed.split():
        if old != keep:
            engine.succeeds("rmi", old)


def _lay_out_context(where: Places, context: Path) -> None:
    saved = _saved(where)
    shutil.copytree(saved / "images/base/files", context / "files", copy_function=shutil.copyfile)
    for path in [context / "files", *(context / "files").rglob("*")]:
        script = path.is_dir() or path.parent.name == "bin"
        path.chmod(0o755 if script else 0o644)
    for folder, names in _NODE_BINARIES.items():
        (context / "bin" / folder).mkdir(parents=True)
        for name in names:
            shutil.copy(where.binary(name), context / "bin" / folder / name)
    _write(context / "files/kind/version", f"v{pins.KUBERNETES}")
    _write(context / "files/kind/manifests/default-storage.yaml", read_kind_sources(saved).storage_manifest)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _preload(where: Places, engine: Engine, bare: str) -> None:
    """Imports the component images with the node's own containerd and keeps the result as the node image."""
    name = f"slipway-node-build-{where.cluster}"
    engine.run("rm", "-f", name) if engine.succeeds("container", "inspect", name) else None
    archives = f"{_archives(where)}:/archives:ro"
    try:
        engine.run("run", "-d", "--name", name, "--privileged", "--net=none", "-v", archives,
                   "--entrypoint", "sleep", bare, "infinity")  # fmt: skip
        engine.run("exec", "-d", name, "containerd")
        _wait_for_containerd(engine, name)
        for archive in sorted(_archives(where).glob("*.tar")):
            engine.run("exec", name, "ctr", "-n", "k8s.io", "images", "import", "--no-unpack",
                       "--label=io.cri-containerd.pinned=pinned", f"/archives/{archive.name}")  # fmt: skip
        engine.run("exec", name, "pkill", "containerd")
        engine.run("commit", "-q", "--change", 'ENTRYPOINT ["/usr/local/bin/entrypoint","/sbin/init"]',
                   "--change", "STOPSIGNAL SIGRTMIN+3", name, reference(where))  # fmt: skip
    finally:
        if engine.succeeds("container", "inspect", name):
            engine.run("rm", "-f", "-t", "0", name) if engine.name == "podman" else engine.run("rm", "-f", name)


def _wait_for_containerd(engine: Engine, name: str) -> None:
    deadline = time.monotonic() + _CONTAINERD_WAIT_S
    while not engine.succeeds("exec", name, "ctr", "info"):
        if time.monotonic() > deadline:
            raise DevclusterError("containerd did not start inside the node image while it was being built.")
        time.sleep(0.5)
