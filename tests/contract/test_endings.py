"""Exit codes by which the operator sorts how fetchers and servers end."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slipway_operator.model.cluster.observed import PodTrouble, Workload
from slipway_operator.model.inputs.pod_inputs import Resources
from slipway_operator.planning.facts import causes
from slipway_process import termination
from testkit import ROOT
from tests.contract.documented import TEXT

FETCHER = "from slipway_fetcher.__main__ import main; main()"
SERVER = "from slipway_server.__main__ import main; main()"
MODELS = ROOT / "examples" / "models"


def documented() -> dict[int, str]:
    """Exit code → reason, as docs/contracts.md has them."""
    rows = re.findall(r"^\| (\d+)[^|]*\|[^|]*\|[^|]*\| `(\w+)` \|$", TEXT, re.MULTILINE)
    return {int(code): reason for code, reason in rows}


def test_both_sides_name_the_same_codes() -> None:
    assert (termination.DATA_ERROR, termination.NO_INPUT) == (causes.DATA_ERROR, causes.NO_INPUT)
    assert set(documented()) == {causes.USAGE, causes.DATA_ERROR, causes.NO_INPUT, termination.FAILED}


@pytest.mark.parametrize(
    ("container", "program", "arguments", "reason", "words"),
    [
        ("fetch", FETCHER, ["--uri", "file:///nowhere"], "ModelNotFetched", "There is no folder /nowhere"),
        ("fetch", FETCHER, ["--uri", f"file://{MODELS}/tiny-broken"], "ModelNotLoaded", "safetensors is missing"),
        ("fetch", FETCHER, ["--url", "file:///nowhere"], "InvalidArguments", "slipway-fetcher: "),
        ("server", SERVER, ["--model", f"{MODELS}/tiny-broken"], "ModelNotLoaded", "safetensors is missing"),
        ("server", SERVER, ["--model", f"{MODELS}/tiny-v1", "--fast"], "InvalidArguments", "arguments: --fast"),
    ],
)
def test_exit_code_and_termination_message_name_the_cause(
    tmp_path: Path, container: str, program: str, arguments: list[str], reason: str, words: str
) -> None:
    message = tmp_path / "message"
    destination = ["--dest", str(tmp_path / "model")] if container == "fetch" else []
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("server", "process", "contracts"))
    environment = {**os.environ, "SLIPWAY_TERMINATION_LOG": str(message), "PYTHONPATH": paths}
    ended = subprocess.run([sys.executable, "-c", program, *arguments, *destination], env=environment, check=False)
    trouble = PodTrouble("p", "Error", f"container {container}: {message.read_text()}", ended.returncode)
    found = causes.of_workload(Workload("r", 1, 1, 0, (trouble,)), Resources())
    assert found and found.reason == reason == documented()[ended.returncode]
    assert words in found.message
