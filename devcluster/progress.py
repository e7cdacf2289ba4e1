"""Says which step of how many runs and for how long: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a longer work: what it is called, whether it is there already, and what makes it."""

    title: str
    done: Callable[[], bool]
    make: Callable[[], object]
    note: str = ""  # what is downloaded, or why it takes long


def run_steps(steps: Sequence[Step], console: Console) -> float:
    """Runs what is not done yet, in order; a killed run goes on where it stopped. Returns the seconds it took."""
    started = time.monotonic()
    missing = [step for step in steps if not step.done()]
    for number, step in enumerate(missing, 1):
        _run_step(f"[{number}/{len(missing)}] {step.title}", step, console)
    return time.monotonic() - started


def _run_step(label: str, step: Step, console: Console) -> None:
    started = time.monotonic()
    note = f" ({step.note})" if step.note else ""
    if console.is_terminal:
        columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
        with Progress(*columns, console=console, transient=True) as live:
            live.add_task(label + note, total=None)
            step.make()
    else:
        say(console, f"{label}{note} ...")
        step.make()
    say(console, f"{label} ... {time.monotonic() - started:.0f} s")


def say(console: Console, text: str) -> None:
    """One plain line, shown at once; square brackets are text, not markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
