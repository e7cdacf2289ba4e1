"""What the person at the terminal sees: a live table on a terminal, timestamped lines anywhere else."""

import shlex
import time
from collections.abc import Sequence
from typing import Any, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from examples.demo.view import folded, headline, message_of, rows
from testkit.load.closed import Report

Json = dict[str, Any]
QUIET_S = 5.0  # between two lines without news
COLOURS = {"Healthy": "green", "Degraded": "red", "Paused": "yellow", "Progressing": "cyan"}


class Screen(Protocol):
    """Where the demo prints its progress."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def act(self, title: str) -> None:
        """A new part of the story begins."""

    def line(self, text: str) -> None:
        """One thing to know."""

    def command(self, words: Sequence[str]) -> None:
        """A command that the demo runs now, as a person would type it."""

    def see(self, deployment: Json, report: Report) -> None:
        """The present state; called often."""


def screen(console: Console) -> Screen:
    return LiveTable(console) if console.is_terminal else Lines(console)


def load_line(report: Report) -> str:
    rate = report.requests / report.seconds if report.seconds else 0.0
    return (
        f"{report.requests} requests ({rate:.1f}/s), {report.open_streams} streams open, "
        f"{report.failed} failed, {report.broken} broken"
    )


class Lines:
    """One line when something changes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last, self._message, self._at = "", "", 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def act(self, title: str) -> None:
        self._print("")
        self._line(f"== {title}")

    def line(self, text: str) -> None:
        self._line(text)

    def command(self, words: Sequence[str]) -> None:
        self._line(f"$ {shown(words)}")

    def see(self, deployment: Json, report: Report) -> None:
        now, headlined = time.monotonic(), headline(deployment)
        if headlined == self._last and now - self._at < QUIET_S:
            return
        under_load = f" | {load_line(report)}" if report.requests else ""
        shown_now = headline(deployment, self._message) if headlined != self._last else "..."
        first, *others = folded(shown_now + under_load)
        self._line(first)
        for line in others:
            self._print(" " * 10 + line)
        self._last, self._message, self._at = headlined, message_of(deployment), now

    def _line(self, text: str) -> None:
        self._print(f"{time.strftime('%H:%M:%S')}  {text}")

    def _print(self, text: str) -> None:
        # No wrapping, no markup: these lines are read by programs and pasted into reports.
        self._console.out(text, highlight=False)


class LiveTable:
    """The table stays below, lines scroll above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def act(self, title: str) -> None:
        self._console.print(Rule(f"[bold]{title}", align="left"))

    def line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def command(self, words: Sequence[str]) -> None:
        self._console.print(Text(f"$ {shown(words)}", style="bold blue"))

    def see(self, deployment: Json, report: Report) -> None:
        self._live.update(Group(_table(deployment, report), _where(deployment), Text(load_line(report), style="dim")))


def _table(deployment: Json, report: Report) -> Table:
    table = Table("version", "revision", "role", expand=False)
    for column in ("weight", "ready", "requests", "failures"):
        table.add_column(column, justify="right")
    for row in rows(deployment, report.by_revision, report.failures_by_revision):
        style = "red" if row.failures else ""
        weight = f"{row.weight} %"
        table.add_row(
            row.version, row.revision, row.role, weight, row.ready, str(row.requests), str(row.failures), style=style
        )
    return table


def _where(deployment: Json) -> Text:
    status = deployment.get("status") or {}
    phase = status.get("phase", "Pending")
    step = f"  step {status['step']}" if status.get("step") else ""
    return Text.assemble((phase, COLOURS.get(phase, "")), step, f"  {status.get('message', '')}")


def shown(words: Sequence[str]) -> str:
    """As one would type it."""
    return shlex.join(words)
