"""Environments of their own for servers that tests run, because they need other libraries than ours."""

import contextlib
import hashlib
import shutil
import sys
from pathlib import Path

from bench.engine.environments import uv
from devcluster.places import places
from devcluster.processes import run

INSTALL_S = 300.0


def environment(name: str, requirements: Path, *options: str) -> Path:
    """Installed once for each list of versions, each of them with its hash. `options`: of uv pip install."""
    key = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = places().cache / f"{name}-{key}"
    if folder.exists():
        return folder
    made = folder.with_name(f"{folder.name}.{id(folder):x}.partial")
    run([uv(), "venv", "--quiet", "--relocatable", "--python", sys.executable, str(made)])
    install = [uv(), "pip", "install", "--quiet", "--require-hashes", "--python", str(made / "bin" / "python")]
    run([*install, *options, "--requirement", str(requirements)], timeout=INSTALL_S)
    with contextlib.suppress(OSError):
        made.rename(folder)  # another process of this test run may have been faster
    shutil.rmtree(made, ignore_errors=True)
    return folder
