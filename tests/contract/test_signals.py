"""Tests that interrupt a program work in a background job too, where SIGINT is ignored or blocked."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INTERRUPTED = """
import signal, subprocess, sys
from tests.support import signals
{reset}
SLEEPS = "import time; print(flush=True); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", SLEEPS], stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL)
child.stdout.readline()
child.send_signal(signal.SIGINT)
try:
    print(child.wait({within_s}))
except subprocess.TimeoutExpired:
    child.kill()
    print("ignored")
"""


def ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def blocked() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def run(background: Callable[[], None], reset: str, within_s: float) -> str:
    command = [sys.executable, "-c", INTERRUPTED.format(reset=reset, within_s=within_s)]
    return subprocess.run(command, cwd=ROOT, preexec_fn=background, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("background", [ignored, blocked])
def test_sigint_reaches_programs_that_tests_start_in_a_background_job(background: Callable[[], None]) -> None:
    assert run(background, "signals.reset()", 30) == f"{-signal.SIGINT}\n"


def test_without_the_reset_a_background_job_cannot_interrupt_its_children() -> None:
    assert run(ignored, "", 2) == "ignored\n"


def test_the_run_itself_has_the_default_handlers() -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
