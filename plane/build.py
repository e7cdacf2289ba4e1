"""Builds the crate with cargo and puts the library into slipway_plane/, where Python imports it.

A script of the standard library alone: it runs before this package can be imported, in images and for wheels too.
Where no cargo works it prints one line and succeeds: the gateway serves everything by Python there.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = HERE / "slipway_plane"
LIBRARY = "_native.abi3.so"
CRATE_LIBRARY = "libslipway_plane_native.so"
# Debian's newer Rust (packages rustc-web and cargo-web) is in folders of its own.
DEBIAN = "usr/lib/rust-*/bin"


@dataclass(frozen=True, slots=True)
class Cargo:
    """A cargo that runs, with the environment that it needs."""

    path: str
    environment: dict[str, str]

    def run(self, *arguments: str) -> None:
        """Runs it in the crate's folder. Raises CalledProcessError: its status is not 0."""
        subprocess.run([self.path, *arguments], cwd=HERE, env=self.environment, check=True)

    def fetches(self) -> bool:
        """Whether all crates are there, or can be downloaded. It needs no network where they are."""
        return (
            subprocess.run([self.path, "fetch", "--locked"], cwd=HERE, env=self.environment, check=False).returncode
            == 0
        )

    def has(self, name: str) -> bool:
        """Whether the subcommand is installed: clippy, fmt and deny are not with every cargo."""
        return _runs([self.path, name, "--version"], self.environment)


def main() -> int:
    """Returns the exit status: 1 where the build failed, or no cargo works though `--required` says it must."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=PACKAGE, help="folder for the library")
    parser.add_argument("--required", action="store_true", help="fail where no cargo works")
    parser.add_argument("--check", action="store_true", help="check and test the crate in place of building it")
    options = parser.parse_args()
    cargo = find_cargo()
    if cargo is None or not cargo.fetches():
        why = "no cargo works here" if cargo is None else "cargo cannot download the crates of Cargo.lock"
        print(f"{why}: the compiled data plane is left out, and its tests are skipped")
        return int(options.required)
    try:
        if options.check:
            check(cargo)
            return 0
        library = build(cargo, options.to)
    except subprocess.CalledProcessError as error:
        print(f"{' '.join(error.cmd)} ended with status {error.returncode}", file=sys.stderr)
        return 1
    print(f"built the compiled data plane: {library.name}, {library.stat().st_size / 2**20:.1f} MiB")
    return 0


def check(cargo: Cargo) -> None:
    """Format, lints, tests, and what the crate is made of; says what is not installed. Raises CalledProcessError."""
    for name, *arguments in (
        ("fmt", "--check"),
        ("clippy", "--locked", "--quiet", "--all-targets", "--", "-D", "warnings"),
        ("test", "--locked", "--quiet", "--no-default-features"),
        ("deny", "--offline", "--log-level", "error", "check", "bans", "licenses", "sources"),
    ):
        if name == "test" or cargo.has(name):
            cargo.run(name, *arguments)
        else:
            print(f"cargo {name} is not installed: the data plane was not checked by it")


def build(cargo: Cargo, folder: Path) -> Path:
    """Compiles the library and puts it into `folder`; returns its path. Raises CalledProcessError."""
    cargo.run("build", "--release", "--locked", "--quiet")
    compiled = target_folder() / "release" / CRATE_LIBRARY
    folder.mkdir(parents=True, exist_ok=True)
    # Renamed into place: a concurrent import gets the old or the new library.
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        copy = Path(temporary) / LIBRARY
        shutil.copyfile(compiled, copy)
        copy.chmod(0o755)
        copy.replace(folder / LIBRARY)
    return folder / LIBRARY


def target_folder() -> Path:
    """Where cargo keeps what it compiles: never in the package."""
    return Path(os.environ.get("CARGO_TARGET_DIR") or HERE.parent / "build" / "plane")


def wheel_platform(library: Path) -> str:
    """The platform tag of a wheel with the library (PEP 600): by the newest symbol of glibc that it needs."""
    versions = re.findall(rb"GLIBC_(\d+)\.(\d+)", library.read_bytes())
    if platform.system() != "Linux" or not versions:
        return f"{platform.system().lower()}_{platform.machine()}"
    major, minor = max((int(major), int(minor)) for major, minor in versions)
    return f"manylinux_{major}_{minor}_{platform.machine()}"


def find_cargo() -> Cargo | None:
    """The first cargo that prints its version: of today's environment, of the rustup that a shim is from, of Debian."""
    for path, more in _candidates():
        environment = dict(os.environ) | more | {"CARGO_TARGET_DIR": str(target_folder())}
        if _runs([path, "--version"], environment):
            return Cargo(path, environment)
    return None


def _candidates() -> list[tuple[str, dict[str, str]]]:
    candidates: list[tuple[str, dict[str, str]]] = []
    if on_path := shutil.which("cargo"):
        candidates.append((on_path, {}))
        # rustup's shim needs its toolchains, and looks for them in HOME, which may be another one here.
        home = Path(on_path).parent.parent
        candidates.append((on_path, {"CARGO_HOME": str(home), "RUSTUP_HOME": str(home.parent / ".rustup")}))
    for folder in sorted(Path("/").glob(DEBIAN), reverse=True):
        candidates.append(
            (str(folder / "cargo"), {"PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"})
        )
    return candidates


def _runs(command: list[str], environment: dict[str, str]) -> bool:
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
