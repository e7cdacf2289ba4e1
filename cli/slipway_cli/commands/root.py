"""`slipway`: the group with all commands, in the order in which help lists them."""

from typing import Any

import click

from slipway_cli.commands import (
    batches,
    cost,
    experiments,
    importing,
    look,
    models,
    planning,
    pools,
    routes,
    sizing,
    steer,
    tenants,
    tool,
    verdicts,
)
from slipway_cli.commands.options import add_cluster_options, merge

COMMANDS = (
    *(look.get, look.status, look.history_, look.analyze, look.explain, look.wait),
    *(steer.promote, steer.abort, steer.retry, steer.undo, steer.pause, steer.resume),
    pools.pools,
    models.models,
    verdicts.verdict,
    *(planning.plan_, sizing.bench, sizing.size, cost.cost),
    *(routes.routes, routes.route),
    *(experiments.experiments, experiments.experiment),
    *(tenants.tenants, tenants.keys, tenants.usage_),
    *(batches.batches, batches.jobs),
    importing.import_,
    *(tool.audit, tool.version, tool.completion),
)


ELSEWHERE = {"watch": "slipway status NAME --watch"}


class OrderedGroup(click.Group):
    """Lists the commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In order of addition."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; one of another tool's that has another name here is named in the error."""
        if args and args[0] in ELSEWHERE:
            ctx.fail(f"No such command {args[0]!r}. Use `{ELSEWHERE[args[0]]}`.")
        return super().resolve_command(ctx, args)


@click.group(cls=OrderedGroup, context_settings={"help_option_names": ["-h", "--help"]})
@add_cluster_options
@click.pass_context
def cli(context: click.Context, /, **options: Any) -> None:
    """Look at ModelDeployments, steer their rollouts, administer Tenants, and run batches."""
    context.obj = merge(None, options)


for command in COMMANDS:
    cli.add_command(command)
