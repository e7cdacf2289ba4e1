"""Runs other programs: output kept for the error message, errors turned into sentences."""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from devcluster.errors import DevclusterError

_TAIL = 15
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def run(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | BinaryIO | None = None,
    timeout: float | None = None,
    may_outlive_us: bool = False,
) -> str:
    """Runs to the end and returns standard output; a failure becomes one readable error with the last lines.

    The program dies with this process unless it may outlive us, as one must that is better not interrupted.
    """
    arguments = [str(part) for part in command]
    text, file = (stdin, None) if isinstance(stdin, str) else (None, stdin)
    try:
        done = subprocess.run(
            arguments, env=merged(env), cwd=cwd, input=text, stdin=file, timeout=timeout, text=True,
            capture_output=True, preexec_fn=None if may_outlive_us else dies_with_parent(),
        )  # fmt: skip
    except FileNotFoundError as error:
        raise DevclusterError(f"{arguments[0]} is not installed or not on PATH.") from error
    except subprocess.TimeoutExpired as error:
        raise DevclusterError(f"`{shlex.join(arguments)}` did not end within {timeout:.0f} s.") from error
    if done.returncode != 0:
        raise DevclusterError(failure(arguments, done.returncode, done.stdout + done.stderr))
    return done.stdout


def follow(
    command: Sequence[str | Path], on_line: Callable[[str], object], *, env: Mapping[str, str], cwd: Path
) -> None:
    """Runs to the end and hands on each line of output as it comes; a failure becomes one readable error."""
    arguments = [str(part) for part in command]
    tail: deque[str] = deque(maxlen=_TAIL)
    with subprocess.Popen(
        arguments, env=merged(env), cwd=cwd, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=dies_with_parent(),
    ) as program:  # fmt: skip
        for line in program.stdout or ():
            tail.append(line)
            on_line(line)
    if program.returncode != 0:
        raise DevclusterError(failure(arguments, program.returncode, "".join(tail)))


def succeeds(
    command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, timeout: float | None = None
) -> bool:
    """Whether a program ends well in time; for questions, where 'no' is an answer and not an error."""
    try:
        run(command, env=env, timeout=timeout)
    except DevclusterError:
        return False
    return True


def failure(arguments: Sequence[str], status: int, output: str) -> str:
    """One readable error: what was run, how it ended, its last lines."""
    lines = [line for line in output.splitlines() if line.strip()][-_TAIL:]
    shown = shlex.join(arguments)
    shown = shown if len(shown) < 300 else f"{shown[:300]} ..."
    return "\n".join([f"`{shown}` failed with status {status}:", *(f"    {line}" for line in lines)])


def merged(env: Mapping[str, str] | None) -> dict[str, str] | None:
    """This process's environment with some variables changed."""
    return {**os.environ, **env} if env is not None else None


def dies_with_parent() -> Callable[[], None]:
    """For preexec_fn: the kernel kills the child when the thread that started it ends, however it ends."""
    parent = os.getpid()

    def arrange() -> None:
        if sys.platform == "linux":
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(1)

    return arrange
