"""`slipway status --watch`: the tree again and again on a terminal, a line for each change elsewhere."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

import click
from rich.live import Live
from rich.text import Text

from slipway_cli.errors import Unreachable
from slipway_cli.tree import console, tree
from slipway_cli.view import View, headline

POLL_S = 1.0

Read = Callable[[], View]


def watch(read: Read, is_terminal: bool) -> None:
    """Show it until the user interrupts.

    Raises:
        Missing: when the ModelDeployment goes away.
    """
    (_on_screen if is_terminal else _in_lines)(read)


def _on_screen(read: Read) -> None:
    seen = read()
    with Live(console=console(True), auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            picture = tree(seen, datetime.now(UTC))
            try:
                seen = read()
            except Unreachable as error:
                picture.add(Text(f"as last seen: {error}", style="red"))
            live.update(picture, refresh=True)
            time.sleep(POLL_S)


def _in_lines(read: Read) -> None:
    said = ""
    while True:
        try:
            sentence = headline(read())
        except Unreachable as error:
            sentence = str(error)
        if sentence != said:
            click.echo(f"{datetime.now(UTC):%H:%M:%S} {sentence}")
            said = sentence
        time.sleep(POLL_S)
