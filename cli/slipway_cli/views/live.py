"""`slipway status --watch`: the tree again and again on a terminal, a line for each change elsewhere."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

import click
from rich.live import Live
from rich.text import Text

from slipway_cli.errors import Unreachable
from slipway_cli.views.status import View, format_headline
from slipway_cli.views.tree import build_tree, open_console

POLL_S = 1.0

Read = Callable[[], View]


def watch(read: Read, is_terminal: bool) -> None:
    """Show what `read` returns, once a second, until the user interrupts.

    Raises:
        ObjectNotFound: when the ModelDeployment goes away.
    """
    (_on_screen if is_terminal else _in_lines)(read)


def _on_screen(read: Read) -> None:
    seen = read()
    with Live(console=open_console(True), auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            picture = build_tree(seen, datetime.now(UTC))
            try:
                seen = read()
            except Unreachable as error:
                picture.add(Text(f"as last seen: {error}", style="red"))
            live.update(picture, refresh=True)
            time.sleep(POLL_S)


def _in_lines(read: Read) -> None:
    printed = ""
    while True:
        try:
            sentence = format_headline(read())
        except Unreachable as error:
            sentence = str(error)
        if sentence != printed:
            click.echo(f"{datetime.now(UTC):%H:%M:%S} {sentence}")
            printed = sentence
        time.sleep(POLL_S)
