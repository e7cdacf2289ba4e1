"""The console scripts: an error is one sentence and an exit code, never a traceback."""

import sys
from pathlib import Path
from typing import NoReturn

import click
from click.shell_completion import ShellComplete

from slipway_cli.commands.root import cli
from slipway_cli.errors import INTERRUPTED, CommandError

PLUGIN = "kubectl slipway"
NO_FILES = 4  # cobra's directive: complete no file names


def main() -> NoReturn:
    """`slipway`, and `kubectl-slipway`, which kubectl runs for `kubectl slipway`."""
    program = PLUGIN if Path(sys.argv[0]).name.startswith("kubectl-") else "slipway"
    try:
        code = cli.main(prog_name=program, standalone_mode=False)
    except click.ClickException as usage:
        usage.show()
        code = usage.exit_code
    except click.Abort:
        code = INTERRUPTED
    except CommandError as trouble:
        click.echo(f"error: {trouble}", err=True)
        code = trouble.code
    sys.exit(code or 0)


def complete_for_kubectl() -> None:
    """`kubectl_complete-slipway`: kubectl runs it to complete `kubectl slipway ARGUMENTS...`."""
    *before, incomplete = sys.argv[1:] or [""]
    for item in ShellComplete(cli, {}, PLUGIN, "").get_completions(before, incomplete):
        print(f"{item.value}\t{item.help}" if item.help else item.value)
    print(f":{NO_FILES}")


if __name__ == "__main__":
    main()
