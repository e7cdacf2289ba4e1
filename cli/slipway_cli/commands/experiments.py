"""Commands about Experiments: the list, what their counts say, and which arm a unit gets."""

from datetime import UTC, datetime

import click

from slipway_cli.cluster.client import ClusterClient
from slipway_cli.commands.options import output_option, print_data, with_cluster
from slipway_cli.objects import experiment as objects
from slipway_cli.views import table


@click.command("experiments")
@click.argument("name", metavar="[EXPERIMENT]", required=False)
@click.option("-A", "--all-namespaces", is_flag=True, help="List those of all namespaces.")
@output_option("table", "json", "yaml")
@with_cluster
def experiments(cluster: ClusterClient, name: str | None, all_namespaces: bool, output: str) -> None:
    """List Experiments, or show one, with all columns of `kubectl get experiments -o wide`."""
    if name and all_namespaces:
        raise click.UsageError("give an EXPERIMENT or -A, not both")
    if output != "table":
        print_data(cluster.experiment(name) if name else cluster.experiments(all_namespaces), output)
        return
    lines = table.format_server_table(cluster.experiment_table(name, all_namespaces), all_namespaces)
    where = "" if all_namespaces else f" in {cluster.namespace} namespace"
    click.echo("\n".join(lines)) if lines else click.echo(f"No resources found{where}.", err=True)


@click.group("experiment")
def experiment() -> None:
    """Say what an Experiment proves, and which arm a unit gets."""


@experiment.command("status")
@click.argument("name", metavar="NAME")
@output_option("text", "json", "yaml")
@with_cluster
def status(cluster: ClusterClient, name: str, output: str) -> None:
    """Show units, outcomes and differences by arm, with intervals that may be read at any time, and the verdict.

    All intervals of an experiment hold together, at all times, with a probability of 95 %.
    """
    obj = cluster.experiment(name)
    if output != "text":
        print_data(obj.get("status") or {}, output)
        return
    columns, rows = objects.arm_rows(obj)
    shown = table.format_table(columns, rows) if rows else []
    click.echo("\n".join([*objects.status_lines(obj), *shown]))


@experiment.command("explain")
@click.argument("name", metavar="NAME")
@click.option("--unit", required=True, help="The unit, as requests have it: the value of the header, or the user.")
@click.option("--tenant", default="", help="Name of the Tenant that sends it; without it none does.")
@output_option("text", "json", "yaml")
@with_cluster
def explain(cluster: ClusterClient, name: str, unit: str, tenant: str, output: str) -> None:
    """Show which arm a unit gets, and why.

    Nothing is sent: the unit is placed as gateways place it, by what they follow now.
    """
    found = objects.explain(cluster.experiment(name), unit, tenant, datetime.now(UTC))
    if output == "text":
        click.echo("\n".join(objects.explained_lines(found)))
    else:
        print_data(objects.explained_data(found), output)
