"""Runs slipway-fetcher in a process of its own, for programs that fetch many models: its time is bounded."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

from slipway_process import environment

# slipway-fetcher, whose last words go to the file of its first argument.
_RUN = """
import os, sys
os.environ['SLIPWAY_TERMINATION_LOG'] = sys.argv.pop(1)
from slipway_fetcher.__main__ import main
main()
"""
FETCHER = (sys.executable, "-P", "-c", _RUN)


async def run(
    command: tuple[str, ...], report: Path, arguments: Iterable[str], max_s: float, *, without: Collection[str] = ()
) -> int:
    """Runs a fetcher for at most `max_s` seconds and returns its exit code.

    `report`: the file that gets its last words: what it fetched, or why it failed. `without`: variables that it does
    not get.
    """
    variables = environment.without(without)
    process = await asyncio.create_subprocess_exec(
        *command, str(report), *arguments, stdin=asyncio.subprocess.DEVNULL, env=variables
    )
    words = ""
    try:
        async with asyncio.timeout(max_s):
            code = await process.wait()
    except TimeoutError:
        code, words = os.EX_UNAVAILABLE, f"The download took longer than {max_s:g} s."
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    _complete(report, code, words)
    return code


def _complete(report: Path, code: int, words: str) -> None:
    """Writes why a fetcher failed, where it has not."""
    if words or (code and not report.is_file()):
        report.write_text(words or f"slipway-fetcher ended with {code}.")


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size if path.is_file() else 0
    return total
