"""The verbs: each reads, decides in a pure room, and prints."""

import json
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import get_completion_class

from slipway_cli import deployment, history, intents, lease, live, saved, table, tree, view, waiting
from slipway_cli.deployment import Deployment, Json
from slipway_cli.errors import Forbidden, Trouble
from slipway_cli.history import Record
from slipway_cli.intents import Decision, Nothing
from slipway_cli.moments import since
from slipway_cli.options import (
    Duration,
    State,
    connected,
    deployment_name,
    merge,
    name_argument,
    output,
    print_data,
    where,
)

if TYPE_CHECKING:
    from slipway_cli.cluster import Cluster

T = TypeVar("T")

RESOURCE = "modeldeployments.slipway.dev"
DISTRIBUTION = "slipway"


class Verbs(click.Group):
    """Lists the verbs in the order of this file, which is that of a day's work."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In order of definition."""
        return list(self.commands)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@where
@click.pass_context
def cli(context: click.Context, /, **options: Any) -> None:
    """Look at ModelDeployments and steer their rollouts."""
    context.obj = merge(None, options)


# --- look -------------------------------------------------------------------------------------------------------------


@cli.command()
@click.argument("name", required=False)
@click.option("-A", "--all-namespaces", is_flag=True, help="List those of all namespaces.")
@output("table", "json", "yaml")
@connected
def get(cluster: "Cluster", name: str | None, all_namespaces: bool, output: str) -> None:
    """List ModelDeployments, or show one, with all columns of `kubectl get mdep -o wide`."""
    if name and all_namespaces:
        raise click.UsageError("give a name or -A, not both")
    if output != "table":
        print_data(cluster.deployment(name) if name else cluster.deployments(all_namespaces), output)
        return
    lines = table.of_server(cluster.table(name, all_namespaces), all_namespaces)
    where = "" if all_namespaces else f" in {cluster.namespace} namespace"
    click.echo("\n".join(lines)) if lines else click.echo(f"No resources found{where}.", err=True)


@cli.command()
@name_argument
@click.option("-w", "--watch", is_flag=True, help="Continue until interrupted; not with -o json or yaml.")
@output("tree", "json", "yaml")
@connected
def status(cluster: "Cluster", name: str, watch: bool, output: str) -> None:
    """Show the state of a rollout: revisions, pods and why they are not ready, steps, what it waits for, last events.

    With --watch a terminal shows the tree live; elsewhere each change is a line.
    """
    if watch and output != "tree":
        raise click.UsageError(f"--watch and -o {output} do not go together")
    is_terminal = sys.stdout.isatty()
    if watch:
        live.watch(lambda: _look(cluster, name), is_terminal)
        return
    seen = _look(cluster, name)
    if output == "tree":
        tree.console(is_terminal).print(tree.tree(seen, datetime.now(UTC)))
    else:
        print_data(view.as_data(seen), output)


@cli.command("history")
@name_argument
@click.argument("revisions", nargs=-1)
@click.option("--diff", is_flag=True, help="Compare two revisions instead of listing them.")
@output("table", "json", "yaml")
@connected
def history_(cluster: "Cluster", name: str, revisions: tuple[str, ...], diff: bool, output: str) -> None:
    """List the kept revisions, or compare the pod inputs of two of them.

    `history NAME --diff A B` compares two, `--diff A` one with the stable one, `--diff` alone what changed last. A and
    B are ordinals or hashes from the list.
    """
    if len(revisions) > 2 or (revisions and not diff):
        raise click.UsageError("revisions are compared: write history NAME --diff A B")
    of, records = _history(cluster, name)
    if diff:
        _print_diff(of, records, revisions)
    elif output == "table":
        columns = ("ordinal", "revision", "version", "image", "age", "role")
        click.echo("\n".join(table.lines(columns, (_history_row(of, item) for item in records))))
    else:
        print_data(
            view.as_data([{**asdict(item), "role": history.role(of, item.revision)} for item in records]), output
        )


@cli.command()
@click.argument("name", required=False, shell_complete=deployment_name)
@click.option("--file", metavar="FILE", help="Use no cluster: read objects as kubectl prints them, - for stdin.")
@click.option("--png", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Also draw a picture.")
@output("text", "json", "yaml")
@connected
def analyze(cluster: "Cluster", name: str | None, file: str | None, png: Path | None, output: str) -> None:
    """Judge the analyses of a rollout again, and show their evidence over time.

    The judge is the operator's own and sees what the status holds: counts by metric, and their history. A status keeps
    the analyses of the rollout in flight, or of the one that was rejected last; `kubectl get mdep,atmpl -o json` saves
    them for later.
    """
    # Here, so that other verbs do not wait for numpy.
    from slipway_cli import evidence, picture

    if not (name or file):
        raise click.UsageError("give a NAME, or --file FILE")
    obj, find = _from_file(file, name) if file else (cluster.deployment(str(name)), cluster.analysis_template)
    try:
        found = {template: find(template) for template in evidence.templates(obj)}
        reviews = evidence.reviews(obj, {key: item["spec"] for key, item in found.items() if item})
    except ValueError as error:
        raise Trouble(str(error)) from error
    if not reviews:
        raise Trouble(
            f"{obj['metadata']['name']} has no analysis: it had none, or its rollout is over; look while it runs"
        )
    if png:
        picture.draw(reviews, png)
    if output != "text":
        print_data(view.as_data(reviews), output)
        return
    click.echo("\n\n".join("\n".join(evidence.lines(review)) for review in reviews))
    if png:
        click.echo(f"drawn into {png}", err=True)


@cli.command()
@name_argument
@click.option(
    "--for",
    "goal",
    required=True,
    type=State(),
    help="healthy: the spec's revision serves all requests. paused: a rollout waits. "
    "stable=REVISION: this revision, by its hash or spec.model.version, was promoted.",
)
@click.option("--timeout", type=Duration(), default="10m", help="Longest time to wait; default is 10m.")
@click.option("-q", "--quiet", is_flag=True, help="Print no progress.")
@connected
def wait(cluster: "Cluster", name: str, goal: waiting.Goal, timeout: float, quiet: bool) -> None:
    """Wait until a state is reached: for CI.

    Ends with 0 when it is reached, 3 when the time is over, 4 as soon as the revision is rejected.
    """
    seen = waiting.until(
        goal,
        lambda: deployment.read(cluster.deployment(name)),
        timeout,
        clock=time.monotonic,
        sleep=time.sleep,
        tell=(lambda line: None) if quiet else (lambda line: click.echo(line, err=True)),
    )
    click.echo(f"{name} is {goal}: {seen.message}")


# --- steer ------------------------------------------------------------------------------------------------------------


def steering(command: Callable[..., Any]) -> Callable[..., Any]:
    """What all verbs share that change something."""
    dry_run = click.option("--dry-run", is_flag=True, help="Change nothing; print the equivalent kubectl command.")
    return name_argument(dry_run(output("text", "json", "yaml")(connected(command))))


@cli.command()
@click.option("--full", is_flag=True, help="Skip all remaining steps; still wait for readiness.")
@steering
def promote(cluster: "Cluster", name: str, full: bool, **printing: Any) -> None:
    """End the current pause of the rollout."""
    _steer(cluster, name, intents.promote_full if full else intents.promote, **printing)


@cli.command()
@steering
def abort(cluster: "Cluster", name: str, **printing: Any) -> None:
    """Reject the revision in flight; the stable one takes its traffic."""
    _steer(cluster, name, intents.abort, **printing)


@cli.command()
@steering
def retry(cluster: "Cluster", name: str, **printing: Any) -> None:
    """Start a new attempt of a rejected revision."""
    _steer(cluster, name, intents.retry, **printing)


@cli.command()
@click.option(
    "--to", metavar="REVISION", help="Ordinal or hash from `history`; default is the revision that served before."
)
@steering
def undo(cluster: "Cluster", name: str, to: str | None, **printing: Any) -> None:
    """Roll back to a former revision, without steps, until spec.model changes."""
    records = history.records(cluster.history(name), cluster.deployment(name)["metadata"]["uid"])
    _steer(cluster, name, lambda of: intents.undo(of, records, to), **printing)


@cli.command()
@steering
def pause(cluster: "Cluster", name: str, **printing: Any) -> None:
    """Hold the rollout; recovery, scaling and abort still work."""
    _steer(cluster, name, intents.pause, **printing)


@cli.command()
@steering
def resume(cluster: "Cluster", name: str, **printing: Any) -> None:
    """Continue a rollout that `pause` holds."""
    _steer(cluster, name, intents.resume, **printing)


# --- the tool itself --------------------------------------------------------------------------------------------------


@cli.command()
@click.option("--client", is_flag=True, help="Use no cluster.")
@output("text", "json", "yaml")
@click.pass_context
def version(context: click.Context, /, client: bool, output: str) -> None:
    """Print the versions of this program, of the API server, and of the ModelDeployment API that it serves."""
    found: dict[str, Any] = {"slipway": distribution_version(DISTRIBUTION)}
    if not client:
        found |= context.invoke(_server_versions)
    if output != "text":
        print_data(found, output)
        return
    for name, value in found.items():
        click.echo(f"{name}: {value if isinstance(value, str) else ', '.join(value) or 'not installed'}")


@click.command()
@connected
def _server_versions(cluster: "Cluster") -> dict[str, Any]:
    return {"kubernetes": cluster.version(), RESOURCE: cluster.served_versions()}


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes `slipway` in a shell: verbs, options and names.

    For this shell only: source <(slipway completion bash).
    """
    found = get_completion_class(shell)
    assert found, "click knows these three"
    click.echo(found(cli, {}, DISTRIBUTION, f"_{DISTRIBUTION.upper()}_COMPLETE").source())


# --- parts ------------------------------------------------------------------------------------------------------------


def _from_file(path: str, name: str | None) -> tuple[Json, Callable[[str], Json | None]]:
    """The ModelDeployment of this name, or the only one; and a look-up of AnalysisTemplates beside it."""
    objects = saved.objects(path)
    found = saved.of_kind(objects, "ModelDeployment")
    chosen = list(found.values()) if name is None else [found[name]] if name in found else []
    if len(chosen) != 1:
        there = ", ".join(sorted(found)) or "none"
        raise Trouble(
            f"{path} must hold the ModelDeployment that is meant, by NAME or as the only one; it holds: {there}"
        )
    return chosen[0], saved.of_kind(objects, "AnalysisTemplate").get


def _look(cluster: "Cluster", name: str) -> view.View:
    """Everything about one ModelDeployment; what the user may not read is named, and the rest is shown."""
    obj, notes = cluster.deployment(name), []

    def readable(what: str, read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except Forbidden as error:
            notes.append(f"{what}: {error}")
            return otherwise

    none: list[dict[str, Any]] = []
    pods = readable("pods", lambda: cluster.pods(name), none)
    events = readable("events", lambda: cluster.events(obj["metadata"]["uid"]), none)
    outdated = readable("whether an operator runs", lambda: _outdated(cluster, obj), None)
    return view.build(obj, pods, events, cluster.now(), notes, outdated=outdated)


def _outdated(cluster: "Cluster", obj: Json) -> str | None:
    where = lease.place(obj)
    return lease.outdated(where, cluster.lease(*where), cluster.now()) if where else None


def _history(cluster: "Cluster", name: str) -> tuple[Deployment, list[Record]]:
    of = deployment.read(cluster.deployment(name))
    return of, history.records(cluster.history(name), of.uid)


def _history_row(of: Deployment, item: Record) -> tuple[object, ...]:
    age = since(item.created_at, datetime.now(UTC))
    return item.ordinal, item.revision, item.version, item.image, age, history.role(of, item.revision)


def _print_diff(of: Deployment, records: list[Record], named: tuple[str, ...]) -> None:
    try:
        before, after = history.pair(of, records, named)
        lines = history.diff(records, before, after)
    except LookupError as error:
        raise Trouble(str(error.args[0])) from error
    if not lines:
        click.echo(f"revisions {before} and {after} do not differ", err=True)
    colours = {"+": "green", "-": "red", "@": "cyan"}
    for line in lines:
        click.secho(line, fg=colours.get(line[0]))


def _steer(cluster: "Cluster", name: str, decide: Callable[[Deployment], Decision], dry_run: bool, output: str) -> None:
    """Decide by the status as it is now, patch, and say what was done and how kubectl does the same."""
    decided = decide(deployment.read(cluster.deployment(name)))
    if isinstance(decided, Nothing):
        raise Trouble(decided.why)
    patch = {"spec": decided.spec}
    command = _kubectl(cluster, name, patch)
    if not dry_run:
        cluster.patch(name, patch)
    if output != "text":
        print_data({"changed": not dry_run, "text": decided.text, "patch": patch, "command": command}, output)
    elif dry_run:
        click.echo(command)
    else:
        click.echo(f"{decided.text}\nsame as: {command}")


def _kubectl(cluster: "Cluster", name: str, patch: dict[str, Any]) -> str:
    text = json.dumps(patch, separators=(",", ":"))
    where = ["-n", cluster.namespace, *cluster.flags]
    return shlex.join(["kubectl", "patch", RESOURCE, name, *where, "--type=merge", "-p", text])
