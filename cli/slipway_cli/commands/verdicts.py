"""The command about signed verdicts of rollouts."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slipway_cli.api import Json
from slipway_cli.cluster.client import ClusterClient
from slipway_cli.commands.options import complete_name, output_option, print_data, with_cluster
from slipway_cli.errors import CommandError
from slipway_cli.objects import verdict as statements
from slipway_cli.objects.verdict import NoStatement, SignedRecord
from slipway_contracts.verdict_statements import PAYLOAD_TYPE

if TYPE_CHECKING:
    from slipway_process import dsse

LONGEST_FILE = 1 << 20
PRINTED = ("text", "json", "yaml", "envelope")


@click.command("verdict")
@click.argument("name", required=False, shell_complete=complete_name)
@click.argument("revision", required=False)
@click.option("--verify", "key_file", metavar="KEY", type=click.Path(path_type=Path), help="PEM file of public keys.")
@click.option("--file", metavar="FILE", help="Use no cluster: read an envelope, as a registry has it; - for stdin.")
@output_option(*PRINTED)
@with_cluster
def verdict(
    cluster: ClusterClient, name: str | None, revision: str | None, key_file: Path | None, file: str | None, output: str
) -> None:
    """Print the signed verdict on a revision, and verify it with a public key.

    REVISION is a hash or an ordinal from `slipway history`; without one it is the newest revision with a verdict.
    With --verify it fails unless one of the keys signed the statement, and unless it is about this revision.
    """
    # Imported here and below, because cryptography takes long to load.
    from slipway_process import dsse

    if (name is None) == (file is None):
        raise click.UsageError("give the NAME of a ModelDeployment, or --file FILE")
    deployment = cluster.deployment(name) if name else None
    record = _chosen(cluster, name, deployment, revision) if name and deployment else None
    text = record.envelope if record else _read(file or "")
    try:
        envelope = dsse.read(text)
        signer = dsse.verify(envelope, PAYLOAD_TYPE, _keys(key_file)) if key_file else None
        statement = statements.read_statement(envelope.payload)
    except (dsse.NotVerified, NoStatement) as error:
        raise CommandError(f"the verdict is not verified: {error}") from error
    if deployment and record and (difference := statements.find_difference(statement, deployment, record)):
        raise CommandError(f"the verdict is not verified: {difference}")
    if output == "envelope":
        click.echo(text)
    elif output != "text":
        print_data(statement, output)
    else:
        click.echo("\n".join(statements.describe(statement)))
    if signer:
        click.echo(f"verified: signed by the key {signer}", err=True)
    else:
        claimed = ", ".join(filter(None, envelope.key_ids)) or "an unnamed key"
        printable = "".join(letter for letter in claimed if letter.isprintable())
        click.echo(f"not verified: it claims to be signed by {printable}; give --verify KEY", err=True)


def _chosen(cluster: ClusterClient, name: str, deployment: Json, revision: str | None) -> SignedRecord:
    """The record with the wanted statement."""
    known = statements.read_signed(cluster.history(name), deployment["metadata"]["uid"])
    named = [one for one in known if revision in (None, one.revision, str(one.ordinal))]
    if not named:
        there = ", ".join(f"{one.ordinal} ({one.revision})" for one in known) or "none"
        raise CommandError(f"{name} has no signed verdict on {revision or 'any revision'}; there are: {there}")
    return named[-1]


def _read(file: str) -> str:
    try:
        if file == "-":
            return sys.stdin.read(LONGEST_FILE)
        with Path(file).open() as content:
            return content.read(LONGEST_FILE)
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{file} cannot be read: {error}") from error


def _keys(file: Path) -> "tuple[dsse.PublicKey, ...]":
    from slipway_process import dsse

    try:
        with file.open("rb") as content:
            return dsse.public_keys(content.read(dsse.MOST_KEY_BYTES))
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}") from error
    except dsse.UnusableKey as error:
        raise CommandError(f"{file}: {error}") from error
