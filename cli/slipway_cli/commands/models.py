"""The command about models of a registry."""

import click

from slipway_cli.cluster.client import ClusterClient
from slipway_cli.commands.options import output_option, print_data, with_cluster
from slipway_cli.errors import CommandError
from slipway_cli.objects import registered_model
from slipway_cli.views import table
from slipway_cli.views.status import to_data

COLUMNS = ("model", "version", "aliases", "serves")


@click.command("models")
@click.argument("name", metavar="[MODEL]", required=False)
@click.option("-A", "--all-namespaces", is_flag=True, help="From the ModelDeployments of all namespaces.")
@output_option("table", "json", "yaml")
@with_cluster
def models(cluster: ClusterClient, name: str | None, all_namespaces: bool, output: str) -> None:
    """List versions of registered models: their aliases, and which ModelDeployment serves one, with its weight.

    It shows what the operator found in the model registry for ModelDeployments whose spec.model.uri is models:/:
    versions with an alias, the newest one, and those that have pods.
    """
    found = registered_model.list_versions(cluster.deployments(all_namespaces).get("items") or ())
    chosen = [one for one in found if name in (None, one.model)]
    if name and not chosen:
        known = sorted({one.model for one in found})
        advice = f": known are {', '.join(known)}" if known else ""
        raise CommandError(f"no ModelDeployment names a registered model {name}{advice}")
    if output != "table":
        print_data({"items": to_data(chosen)}, output)
    elif chosen:
        rows = [
            (
                one.model,
                one.version,
                ", ".join((*one.aliases, *(["(newest)"] if one.newest else []))),
                ", ".join(one.served),
            )
            for one in chosen
        ]
        click.echo("\n".join(table.format_table(COLUMNS, rows)))
    else:
        click.echo("No registered models found: no ModelDeployment has a models:/ URI.", err=True)
