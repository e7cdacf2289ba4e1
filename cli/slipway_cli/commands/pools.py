"""Commands about ModelPools, which serve many classic models."""

import click

from slipway_cli.cluster.client import ClusterClient
from slipway_cli.commands.options import complete_pool_name, output_option, print_data, with_cluster
from slipway_cli.objects import pool
from slipway_cli.views import table

COLUMNS = ("model", "modeldeployment", "revision", "role", "loaded", "reason")


@click.command("pools")
@click.argument("name", metavar="[POOL]", required=False, shell_complete=complete_pool_name)
@click.option("-A", "--all-namespaces", is_flag=True, help="List those of all namespaces.")
@output_option("table", "json", "yaml")
@with_cluster
def pools(cluster: ClusterClient, name: str | None, all_namespaces: bool, output: str) -> None:
    """List ModelPools, or show the models of one: which are in memory, and why one is not served.

    LOADED is the number of pods that have the model in memory; others load it with its first request.
    """
    if name and all_namespaces:
        raise click.UsageError("give a POOL or -A, not both")
    if output != "table":
        print_data(cluster.pool(name) if name else cluster.pools(all_namespaces), output)
    elif name:
        click.echo("\n".join(_lines(pool.read_pool(cluster.pool(name)))))
    else:
        lines = table.format_server_table(cluster.pool_table(all_namespaces), all_namespaces)
        where = "" if all_namespaces else f" in {cluster.namespace} namespace"
        click.echo("\n".join(lines)) if lines else click.echo(f"No resources found{where}.", err=True)


def _lines(found: pool.Pool) -> list[str]:
    rows = [
        (one.model, one.deployment, one.revision, "stable" if one.stable else "", one.loaded, one.reason)
        for one in found.entries
    ]
    return [f"{found.name}  {found.describe()}", *found.problems, *(table.format_table(COLUMNS, rows) if rows else ())]
