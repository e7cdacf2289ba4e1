"""Commands about the program itself: versions and shell completion."""

from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class

from slipway_cli.api import RESOURCE
from slipway_cli.cluster.client import ClusterClient
from slipway_cli.commands.options import output_option, print_data, with_cluster
from slipway_cli.errors import CommandError
from slipway_contracts.hash_chain import BrokenChain, Chain, read_line

DISTRIBUTION = "slipway"


@click.command()
@click.option("--client", is_flag=True, help="Use no cluster.")
@output_option("text", "json", "yaml")
@click.pass_context
def version(context: click.Context, /, client: bool, output: str) -> None:
    """Print the versions of this program, of the API server, and of the ModelDeployment API that it serves."""
    found: dict[str, Any] = {"slipway": distribution_version(DISTRIBUTION)}
    if not client:
        found |= context.invoke(_server_versions)
    if output != "text":
        print_data(found, output)
        return
    for name, value in found.items():
        click.echo(f"{name}: {value if isinstance(value, str) else ', '.join(value) or 'not installed'}")


@click.command()
@with_cluster
def _server_versions(cluster: ClusterClient) -> dict[str, Any]:
    return {"kubernetes": cluster.version(), RESOURCE: cluster.served_versions()}


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes `slipway` in a shell: verbs, options and names.

    For this shell only: source <(slipway completion bash).
    """
    found = get_completion_class(shell)
    assert found, "click knows these three"
    click.echo(
        found(
            click.get_current_context().find_root().command, {}, DISTRIBUTION, f"_{DISTRIBUTION.upper()}_COMPLETE"
        ).source()
    )


@click.group("audit")
def audit() -> None:
    """Check the audit log of the operator."""


@audit.command("verify")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--has", metavar="SHA256", default="", help="Digest of a line that the file must have: it was not cut.")
def verify(file: Path, has: str) -> None:
    """Check that no line of FILE was changed, removed or put in between; name the first line that does not fit."""
    chain, is_there = Chain(), not has
    try:
        with file.open("rb") as lines:
            while line := read_line(lines):
                chain.follow(line)
                is_there |= chain.head == has
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}") from None
    except BrokenChain as error:
        raise CommandError(f"{file}: {error}") from None
    if not is_there:
        raise CommandError(f"{file}: no line has the digest {has}: lines were cut off, or written again")
    click.echo(f"{chain.seq} lines are whole; the last one has the digest {chain.head}")
