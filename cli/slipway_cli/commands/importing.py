"""`slipway import`: manifests of other tools in, manifests of ModelDeployments and ModelAdapters out."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from slipway_cli.cluster.saved import STDIN, read_documents
from slipway_cli.errors import CommandError
from slipway_cli.importing.convert import Unknown, Workloads, convert
from slipway_cli.importing.fields import Unusable
from slipway_cli.importing.manifest import Imported, one_line, render, sentences

MOST_DOCUMENTS = 1000  # of all files
MOST_FILES = 1000  # of a folder, with those below it
_SUFFIXES = (".yaml", ".yml", ".json")
Key = tuple[str, str, str]


class Document(NamedTuple):
    """One manifest. `chosen`: its file was named, and is not one of a folder."""

    place: str
    value: Any
    chosen: bool


@click.command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--uri", default="", help="Model of a Rollout whose container does not name it, for example hf://org/model."
)
def import_(files: tuple[str, ...], uri: str) -> None:
    """Print ModelDeployments and ModelAdapters for manifests of other tools.

    FILE is a file with one manifest or many, a folder, whose .yaml, .yml and .json files are read with those below it,
    or - for standard input. What does not map is named on standard error and in comments. Check the result by:
    slipway import FILE | kubectl apply --dry-run=server -f -

    \b
    Kinds that are read:
    - KServe: InferenceService (v1beta1), LLMInferenceService (v1alpha1, v1alpha2);
    - Argo Rollouts: Rollout, with the Deployment that its workloadRef names;
    - KubeAI: Model;
    - vLLM's production-stack: values of the chart, LoraAdapter.

    In a folder other kinds are left out; in a file that is named they are an error.
    """
    documents = _documents(files)
    found, refused = _convert(documents, uri)
    for number, made in enumerate(found):
        click.echo(("---\n" if number else "") + render(made), nl=False)
        for note in sentences(made):
            click.echo(f"{made.name}: {note}", err=True)
    for sentence in refused:
        click.echo(f"error: {one_line(sentence)}", err=True)
    if refused:
        raise CommandError(f"{len(refused)} of {len(documents)} manifests were not imported")
    if not found:
        raise CommandError("there is no manifest of a kind that is read: see slipway import --help")


def _convert(documents: list[Document], uri: str) -> tuple[list[Imported], list[str]]:
    """What the documents become, and a sentence for each that becomes nothing."""
    workloads = _workloads(documents)
    refused, found = list[str](), dict[Key, Imported]()
    for place, value, chosen in documents:
        try:
            _add(found, convert(value, uri, workloads))
        except Unknown as error:
            if any(value is one for one in workloads.values()):
                click.echo(f"left out: {one_line(place)}: a Deployment is read for a workloadRef alone", err=True)
            elif not chosen:
                click.echo(f"left out: {one_line(f'{place}: {error}')}", err=True)
            else:
                refused.append(f"{place}: {error}")
        except Unusable as error:
            refused.append(f"{place}: {error}")
    return list(found.values()), refused


def _add(found: dict[Key, Imported], converted: list[Imported]) -> None:
    """Raises Unusable where an object has the name of another, which it would replace."""
    for made in converted:
        if (made.kind, made.namespace, made.name) in found:
            raise Unusable(f"another manifest is already the {made.kind} {made.name}: give one of them another name")
    found.update({(made.kind, made.namespace, made.name): made for made in converted})


def _documents(files: tuple[str, ...]) -> list[Document]:
    documents = list[Document]()
    for path, chosen in _paths(files):
        for number, value in enumerate(read_documents(path)):
            items = value.get("items") if isinstance(value, dict) and str(value.get("kind")).endswith("List") else None
            if isinstance(items, list):
                place = f"{path}, manifest {number + 1}, item"
                documents += [Document(f"{place} {index + 1}", one, chosen) for index, one in enumerate(items)]
            else:
                documents.append(Document(f"{path}, manifest {number + 1}", value, chosen))
        if len(documents) > MOST_DOCUMENTS:
            raise CommandError(f"there are more than {MOST_DOCUMENTS} manifests: import fewer at once")
    return documents


def _paths(files: tuple[str, ...]) -> Iterator[tuple[str, bool]]:
    for path in files:
        if path == STDIN or not Path(path).is_dir():
            yield path, True
            continue
        below = sorted(one for one in Path(path).rglob("*") if one.suffix in _SUFFIXES and one.is_file())
        if len(below) > MOST_FILES:
            raise CommandError(f"{path} has more than {MOST_FILES} files: name a smaller folder")
        for one in below:
            yield str(one), False


def _workloads(documents: list[Document]) -> Workloads:
    """The Deployments among the documents, for the workloadRef of Rollouts."""
    return {
        (str(metadata.get("namespace") or ""), str(metadata.get("name") or "")): value
        for _, value, _ in documents
        if isinstance(value, dict) and value.get("kind") == "Deployment"
        if isinstance(metadata := value.get("metadata"), dict)
    }
