"""Commands that change a rollout: each is one patch of the spec."""

import json
import shlex
from collections.abc import Callable
from typing import Any

import click

from slipway_cli.api import ADAPTER_RESOURCE, RESOURCE, adapter_of
from slipway_cli.cluster.client import ClusterClient
from slipway_cli.commands.options import name_argument, output_option, print_data, with_cluster
from slipway_cli.errors import CommandError
from slipway_cli.objects import history
from slipway_cli.objects.deployment import Deployment, read_deployment
from slipway_cli.rollouts import intents
from slipway_cli.rollouts.intents import Decision, Nothing


def steering(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of all commands that change a rollout."""
    dry_run = click.option("--dry-run", is_flag=True, help="Change nothing; print the equivalent kubectl command.")
    return name_argument(dry_run(output_option("text", "json", "yaml")(with_cluster(command))))


@click.command()
@click.option("--full", is_flag=True, help="Skip all remaining steps; still wait for readiness.")
@steering
def promote(cluster: ClusterClient, name: str, full: bool, **printing: Any) -> None:
    """End the current pause of the rollout."""
    _steer(cluster, name, intents.promote_full if full else intents.promote, **printing)


@click.command()
@steering
def abort(cluster: ClusterClient, name: str, **printing: Any) -> None:
    """Reject the revision in flight; the stable one takes its traffic."""
    _steer(cluster, name, intents.abort, **printing)


@click.command()
@steering
def retry(cluster: ClusterClient, name: str, **printing: Any) -> None:
    """Start a new attempt of a rejected revision."""
    _steer(cluster, name, intents.retry, **printing)


@click.command()
@click.option(
    "--to", metavar="REVISION", help="Ordinal or hash from `history`; default is the revision that served before."
)
@steering
def undo(cluster: ClusterClient, name: str, to: str | None, **printing: Any) -> None:
    """Roll back to a former revision, without steps, until spec.model changes.

    Warns on stderr when that revision was rejected before, with the reason.
    """
    records = history.read_records(cluster.history(name), cluster.deployment(name)["metadata"]["uid"])
    _steer(cluster, name, lambda of: intents.undo(of, records, to), **printing)


@click.command()
@steering
def pause(cluster: ClusterClient, name: str, **printing: Any) -> None:
    """Hold the rollout; recovery, scaling and abort still work."""
    _steer(cluster, name, intents.pause, **printing)


@click.command()
@steering
def resume(cluster: ClusterClient, name: str, **printing: Any) -> None:
    """Continue a rollout that `pause` holds."""
    _steer(cluster, name, intents.resume, **printing)


def _steer(
    cluster: ClusterClient, name: str, decide: Callable[[Deployment], Decision], *, dry_run: bool, output: str
) -> None:
    """Decide by the status as it is now, patch, and print the change and its kubectl command."""
    decided = decide(read_deployment(cluster.deployment(name)))
    if isinstance(decided, Nothing):
        raise CommandError(decided.why)
    patch = {"spec": decided.spec}
    command = _kubectl(cluster, name, patch)
    if decided.warning:
        click.echo(f"warning: {decided.warning}", err=True)
    if not dry_run:
        cluster.patch(name, patch)
    if output != "text":
        warned = {"warning": decided.warning} if decided.warning else {}
        print_data({"changed": not dry_run, "text": decided.text, **warned, "patch": patch, "command": command}, output)
    elif dry_run:
        click.echo(command)
    else:
        click.echo(f"{decided.text}\nsame as: {command}")


def _kubectl(cluster: ClusterClient, name: str, patch: dict[str, Any]) -> str:
    text = json.dumps(patch, separators=(",", ":"))
    where = ["-n", cluster.namespace, *cluster.flags]
    adapter = adapter_of(name)
    about = (RESOURCE, name) if adapter is None else (ADAPTER_RESOURCE, adapter)
    return shlex.join(["kubectl", "patch", *about, *where, "--type=merge", "-p", text])
