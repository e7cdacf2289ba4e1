"""`slipway plan`: what models with their demand need of GPUs, and at which price."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from slipway_cli.commands.options import output_option, print_data
from slipway_cli.errors import CommandError
from slipway_cli.objects.times import HOURS_PER_MONTH
from slipway_cli.packing.plan import Plan, plan
from slipway_cli.packing.request import read
from slipway_cli.views.table import format_table


@click.command("plan")
@click.argument("file", type=click.Path(path_type=Path))
@output_option("text", "json", "yaml")
def plan_(file: Path, output: str) -> None:
    """Plan pods and GPUs for the models in FILE: their demand, and what a pod carries of it by type of GPU.

    It uses no cluster. The price is beside a lower bound. The exit status is 1 where a model does not fit.
    """
    try:
        made = plan(read(file.read_bytes()))
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CommandError(f"{file}: {error}") from error
    if output == "text":
        click.echo("\n".join(_lines(made)))
    else:
        print_data(asdict(made), output)
    if made.left_out:
        raise SystemExit(1)


def _lines(made: Plan) -> Iterator[str]:
    rows = [(model.model, model.gpu_type, model.pods, f"{model.used:.0%}") for model in made.models]
    yield from format_table(["model", "gpu", "pods", "used"], rows)
    yield ""
    gpus = [(gpu.gpu_type, gpu.gpus, f"{gpu.gpus * gpu.price_per_hour:.2f}") for gpu in made.gpus]
    yield from format_table(["gpu", "number", "price per hour"], gpus)
    yield ""
    for gpu in made.gpus:
        for shared in gpu.shared:
            if len(shared) > 1 or max(shared.values()) > 1:
                yield f"shared {gpu.gpu_type}: {', '.join(f'{count} x {name}' for name, count in shared.items())}"
    month = made.price_per_hour * HOURS_PER_MONTH
    yield f"{made.price_per_hour:.2f} an hour, {month:.0f} a month; no plan costs less than {made.bound:.2f} an hour"
    for name, why in made.left_out.items():
        yield f"{name} does not fit: {why}"
