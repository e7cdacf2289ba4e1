"""Installs the locked torch once into the cache, from where the runtime mounts it into every container."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from devcluster.engine.facts import machine
from devcluster.errors import DevclusterError
from devcluster.keys import key_of
from devcluster.places import REPOSITORY, Places, appears_whole
from devcluster.processes import run
from devcluster.steps.schedule import Step

_PYTHON = "3.11"  # of the images
_PLATFORMS = {"x86_64": "x86_64-manylinux_2_28", "aarch64": "aarch64-manylinux_2_28"}
_CLOSURE = re.compile(r"(torch|nvidia-[\w.-]+|cuda-[\w.-]+)==")
# A third of the bytes: a process loads these for a GPU only, and a node has none. The dynamic loader wants the others.
_FOR_A_GPU = re.compile(r"(nvidia-(cusolver|cuda-cccl|nvtx)|cuda-(bindings|pathfinder))==")

# A gigabyte of files in the packages that remain, which nothing opens without a GPU: parts that cuDNN loads when it
# computes, a profiler's counters, code and transports for devices of other nodes.
_FILES_FOR_A_GPU = (
    "nvidia/cudnn/lib/libcudnn_*",
    "nvidia/*/lib/libnvperf_*",
    "nvidia/nvshmem/lib/*.bc",
    "nvidia/nvshmem/lib/nvshmem_transport_*",
)


def torch_steps(places: Places, lane: str) -> list[Step]:
    """One step that downloads some gigabytes, and one that makes the set the current one."""
    requirements = torch_requirements(_export(places))
    target = places.cache / "torch" / key_of([_PYTHON, machine(), requirements, *_FILES_FOR_A_GPU])
    return [
        Step("install torch", target.exists, lambda: _install(places, requirements, target),
             "about 2 GB of wheels, where uv has none in its cache", lane=lane),
        Step("select torch", lambda: _is_current(target), lambda: _make_current(target), lane=lane),
    ]  # fmt: skip


def torch_requirements(exported: str) -> str:
    """The lines of torch and of the libraries that it loads on a CPU, from a hash-locked requirements file (pure)."""
    blocks = re.split(r"\n(?=[A-Za-z0-9])", exported)
    wanted = [block.rstrip() for block in blocks if _CLOSURE.match(block) and not _FOR_A_GPU.match(block)]
    return "\n".join(wanted) + "\n"


def _export(places: Places) -> str:
    return run([_uv(places), "export", "-q", "--frozen", "--extra", "server", "--no-emit-project"], cwd=REPOSITORY)


def _install(places: Places, requirements: str, target: Path) -> None:
    platform = _PLATFORMS.get(machine())
    if platform is None:
        raise DevclusterError(f"There is no torch wheel for {machine()}; use --torch layer.")
    listed = places.work / "torch-requirements.txt"
    listed.parent.mkdir(parents=True, exist_ok=True)
    listed.write_text(requirements)
    with appears_whole(target) as folder:
        run([_uv(places), "pip", "install", "-q", "--no-deps", "--require-hashes", "--target", folder,
             "--python-version", _PYTHON, "--python-platform", platform, "-r", listed])  # fmt: skip
        remove_files_for_a_gpu(folder)
        _compile(folder)
        folder.chmod(0o755)


def remove_files_for_a_gpu(folder: Path) -> None:
    """From a set that was just installed."""
    for pattern in _FILES_FOR_A_GPU:
        for path in folder.glob(pattern):
            path.unlink()


def _compile(folder: Path) -> None:
    """Byte code beside the source: the mount is read-only, and each pod would compile torch again (20 s of CPU)."""
    if ".".join(str(part) for part in sys.version_info[:2]) != _PYTHON:
        return
    # It ends with an error by design: torch ships a test file in the syntax of a later Python.
    command = [sys.executable, "-m", "compileall", "-qq", "-j", "0", "-s", str(folder), "-p", "/opt/torch", str(folder)]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def _is_current(target: Path) -> bool:
    current = target.parent / "current"
    return current.is_symlink() and current.readlink().name == target.name


def _make_current(target: Path) -> None:
    # A link is replaced in one move; running pods keep the set that they started with.
    link = target.parent / ".current"
    link.unlink(missing_ok=True)
    link.symlink_to(target.name)
    link.replace(target.parent / "current")


def _uv(places: Places) -> Path:
    if places.uv is None:
        raise DevclusterError("uv is not on PATH, and the lock file is read with it: `make setup` or `pip install uv`.")
    return places.uv
