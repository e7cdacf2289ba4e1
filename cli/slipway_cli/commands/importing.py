"""`slipway import`: manifests of other tools in, manifests of ModelDeployments out."""

import click

from slipway_cli.cluster.saved import read_documents
from slipway_cli.errors import CommandError
from slipway_cli.importing.convert import convert
from slipway_cli.importing.fields import Unusable
from slipway_cli.importing.manifest import one_line, render, sentences

MOST_DOCUMENTS = 1000  # of all files


@click.command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--uri", default="", help="Model of a Rollout whose container does not name it, for example hf://org/model."
)
def import_(files: tuple[str, ...], uri: str) -> None:
    """Print ModelDeployments for manifests of KServe, Argo Rollouts, vLLM's production-stack and KubeAI.

    FILE is a file, or - for standard input. What does not map is named on standard error and in comments. Check the
    result by: slipway import FILE | kubectl apply --dry-run=server -f -
    """
    documents = [(path, number, one) for path in files for number, one in enumerate(read_documents(path))]
    if len(documents) > MOST_DOCUMENTS:
        raise CommandError(f"there are {len(documents)} manifests: import up to {MOST_DOCUMENTS} at once")
    refused, printed = list[str](), 0
    for path, number, document in documents:
        try:
            found = convert(document, uri)
        except Unusable as error:
            refused.append(f"{path}, manifest {number + 1}: {error}")
            continue
        for made in found:
            click.echo(("---\n" if printed else "") + render(made), nl=False)
            printed += 1
            for note in sentences(made):
                click.echo(f"{made.name}: {note}", err=True)
    for sentence in refused:
        click.echo(f"error: {one_line(sentence)}", err=True)
    if refused:
        raise CommandError(f"{len(refused)} of {len(documents)} manifests were not imported")
