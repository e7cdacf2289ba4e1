"""The environment of the clients, in the cache: installed once for each list of versions, each with its hash."""

import contextlib
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
INSTALL_S, RUN_S = 600.0, 240.0


def python() -> Path:
    key = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = places().cache / f"clients-{key}"
    if not folder.exists():
        made = folder.with_name(f"{folder.name}.{os.getpid():x}.partial")
        run([uv(), "venv", "--quiet", "--relocatable", "--python", sys.executable, str(made)])
        install = [uv(), "pip", "install", "--quiet", "--require-hashes", "--python", str(made / "bin" / "python")]
        run([*install, "--requirement", str(REQUIREMENTS)], timeout=INSTALL_S)
        with contextlib.suppress(OSError):
            made.rename(folder)  # another process of this test run may have been faster
        shutil.rmtree(made, ignore_errors=True)
    return folder / "bin" / "python"


def run_client(*arguments: str | Path, cwd: Path) -> str:
    """The last line that the program writes to stdout: litellm writes notices before.

    Nothing of this repository is on its path, and it gets nothing from hubs.
    """
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(cwd), "HF_HOME": str(cwd), "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1", "HF_EVALUATE_OFFLINE": "1", "OPENAI_API_KEY": "none",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True", "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    command = [str(python()), *map(str, arguments)]
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=RUN_S)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return (done.stdout.strip().splitlines() or [""])[-1]
