"""Tests that failed run once more: what that hides, and what it does not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from testkit.rerun import MOST

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
SUITE = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range(8))
def test_it(number):
    seen = Path(f"seen-{number}")
    runs = len(seen.read_text()) if seen.exists() else 0
    seen.write_text("x" * (runs + 1))
    assert runs >= FAILURES.get(number, 0)
"""


def run(folder: Path, failures: dict[int, int], *options: str) -> tuple[int, str]:
    """`failures`: by test, how often it fails before it passes."""
    (folder / "test_suite.py").write_text(SUITE.replace("FAILURES", repr(failures)))
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "testkit.rerun", "unit", "-pno:randomly", "-pno:asyncio", *options]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def runs(folder: Path) -> list[int]:
    return [len((folder / f"seen-{number}").read_text()) for number in range(8)]


@pytest.mark.parametrize("processes", ["-n0", "-n2"])
def test_what_failed_once_runs_again_and_is_named(tmp_path: Path, processes: str) -> None:
    status, output = run(tmp_path, {3: 1}, "test_suite.py", processes, "--dist=worksteal")
    assert status == 0, output
    assert runs(tmp_path) == [1, 1, 1, 2, 1, 1, 1, 1]
    failed = ["test_suite.py::test_it[3]"]
    assert output.rstrip().splitlines()[-1] == failed[0] and "DEFECTS" in output
    assert json.loads((tmp_path / "build/reports/failed-once-unit.json").read_text()) == failed
    (tmp_path / "seen-3").write_text("xx")
    assert run(tmp_path, {}, "test_suite.py")[0] == 0
    assert not (tmp_path / "build/reports/failed-once-unit.json").exists(), "of a former run"


def test_what_fails_again_has_failed(tmp_path: Path) -> None:
    status, output = run(tmp_path, {3: 2, 5: 1}, "test_suite.py")
    assert status == 1 and "DEFECTS" not in output
    assert runs(tmp_path) == [1, 1, 1, 2, 1, 2, 1, 1]


def test_more_than_a_few_are_no_chance(tmp_path: Path) -> None:
    status, output = run(tmp_path, dict.fromkeys(range(MOST + 1), 1), "test_suite.py")
    assert status == 1 and "once more" not in output
    assert set(runs(tmp_path)) == {1}


@pytest.mark.parametrize(("options", "status"), [(("test_suite.py", "-knothing"), 5), (("test_none.py",), 4)])
def test_a_run_without_tests_fails(tmp_path: Path, options: tuple[str, ...], status: int) -> None:
    assert run(tmp_path, {}, *options)[0] == status


def test_a_broken_suite_fails(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text("import nothing_of_this_name\n")
    assert run(tmp_path, {}, "test_suite.py", "test_broken.py")[0] == 2
