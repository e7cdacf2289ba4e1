"""What a benchmark measures of a program: the CPU time of its whole tree, on the cores that it was given."""

import os
import sys
from pathlib import Path

import pytest

from bench.processes import Program, on_core, started
from testkit.until import until

BURNT_S = 0.5
BURN = f"import time\nwhile time.process_time() < {BURNT_S}: pass\n"
# Its first child burns CPU time and ends; then a grandchild burns as much and goes on.
TREE = f"""
import subprocess, sys, time
subprocess.run([sys.executable, "-c", {BURN!r}], check=True)
child = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', sys.argv[1]]); time.sleep(60)"
subprocess.Popen([sys.executable, "-c", child, {BURN!r} + "time.sleep(60)"])
time.sleep(60)
"""


@pytest.mark.integration
def test_cpu_time_is_that_of_a_tree_with_the_children_that_have_ended(tmp_path: Path) -> None:
    with started("tree", [sys.executable, "-c", TREE], "", 0, tmp_path / "log", lambda: True) as program:
        # Without one of the two it stays below: four starts of Python take less than BURNT_S.
        until(lambda: program.cpu_s() >= 2 * BURNT_S, "both have burnt", 60)
    assert program.cpu_s() == 0.0


def test_a_block_runs_on_one_core_or_on_some_and_then_on_all_again() -> None:
    before = os.sched_getaffinity(0)
    with on_core(frozenset(before)):
        assert os.sched_getaffinity(0) == before
        with on_core(min(before)):
            assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before


def test_a_process_that_is_gone_has_no_cpu_time() -> None:
    assert Program("gone", "", (2**22 + 1,)).cpu_s() == 0.0
