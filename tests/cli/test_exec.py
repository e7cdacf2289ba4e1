"""`kubectl exec` for the command line: how it fails."""

import os
from pathlib import Path

import pytest

from slipway_cli.cluster import exec as kubectl_exec
from slipway_cli.errors import CommandError


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only kubectl on PATH: a script that each test writes."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path / "kubectl"


def write(script: Path, text: str) -> None:
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)


def test_an_exec_that_hangs_ends_with_an_error(kubectl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(kubectl, "exec sleep 60")
    monkeypatch.setattr(kubectl_exec, "TIMEOUT_S", 0.2)
    with pytest.raises(CommandError, match="in pod p did not end within"):
        kubectl_exec.exec_in_pod([], "p", "operator", ["true"])


def test_the_reason_of_a_refusal_is_shown(kubectl: Path) -> None:
    write(kubectl, 'echo "error: pods/exec is forbidden" >&2; exit 1')
    with pytest.raises(CommandError, match="failed: pods/exec is forbidden"):
        kubectl_exec.exec_in_pod([], "p", "operator", ["true"])


def test_the_output_is_returned(kubectl: Path) -> None:
    write(kubectl, 'echo "$@"')
    assert kubectl_exec.exec_in_pod(["-n", "a"], "p", "c", ["run", "x"]) == "exec -n a p -c c -- run x\n"
