"""Commands about ModelRoutes: the list, and which rule a request would fit."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from slipway_cli.cluster.client import ClusterClient
from slipway_cli.commands.options import output_option, print_data, with_cluster
from slipway_cli.errors import CommandError
from slipway_cli.objects import model_route
from slipway_cli.objects.model_route import ModelRoute, RequestShape
from slipway_cli.views import table


@click.command("routes")
@click.argument("name", metavar="[ROUTE]", required=False)
@click.option("-A", "--all-namespaces", is_flag=True, help="List those of all namespaces.")
@output_option("table", "json", "yaml")
@with_cluster
def routes(cluster: ClusterClient, name: str | None, all_namespaces: bool, output: str) -> None:
    """List ModelRoutes, or show one, with all columns of `kubectl get modelroutes -o wide`."""
    if name and all_namespaces:
        raise click.UsageError("give a ROUTE or -A, not both")
    if output != "table":
        print_data(cluster.model_route(name) if name else cluster.model_routes(all_namespaces), output)
        return
    lines = table.format_server_table(cluster.model_route_table(name, all_namespaces), all_namespaces)
    where = "" if all_namespaces else f" in {cluster.namespace} namespace"
    click.echo("\n".join(lines)) if lines else click.echo(f"No resources found{where}.", err=True)


class Header(click.ParamType[tuple[str, str]]):
    """NAME=VALUE."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Name and value of a header; a usage error without a name."""
        if isinstance(value, tuple):
            return value
        header, mark, text = str(value).partition("=")
        if not mark or not header.strip():
            self.fail(f"{value!r} is no header: write NAME=VALUE", param, ctx)
        return header.strip(), text


class Moment(click.ParamType[datetime]):
    """A time in RFC 3339."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """The time; a usage error where it has no time zone."""
        if isinstance(value, datetime):
            return value
        try:
            moment = datetime.fromisoformat(str(value))
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            self.fail(f"{value!r} is no time with its zone: write for example 2026-01-31T22:30:00+01:00", param, ctx)
        return moment


@click.group("route")
def route() -> None:
    """Say what the rules of a ModelRoute do with a request."""


@route.command("explain")
@click.argument("name", metavar="NAME")
@click.option("--header", "headers", type=Header(), multiple=True, help="A header of the request; may be repeated.")
@click.option("--tenant", default="", help="Name of the Tenant that sends it; without it none does.")
@click.option("--prompt-bytes", type=click.IntRange(min=0), default=0, help="Bytes of the prompt; default is 0.")
@click.option("--tools", is_flag=True, help="The request has tools.")
@click.option("--images", is_flag=True, help="It has images.")
@click.option("--code", is_flag=True, help="It has code between fences.")
@click.option("--at", type=Moment(), metavar="TIME", help="When it arrives, as 2026-01-31T22:30:00Z; default is now.")
@click.option("--file", metavar="FILE", help="Use no cluster: read the modelRoutes of a routes file, - for stdin.")
@output_option("text", "json", "yaml")
@with_cluster
def explain(
    cluster: ClusterClient,
    name: str,
    headers: tuple[tuple[str, str], ...],
    tenant: str,
    prompt_bytes: int,
    *,
    file: str | None,
    at: datetime | None,
    output: str,
    **has: bool,
) -> None:
    """Show which rule a request fits, why it does not fit those before it, and where that rule leads.

    NAME is a ModelRoute or one of its public names. Nothing is sent: the rules are read and tried as gateways do.
    """
    contents = {f"has_{what}": holds for what, holds in has.items()}
    request = RequestShape(at or datetime.now(UTC), dict(headers), tenant, prompt_bytes, **contents)
    known = _from_file(file) if file else _from_cluster(cluster)
    way = model_route.follow(known, model_route.find(known, name), request)
    if output == "text":
        click.echo("\n".join(model_route.lines(way)))
    else:
        print_data(model_route.to_data(way), output)


def _from_cluster(cluster: ClusterClient) -> dict[str, ModelRoute]:
    items = cluster.model_routes(everywhere=False).get("items") or ()
    return {found.name: found for found in map(model_route.read_route, items)}


def _from_file(path: str) -> dict[str, ModelRoute]:
    import yaml  # help and completion start without it

    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        # As gateways read it: scalars stay texts.
        return model_route.read_file(yaml.load(text, yaml.BaseLoader))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CommandError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
