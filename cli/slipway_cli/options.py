"""Options that many verbs share: where the cluster is, and how to print."""

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click
import yaml

from slipway_cli import waiting
from slipway_cli.access import Access
from slipway_cli.errors import Trouble
from slipway_cli.moments import parse_duration_s

if TYPE_CHECKING:
    from slipway_cli.cluster import Cluster

F = TypeVar("F", bound=Callable[..., Any])

COMPLETION_TIMEOUT_S = 2  # a shell that waits longer for a name is worse than none


class Duration(click.ParamType[float]):
    """30s, 10m, 1h30m, or a number of seconds; seconds in Python."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it, or fail as a usage error."""
        if isinstance(value, int | float):
            return value
        try:
            return parse_duration_s(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class State(click.ParamType[waiting.Goal]):
    """healthy, paused or stable=REVISION."""

    name = "state"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> waiting.Goal:
        """Read it, or fail as a usage error."""
        try:
            return waiting.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def where(command: F) -> F:
    """The options that say where the cluster is. They may stand before the verb or after it."""
    chosen: tuple[Callable[[F], F], ...] = (
        click.option("-n", "--namespace", help="Namespace; default is that of the kubeconfig's context."),
        click.option("--context", help="Context of the kubeconfig; default is its current one."),
        click.option("--kubeconfig", help="File to read; default is $KUBECONFIG, else ~/.kube/config."),
        click.option(
            "--request-timeout",
            type=Duration(),
            help="Longest time for one response of the API server; default is 10s.",
        ),
    )
    for option in reversed(chosen):
        command = option(command)
    return command


def connected(command: F) -> Callable[..., Any]:
    """A verb that gets a `cluster` made of those options."""

    @functools.wraps(command)
    @where
    @click.pass_context
    def run(context: click.Context, /, *given: Any, **options: Any) -> Any:
        access = merge(context.obj, options)
        return command(*given, cluster=connect(access), **options)

    return run


def merge(outer: Access | None, options: dict[str, Any]) -> Access:
    """Take the options out and lay them over those that stood before the verb."""
    names = ("namespace", "context", "kubeconfig")
    said = {name: options.pop(name, None) for name in names}
    said["request_timeout_s"] = options.pop("request_timeout", None)
    return replace(outer or Access(), **{name: value for name, value in said.items() if value})


def connect(access: Access) -> "Cluster":
    """A client of the cluster."""
    # Here, so that help and completion do not wait for the client library.
    from slipway_cli.cluster import Cluster

    return Cluster(access)


def deployment_name(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Completes a ModelDeployment's name; a shell that presses tab hears of no error."""
    # Nothing is invoked while a shell completes, so the options before the verb are still on their own context.
    outer = merge(None, dict(context.parent.params)) if context.parent else None
    access = replace(merge(outer, dict(context.params)), request_timeout_s=COMPLETION_TIMEOUT_S)
    try:
        items = connect(access).deployments(everywhere=False)["items"]
    except Trouble:
        return []
    return [name for item in items if (name := item["metadata"]["name"]).startswith(incomplete)]


name_argument = click.argument("name", shell_complete=deployment_name)


def output(*formats: str) -> Callable[[F], F]:
    """The option -o; the first format is the default."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats),
        default=formats[0],
        help=f"How to print; default is {formats[0]}.",
    )


def print_data(value: Any, form: str) -> None:
    """Print JSON or YAML."""
    click.echo(json.dumps(value, indent=2) if form == "json" else yaml.safe_dump(value, sort_keys=False).rstrip())
