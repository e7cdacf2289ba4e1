"""The command line: `python -m devcluster COMMAND`. Progress goes to standard error, answers to standard output."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import click
from rich.console import Console

from devcluster import pins
from devcluster.controlplane import ControlPlane
from devcluster.errors import DevclusterError
from devcluster.gobuild import all_binaries, build_steps, drop_build_caches
from devcluster.images import nodeimage, project
from devcluster.node import access, cluster, leader_worker_set, metrics_server
from devcluster.places import demand_space, exclusive, places
from devcluster.steps.progress import print_line, run_steps
from devcluster.tools import tool

_console = Console(stderr=True, soft_wrap=True)
_TORCH = click.Choice(["mount", "layer"])


class _Sentences(click.Group):
    """Prints our errors as sentences and everything else as a bug."""

    def invoke(self, context: click.Context) -> object:
        try:
            return super().invoke(context)
        except DevclusterError as error:
            print_line(_console, f"devcluster: {error}")
            sys.exit(1)


@click.group(cls=_Sentences, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """A real Kubernetes cluster on this machine, for the demo and the tests.

    The engine is docker when its daemon answers, else podman. Where no registry answers, the node image is built here
    once, from Go modules and Debian packages. Everything lies in $XDG_CACHE_HOME/slipway (default ~/.cache/slipway);
    SLIPWAY_CLUSTER gives a second cluster a name of its own.
    """


@main.command()
@click.option("--port", type=click.IntRange(1, 65535), help="The gateway's on 127.0.0.1 (default 18080, or near).")
@click.option("--torch", type=_TORCH, default="mount", envvar="SLIPWAY_TORCH", show_default=True,
              help="How torch reaches pods: mounted by the runtime, or as a layer of the server image.")  # fmt: skip
@click.option("--images", "with_images", is_flag=True,
              help="Where it has to be brought up, build and load the project's images meanwhile.")  # fmt: skip
@click.option("--workers", type=click.IntRange(0, 8), default=0, envvar="SLIPWAY_WORKERS", show_default=True,
              help="Nodes beside the control plane, which runs pods, too.")  # fmt: skip
def up(port: int | None, torch: str, with_images: bool, workers: int) -> None:
    """Bring the cluster up; does nothing when it runs already."""
    started = time.monotonic()
    where = places()
    beside = project.beside if with_images else None
    record = cluster.up(where, _console, port=port, torch_mount=torch == "mount", beside=beside, workers=workers)
    print_line(_console, f"cluster {where.cluster} is up ({time.monotonic() - started:.1f} s)")
    click.echo(f"export KUBECONFIG={where.kubeconfig}")
    click.echo(f"# the gateway's node port {cluster.GATEWAY_NODE_PORT} is http://127.0.0.1:{record.gateway_port}")


@main.command()
def down() -> None:
    """Take the cluster away and restore the host; the cache stays."""
    started = time.monotonic()
    if cluster.down(places(), _console):
        print_line(_console, f"gone ({time.monotonic() - started:.1f} s)")
    else:
        print_line(_console, "nothing to take away")


@main.command()
def status() -> None:
    """Show what runs and what is built; exits 1 when the cluster is not up."""
    where = places()
    healthy = access.describe(where, click.echo)
    sys.exit(0 if healthy else 1)


@main.command()
def kubeconfig() -> None:
    """Print the path of the cluster's kubeconfig."""
    click.echo(access.kubeconfig(places()))


@main.command()
@click.option("--torch", type=_TORCH, default=None, envvar="SLIPWAY_TORCH", help="Default: as the cluster was made.")
@click.option("--load/--no-load", default=True, show_default=True, help="Load them into the running cluster.")
def images(torch: str | None, load: bool) -> None:
    """Build the project's images from its Dockerfiles, load them, print their names (NAME=REFERENCE lines)."""
    for name, reference in project.build_and_load(places(), _console, torch=torch, load=load).items():
        click.echo(f"{name}={reference}")


@main.command()
@click.argument("name", type=click.Choice(sorted([*project.ENGINES, project.SIMULATOR])))
def engine(name: str) -> None:
    """Build the image of another engine, load it into the cluster, print its name (some minutes; vllm-cpu: some GB)."""
    click.echo(project.build_engine(places(), _console, name))


@main.command("metrics-server")
def install_metrics_server() -> None:
    """Install metrics-server, for autoscaling by CPU and memory (compiled once, about 2 minutes)."""
    metrics_server.ADDON.install(places(), _console)


@main.command("leader-worker-set")
def install_leader_worker_set() -> None:
    """Install LeaderWorkerSet, for replicas of several pods (compiled once, about 2 minutes)."""
    leader_worker_set.ADDON.install(places(), _console)


@main.command()
@click.argument("what")
def load(what: str) -> None:
    """Load an image archive (a file) or an image of the engine (a reference) into the cluster."""
    access.load(places(), what)


@main.command()
@click.option("--to", "folder", type=click.Path(path_type=Path), default="devcluster-logs", show_default=True)
def logs(folder: Path) -> None:
    """Export the logs of the node and of all pods into a folder."""
    access.export_logs(places(), folder)
    click.echo(folder)


@main.command()
@click.argument("command", nargs=-1)
def shell(command: tuple[str, ...]) -> None:
    """Open a shell in the node, or run COMMAND there."""
    sys.exit(access.shell(places(), command))


@main.command()
@click.argument("what", nargs=-1)
def build(what: tuple[str, ...]) -> None:
    """Build binaries ahead of time: `control-plane`, `all` (default) or names such as kubectl, helm, kind."""
    where = places()
    names = _binaries_of(what or ("all",))
    with exclusive(where):
        steps = build_steps(where, names)
        if not all(step.done() for step in steps):
            demand_space(where.cache, 9, "Compiling the Go modules")
        seconds = run_steps(steps, _console)
        # What a node still needs is compiled from the same objects, in a tenth of the time.
        if all(step.done() for step in nodeimage.binary_steps(where)):
            drop_build_caches(where)
    print_line(_console, f"{len(names)} binaries are there ({seconds:.0f} s)")


@main.command()
def built() -> None:
    """Report by the exit status whether a cluster can start without compiling anything first (0: yes)."""
    sys.exit(0 if all(step.done() for step in nodeimage.binary_steps(places())) else 1)


@main.command()
@click.argument("name")
def path(name: str) -> None:
    """Print the path of a program: kubectl, helm, kind, crictl, ... (PATH wins when new enough)."""
    click.echo(tool(places(), name))


@main.command("control-plane")
def control_plane() -> None:
    """Run etcd and kube-apiserver on loopback in the foreground, until Ctrl-C; prints the kubeconfig's path."""
    with ControlPlane(places()) as running:
        click.echo(f"export KUBECONFIG={running.kubeconfig}")
        print_line(_console, f"ready at {running.url}; Ctrl-C ends it")
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


def _binaries_of(what: tuple[str, ...]) -> tuple[str, ...]:
    groups = {"control-plane": pins.CONTROL_PLANE, "all": all_binaries(*pins.MODULES), "tools": pins.TOOLS}
    known = set(groups["all"])
    names = [name for item in what for name in groups.get(item, (item,))]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise DevclusterError(f"No {', '.join(unknown)} to build; there are {', '.join(sorted(known))}.")
    return tuple(dict.fromkeys(names))
