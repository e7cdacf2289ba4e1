"""The Rust program of `mock/`, built in the cache once for each state of its source."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bench.engine.environments import Environment, Unavailable
from devcluster.processes import run
from devcluster.steps.schedule import Step

SOURCE = Path(__file__).with_name("mock")
_FILES = ("Cargo.toml", "Cargo.lock", "src/main.rs")
_BUILD_S = 900.0


def environment() -> Environment:
    """Its steps raise Unavailable where no cargo runs."""
    source = hashlib.sha256(b"\0".join((SOURCE / name).read_bytes() for name in _FILES)).hexdigest()

    def steps(folder: Path) -> list[Step]:
        def build() -> None:
            # A peer is not measured with flags that a shell has for other builds.
            variables = cargo_environment() | {"RUSTFLAGS": ""}
            command = ["cargo", "build", "--quiet", "--release", "--locked"]
            where = ["--manifest-path", str(SOURCE / "Cargo.toml"), "--target-dir", str(folder / "target")]
            run([*command, *where], env=variables, timeout=_BUILD_S)

        return [Step("mock: build the model server in Rust", _program(folder).exists, build, "half a minute")]

    return Environment("mock", (source,), 0.2, steps)


def program() -> Path:
    return _program(environment().folder)


def _program(folder: Path) -> Path:
    return folder / "target" / "release" / "slipway-bench-mock"


def cargo_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables with which cargo runs, beside those of this process.

    rustup's cargo looks for its toolchain in the home folder. Where HOME is an empty one, the folders beside the
    program are named instead. Raises Unavailable where no cargo runs.
    """
    cargo = shutil.which("cargo", path=environment.get("PATH"))
    if not cargo:
        raise Unavailable("There is no cargo.")
    home = Path(cargo).parent.parent.parent
    folders = {"CARGO_HOME": home / ".cargo", "RUSTUP_HOME": home / ".rustup"}
    beside = {name: str(path) for name, path in folders.items() if path.is_dir() and name not in environment}
    for variables in ({}, beside):
        command, whole = [cargo, "--version"], dict(environment) | variables
        done = subprocess.run(command, env=whole, capture_output=True, text=True, check=False)
        if not done.returncode:
            return variables
    raise Unavailable(f"cargo does not run: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}")
