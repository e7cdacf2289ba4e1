"""`slipway cost`: what deployments and their revisions cost, and what a token and a request of them costs."""

from typing import Any

import click

from slipway_cli.api import Json
from slipway_cli.cluster import ledgers, operator_page
from slipway_cli.cluster.client import ClusterClient
from slipway_cli.commands.options import Duration, Number, complete_name, output_option, print_data, with_cluster
from slipway_cli.commands.tenants import GATEWAYS
from slipway_cli.errors import CommandError
from slipway_cli.objects import lease, usage
from slipway_cli.sizing import costs
from slipway_cli.sizing.costs import Revision
from slipway_cli.views import costs as views

GONE = "pods that are gone are not in the cost: it is a lower bound where a rollout or a scale-down was in the time"
KEYS = "requests and tokens are those of the ledger, which has requests of Tenants alone"


@click.command("cost")
@click.argument("name", required=False, shell_complete=complete_name)
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Of all namespaces.")
@click.option("--window", type=Duration(), default="24h", help="How far back, in whole hours of UTC; default is 24h.")
@click.option("--price-hour", type=Number(0, 1e9, min_open=True), help="Price of each pod, not the operator's.")
@click.option(
    "--gateways",
    default=GATEWAYS,
    metavar="NAMESPACE",
    help=f"Namespace of the release's gateways, which have the ledger; default is {GATEWAYS}.",
)
@output_option("table", "json", "yaml")
@with_cluster
def cost(
    cluster: ClusterClient,
    name: str | None,
    everywhere: bool,
    window: float,
    price_hour: float | None,
    gateways: str,
    output: str,
) -> None:
    """Show what each revision costs: an hour now, in the time, by million tokens and by 1,000 requests.

    Prices are those of the operator (`pricing` of the chart), whose metrics it reads through the API server; tokens and
    requests are those of the gateways' ledgers. The hours are those of pods that exist now. Prometheus has those of
    pods that are gone too (docs/metrics.md).
    """
    if name and everywhere:
        raise click.UsageError("give a NAME, or -A")
    objects = [cluster.deployment(name)] if name else cluster.deployments(everywhere)["items"]
    pods = cluster.pods(name) if name else cluster.model_pods(everywhere)
    now = cluster.now()
    first, end = usage.hours(now, window)
    notes = [GONE]
    prices = _prices(cluster, objects, pods, price_hour, notes)
    rows = _rows(cluster, gateways, (first, end), notes)
    try:
        served = None if rows is None else costs.served_of(rows, costs.names_of(objects))
    except ValueError as error:
        raise CommandError(str(error)) from error
    found = costs.costs_of(pods, prices, served, first * usage.HOUR_S, now)
    if output != "table":
        print_data([views.data_of(each) for each in found], output)
    elif found:
        click.echo("\n".join(views.cost_table(found)))
    else:
        click.echo("No pods and no usage found.", err=True)
    notes += views.remarks(found, objects)
    for note in notes:
        click.echo(f"note: {note}", err=True)


def _prices(
    cluster: ClusterClient, objects: list[Json], pods: list[Json], price_hour: float | None, notes: list[str]
) -> dict[Revision, float]:
    """Prices of pods by revision; a note for each operator that cannot be read."""
    if price_hour is not None:
        return dict.fromkeys(costs.revisions_of(pods), price_hour)
    prices: dict[Revision, float] = {}
    for place in sorted({found for item in objects if (found := lease.parse_place(item))}):
        try:
            holder = lease.find_holder(cluster.lease(*place), cluster.now())
            if holder is None:
                raise CommandError("no operator runs")
            prices |= costs.prices_of(operator_page.metrics(cluster, place[0], holder))
        except CommandError as error:
            notes.append(f"the operator's prices cannot be read ({error}): give --price-hour, the price of a pod")
    return prices


def _rows(
    cluster: ClusterClient, gateways: str, hours: tuple[int, int], notes: list[str]
) -> list[dict[str, Any]] | None:
    """Rows of the ledgers; None with a note where they cannot be read."""
    try:
        rows = ledgers.rows(cluster, gateways, hours, "")
    except CommandError as error:
        notes.append(f"the ledger cannot be read, so there are no tokens and requests: {error}")
        return None
    notes.append(KEYS)
    return rows
