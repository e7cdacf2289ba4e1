"""A server of the digits classifier of the examples."""

from collections.abc import Iterator

import pytest

from testkit import ROOT
from tests.server.process import ServerProcess

DIGITS = ROOT / "examples" / "models" / "digits-onnx"
FLAGS = ("--task", "predict", "--served-model-name", "m", "--model-version", "v1")


@pytest.fixture(scope="package")
def digits() -> Iterator[ServerProcess]:
    with ServerProcess(DIGITS, *FLAGS, "--max-image-pixels", "1000000", "--max-queue-size", "40") as process:
        yield process.wait_ready()
