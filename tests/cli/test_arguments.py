"""What help says of arguments, and what a command without one does."""

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from slipway_cli.commands.root import cli


def commands(group: click.Group, *names: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, *names, name)
        else:
            yield (*names, name), command


COMMANDS = dict(commands(cli))


@pytest.mark.finding("L13")
@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_help_says_which_arguments_may_be_left_out(names: tuple[str, ...]) -> None:
    """`slipway usage` showed TENANT, and ran without one."""
    usage = CliRunner().invoke(cli, [*names, "--help"]).output.splitlines()[0]
    arguments = [item for item in COMMANDS[names].params if isinstance(item, click.Argument)]
    shown = usage.partition("[OPTIONS]")[2].split()
    assert [word.startswith("[") for word in shown] == [not item.required for item in arguments]


@pytest.mark.finding("L13")
def test_a_command_that_has_another_name_here_is_named() -> None:
    result = CliRunner().invoke(cli, ["watch", "chat"])
    assert result.exit_code == 2
    assert "No such command 'watch'. Use `slipway status NAME --watch`." in result.output


@pytest.mark.finding("L13")
@pytest.mark.parametrize("more", [["--watch"], ["-o", "json"]])
def test_status_without_a_name_is_a_table_alone(more: list[str]) -> None:
    result = CliRunner().invoke(cli, ["status", *more], env={"KUBECONFIG": "/does/not/exist"})
    assert result.exit_code == 2 and "give a NAME" in result.output


@pytest.mark.finding("L13")
def test_groups_without_a_command_show_their_help_alike() -> None:
    groups = [name for name, item in cli.commands.items() if isinstance(item, click.Group)]
    assert {"batches", "jobs", "keys"} <= set(groups)
    for name in groups:
        result = CliRunner().invoke(cli, [name])
        assert (result.exit_code, "Commands:" in result.output) == (2, True), name
