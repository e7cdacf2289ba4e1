"""Commands that show ModelDeployments and change nothing."""

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from slipway_cli.api import Json
from slipway_cli.cluster import saved
from slipway_cli.cluster.client import ClusterClient
from slipway_cli.cluster.exec import exec_in_pod
from slipway_cli.commands.options import (
    Duration,
    GoalType,
    complete_name,
    name_argument,
    output_option,
    print_data,
    with_cluster,
)
from slipway_cli.errors import CommandError, Forbidden, ObjectNotFound
from slipway_cli.objects import history, lease, pool
from slipway_cli.objects.deployment import Deployment, read_deployment
from slipway_cli.objects.history import RevisionRecord
from slipway_cli.objects.times import format_age
from slipway_cli.rollouts import waiting
from slipway_cli.views import live, table, tree
from slipway_cli.views.analysis import list_runs
from slipway_cli.views.status import View, build_view, to_data

T = TypeVar("T")


@click.command()
@click.argument("name", required=False)
@click.option("-A", "--all-namespaces", is_flag=True, help="List those of all namespaces.")
@output_option("table", "json", "yaml")
@with_cluster
def get(cluster: ClusterClient, name: str | None, all_namespaces: bool, output: str) -> None:
    """List ModelDeployments, or show one, with all columns of `kubectl get mdep -o wide`.

    modeladapter/NAME is a ModelAdapter, here and in the commands that show or change a rollout.
    """
    if name and all_namespaces:
        raise click.UsageError("give a name or -A, not both")
    if output != "table":
        print_data(cluster.deployment(name) if name else cluster.deployments(all_namespaces), output)
        return
    _print_table(cluster, name, all_namespaces)


def _print_table(cluster: ClusterClient, name: str | None, all_namespaces: bool) -> None:
    lines = table.format_server_table(cluster.table(name, all_namespaces), all_namespaces)
    where = "" if all_namespaces else f" in {cluster.namespace} namespace"
    click.echo("\n".join(lines)) if lines else click.echo(f"No resources found{where}.", err=True)


@click.command()
@click.argument("name", required=False, shell_complete=complete_name)
@click.option("-w", "--watch", is_flag=True, help="Continue until interrupted; not with -o json or yaml.")
@output_option("tree", "json", "yaml")
@with_cluster
def status(cluster: ClusterClient, name: str | None, watch: bool, output: str) -> None:
    """Show the state of a rollout: revisions, pods and why they are not ready, steps, what it waits for, last events.

    With --watch a terminal shows the tree live; elsewhere each change is a line. Without NAME it lists
    ModelDeployments, as `get` does.
    """
    if watch and output != "tree":
        raise click.UsageError(f"--watch and -o {output} do not go together")
    if name is None and (watch or output != "tree"):
        raise click.UsageError("give a NAME: without one, `slipway status` lists ModelDeployments as a table")
    if name is None:
        _print_table(cluster, None, all_namespaces=False)
        return
    is_terminal = sys.stdout.isatty()
    if watch:
        live.watch(lambda: _look(cluster, name), is_terminal)
        return
    seen = _look(cluster, name)
    if output == "tree":
        tree.open_console(is_terminal).print(tree.build_tree(seen, datetime.now(UTC)))
    else:
        print_data(to_data(seen), output)


@click.command("history")
@name_argument
@click.argument("revisions", nargs=-1)
@click.option("--diff", is_flag=True, help="Compare two revisions instead of listing them.")
@output_option("table", "json", "yaml")
@with_cluster
def history_(cluster: ClusterClient, name: str, revisions: tuple[str, ...], diff: bool, output: str) -> None:
    """List the kept revisions with their rejections, or compare the pod inputs of two of them.

    `history NAME --diff A B` compares two, `--diff A` one with the stable one, `--diff` alone what changed last. A and
    B are ordinals or hashes from the list.
    """
    if len(revisions) > 2 or (revisions and not diff):
        raise click.UsageError("revisions are compared: write history NAME --diff A B")
    of, records = _history(cluster, name)
    if diff:
        _print_diff(of, records, revisions)
    elif output == "table":
        columns = ("ordinal", "revision", "version", "image", "age", "role", "rejected")
        click.echo("\n".join(table.format_table(columns, (_history_row(of, item) for item in records))))
    else:
        print_data(to_data([_history_data(of, item) for item in records]), output)


@click.command()
@click.argument("name", required=False, shell_complete=complete_name)
@click.option("--file", metavar="FILE", help="Use no cluster: read objects as kubectl prints them, - for stdin.")
@click.option("--png", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Also draw a picture.")
@output_option("text", "json", "yaml")
@with_cluster
def analyze(cluster: ClusterClient, name: str | None, file: str | None, png: Path | None, output: str) -> None:
    """Judge the analyses of a rollout again, and show their evidence over time.

    The judge is the operator's own and sees what the AnalysisRuns hold: counts by metric, and their history. The status
    names the runs of the rollout in flight, or of the one that was rejected last; `kubectl get mdep,sar,atmpl -o json`
    saves them for later.
    """
    # Imported here, because numpy takes long to load.
    from slipway_cli.views import evidence, picture

    if not (name or file):
        raise click.UsageError("give a NAME, or --file FILE")
    obj, find = _from_file(file, name) if file else (cluster.deployment(str(name)), _in_cluster(cluster))
    try:
        runs = evidence.read_runs(obj, lambda run: find("AnalysisRun", run))
        found = {run.template: find("AnalysisTemplate", run.template) for run in runs.values()}
        reviews = evidence.judge_again(obj, runs, {key: item["spec"] for key, item in found.items() if item})
    except ValueError as error:
        raise CommandError(str(error)) from error
    if not reviews:
        raise CommandError(
            f"{obj['metadata']['name']} has no analysis: it had none, or its rollout is over; look while it runs"
        )
    if png:
        picture.draw(reviews, png)
    if output != "text":
        print_data(to_data(reviews), output)
        return
    click.echo("\n\n".join("\n".join(evidence.format_review(review)) for review in reviews))
    if png:
        click.echo(f"drawn into {png}", err=True)


@click.command()
@name_argument
@with_cluster
def explain(cluster: ClusterClient, name: str) -> None:
    """Print what the operator sees and what it would do next, as JSON.

    Runs `slipway-operator explain` in the pod of the operator that keeps this ModelDeployment, with that operator's
    own flags. Needs kubectl, and the rights to `get` pods and to `create` pods/exec in the operator's namespace.
    """
    place = lease.parse_place(cluster.deployment(name))
    holder = lease.find_holder(cluster.lease(*place), cluster.now()) if place else None
    if place is None or holder is None:
        raise CommandError(f"no operator keeps {name}: `slipway status {name}` shows what was written last")
    pod = cluster.pod(place[0], holder)
    if pod is None:
        raise CommandError(
            f"the operator {holder} is no pod of namespace {place[0]}: run `slipway-operator explain` there"
        )
    try:
        container, command = lease.explain_command(pod, cluster.namespace, name)
    except LookupError as error:
        raise CommandError(str(error.args[0])) from error
    click.echo(exec_in_pod(["-n", place[0], *cluster.flags], holder, container, command), nl=False)


@click.command()
@name_argument
@click.option(
    "--for",
    "goal",
    required=True,
    type=GoalType(),
    help="healthy: the spec's revision serves all requests. paused: a rollout waits. "
    "stable=REVISION: this revision, by its hash or spec.model.version, was promoted.",
)
@click.option("--timeout", type=Duration(), default="10m", help="Longest time to wait; default is 10m.")
@click.option("-q", "--quiet", is_flag=True, help="Print no progress.")
@with_cluster
def wait(cluster: ClusterClient, name: str, goal: waiting.Goal, timeout: float, quiet: bool) -> None:
    """Wait until a state is reached: for CI.

    Ends with 0 when it is reached, 3 when the time is over, 4 as soon as the revision is rejected.
    """
    seen = waiting.wait_until(
        goal,
        lambda: read_deployment(cluster.deployment(name)),
        timeout,
        clock=time.monotonic,
        sleep=time.sleep,
        report=(lambda line: None) if quiet else (lambda line: click.echo(line, err=True)),
    )
    click.echo(f"{name} is {goal}: {seen.message}")


Find = Callable[[str, str], Json | None]  # an object by kind and name


def _in_cluster(cluster: ClusterClient) -> Find:
    return lambda kind, name: cluster.analysis_run(name) if kind == "AnalysisRun" else cluster.analysis_template(name)


def _from_file(path: str, name: str | None) -> tuple[Json, Find]:
    """The ModelDeployment of this name, or the only one; and a look-up of other objects beside it."""
    objects = saved.read_objects(path)
    found = saved.select_kind(objects, "ModelDeployment")
    chosen = list(found.values()) if name is None else [found[name]] if name in found else []
    if len(chosen) != 1:
        there = ", ".join(sorted(found)) or "none"
        raise CommandError(
            f"{path} must hold the ModelDeployment that is meant, by NAME or as the only one; it holds: {there}"
        )
    return chosen[0], lambda kind, name: saved.select_kind(objects, kind).get(name)


def _look(cluster: ClusterClient, name: str) -> View:
    """Everything about one ModelDeployment; what the user may not read is named, and the rest is shown."""
    obj, notes = cluster.deployment(name), []

    def readable(what: str, read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except Forbidden as error:
            notes.append(f"{what}: {error}")
            return otherwise

    none: list[Json] = []
    pods = readable("pods", lambda: cluster.pods(name), none)
    events = readable("events", lambda: cluster.events(obj["metadata"]["uid"]), none)
    shared = readable("pool", lambda: _pool(cluster, obj), None)
    outdated = readable("whether an operator runs", lambda: _outdated(cluster, obj), None)
    runs = readable("analysis runs", lambda: [run for it in list_runs(obj) if (run := cluster.analysis_run(it))], none)
    return build_view(obj, pods, events, cluster.now(), notes, outdated=outdated, pool=shared, runs=runs)


def _pool(cluster: ClusterClient, obj: Json) -> pool.Pool | None:
    """The pool that serves a ModelDeployment; None without one. A condition shows that a named pool is missing."""
    name = pool.pool_of(obj)
    try:
        return pool.read_pool(cluster.pool(name), cluster.pool_pods(name)) if name else None
    except ObjectNotFound:
        return None


def _outdated(cluster: ClusterClient, obj: Json) -> str | None:
    where = lease.parse_place(obj)
    return lease.find_outage(where, cluster.lease(*where), cluster.now()) if where else None


def _history(cluster: ClusterClient, name: str) -> tuple[Deployment, list[RevisionRecord]]:
    of = read_deployment(cluster.deployment(name))
    return of, history.read_records(cluster.history(name), of.uid)


def _history_row(of: Deployment, item: RevisionRecord) -> tuple[object, ...]:
    age = format_age(item.created_at, datetime.now(UTC))
    role, rejections = history.find_role(of, item.revision), of.rejections(item.revision)
    return item.ordinal, item.revision, item.version, item.image, age, role, "; ".join(map(str, rejections))


def _history_data(of: Deployment, item: RevisionRecord) -> dict[str, Any]:
    role, rejections = history.find_role(of, item.revision), of.rejections(item.revision)
    return {**asdict(item), "role": role, "rejections": [asdict(rejection) for rejection in rejections]}


def _print_diff(of: Deployment, records: list[RevisionRecord], named: tuple[str, ...]) -> None:
    try:
        before, after = history.choose_pair(of, records, named)
        lines = history.compare(records, before, after)
    except LookupError as error:
        raise CommandError(str(error.args[0])) from error
    if not lines:
        click.echo(f"revisions {before} and {after} do not differ", err=True)
    colours = {"+": "green", "-": "red", "@": "cyan"}
    for line in lines:
        click.secho(line, fg=colours.get(line[0]))
