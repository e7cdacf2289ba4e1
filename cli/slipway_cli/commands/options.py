"""Options of many commands: which cluster, and the output format."""

import functools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import click
import yaml

from slipway_cli.api import Json
from slipway_cli.cluster.access import Access
from slipway_cli.cluster.client import ClusterClient
from slipway_cli.errors import CommandError
from slipway_cli.objects.times import parse_duration_s
from slipway_cli.rollouts import waiting

F = TypeVar("F", bound=Callable[..., Any])

COMPLETION_TIMEOUT_S = 2  # a shell that waits longer for a name is worse than none


class Duration(click.ParamType[float]):
    """A duration: 30s, 10m, 1h30m, or a number of seconds. Its value is in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds of a duration; a usage error if the text is none."""
        if isinstance(value, int | float):
            return value
        try:
            return parse_duration_s(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Number(click.FloatRange):
    """A number within bounds; nan, which is above no bound and below none, is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; a usage error if it is outside."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"nan is not in the range {self._describe_range()}.", param, ctx)
        return number


class GoalType(click.ParamType[waiting.Goal]):
    """healthy, paused or stable=REVISION."""

    name = "state"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> waiting.Goal:
        """The goal that a text names; a usage error if it names none."""
        try:
            return waiting.parse_goal(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def add_cluster_options(command: F) -> F:
    """Options that choose the cluster. They may precede or follow the command."""
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


def with_cluster(command: F) -> Callable[..., Any]:
    """Adds the cluster options to a command, which gets a `cluster` in their place."""

    @functools.wraps(command)
    @add_cluster_options
    @click.pass_context
    def run(context: click.Context, /, *given: Any, **options: Any) -> Any:
        access = merge(context.obj, options)
        return command(*given, cluster=connect(access), **options)

    return run


def merge(outer: Access | None, options: dict[str, Any]) -> Access:
    """Remove the cluster options from `options`; those that are set override `outer`, given before the command."""
    names = ("namespace", "context", "kubeconfig")
    given_options = {name: options.pop(name, None) for name in names}
    given_options["request_timeout_s"] = options.pop("request_timeout", None)
    return replace(outer or Access(), **{name: value for name, value in given_options.items() if value})


def connect(access: Access) -> ClusterClient:
    """A client of the cluster."""
    return ClusterClient(access)


def complete_name(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete a ModelDeployment's name; errors complete nothing."""
    return _complete(context, lambda cluster: cluster.deployments(everywhere=False), incomplete)


def complete_pool_name(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete a ModelPool's name; errors complete nothing."""
    return _complete(context, lambda cluster: cluster.pools(everywhere=False), incomplete)


def _complete(context: click.Context, listed: Callable[[ClusterClient], Json], incomplete: str) -> list[str]:
    # Nothing is invoked while a shell completes, so the options before the command are still on their own context.
    outer = merge(None, dict(context.parent.params)) if context.parent else None
    access = replace(merge(outer, dict(context.params)), request_timeout_s=COMPLETION_TIMEOUT_S)
    try:
        items = listed(connect(access))["items"]
    except CommandError:
        return []
    return [name for item in items if (name := item["metadata"]["name"]).startswith(incomplete)]


name_argument = click.argument("name", shell_complete=complete_name)


def output_option(*formats: str) -> Callable[[F], F]:
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
