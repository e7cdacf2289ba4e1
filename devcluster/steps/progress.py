"""Runs steps, lanes in parallel, and shows the progress: a live line on a terminal, else a line now and then."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from devcluster.steps.schedule import Step, about, forecast, left_of, missing, startable
from devcluster.steps.weights import seconds_of

_LINE_EVERY_S = 15.0  # where it is not a terminal
_LIVE_EVERY_S = 0.5


def run_steps(steps: Sequence[Step], console: Console) -> float:
    """Runs what is not done yet; a killed run goes on where it stopped. Returns the seconds it took.

    The first error ends the run: what other lanes are running then ends with this process, at the latest.
    """
    started = time.monotonic()
    if wanted := missing(steps):
        _Run(wanted, console).complete()
    return time.monotonic() - started


class _Run:
    """One run: each running step has a thread, and the one who called decides and shows."""

    def __init__(self, steps: list[Step], console: Console) -> None:
        self._steps = steps
        self._console = console
        self._weights = {step.title: seconds_of(step.title) for step in steps}
        self._started = self._shown = time.monotonic()
        self._began: dict[str, float] = {}
        self._finished: set[str] = set()
        self._ends: queue.SimpleQueue[tuple[Step, BaseException | None]] = queue.SimpleQueue()

    def complete(self) -> None:
        with _display(self._console) as show:
            while len(self._finished) < len(self._steps):
                for step in startable(self._steps, self._finished, self._began.keys() - self._finished):
                    self._start(step)
                self._wait_for_an_end(show)

    def status(self) -> str:
        """What is going on, how far it is and how long it still takes."""
        now = time.monotonic()
        running = [step for step in self._steps if step.title in self._began and step.title not in self._finished]
        left = {title: weight for title, weight in self._weights.items() if title not in self._finished}
        for step in running:
            fraction = step.fraction() if step.fraction else None
            left[step.title] = left_of(left[step.title], now - self._began[step.title], fraction)
        far = forecast(self._steps, self._weights, left, now - self._started)
        doing = ", ".join(self._doing(step, now) for step in running)
        return f"{far.share:.0%} done, {about(far.seconds_left)} left: {doing}"

    def _doing(self, step: Step, now: float) -> str:
        how_far = f"{step.fraction():.0%}" if step.fraction else f"{now - self._began[step.title]:.0f} s"
        return f"{step.title} ({how_far})"

    def _start(self, step: Step) -> None:
        self._began[step.title] = time.monotonic()
        note = f" ({step.note})" if step.note else ""
        print_line(self._console, f"{self._label(step)}{note} ...")
        # Daemons: whoever interrupts or fails a run does not wait for the minutes that another lane still needs.
        threading.Thread(target=self._make, args=(step,), name=step.title, daemon=True).start()

    def _make(self, step: Step) -> None:
        try:
            step.make()
        except BaseException as error:
            self._ends.put((step, error))
        else:
            self._ends.put((step, None))

    def _wait_for_an_end(self, show: Callable[[str], None]) -> None:
        every_s = _LIVE_EVERY_S if self._console.is_terminal else _LINE_EVERY_S
        if not self._began.keys() - self._finished:
            raise ValueError("steps wait for one another")
        while True:
            try:
                step, error = self._ends.get(timeout=max(self._shown + every_s - time.monotonic(), 0))
            except queue.Empty:
                show(self.status())
                self._shown = time.monotonic()
                continue
            if error:
                raise error
            self._finished.add(step.title)
            print_line(self._console, f"{self._label(step)} ... {time.monotonic() - self._began[step.title]:.0f} s")
            return

    def _label(self, step: Step) -> str:
        return f"[{list(self._began).index(step.title) + 1}/{len(self._steps)}] {step.title}"


@contextmanager
def _display(console: Console) -> Iterator[Callable[[str], None]]:
    """Gives what shows a status: in a live line on a terminal, as a line of its own elsewhere."""
    if not console.is_terminal:
        yield lambda status: print_line(console, status)
        return
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False)
    with Progress(*columns, console=console, transient=True) as live:
        task = live.add_task("", total=None)
        yield lambda status: live.update(task, description=status)


def print_line(console: Console, text: str) -> None:
    """One plain line, shown at once; square brackets are text, not markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
