"""Unmodified clients of the protocol, each as a program with packages of its own: they cannot share a process."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.predict.onnx_models import TYPES
from tests.server.process import ServerProcess

pytestmark = [pytest.mark.integration, pytest.mark.extended, pytest.mark.timeout(900)]

PACKAGES = ("tritonclient[http]==2.73.0", "kserve==0.21.0")
KINDS = ",".join(kind for kind in TYPES if kind != "BF16")  # not beside BYTES: see test_bfloat16_passes_as_its_bits


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clients")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin" / "pip", "install", "-q", *PACKAGES], check=True)
    return folder / "bin" / "python"


@pytest.mark.parametrize("client", ["triton_client", "kserve_client"])
def test_every_datatype_passes_through_an_unmodified_client(identity: ServerProcess, python: Path, client: str) -> None:
    program = Path(__file__).parent / "clients" / f"{client}.py"
    url = identity.url.removeprefix("http://") if client == "triton_client" else identity.url
    done = subprocess.run([python, program, url, KINDS], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "passed", done.stdout + done.stderr
