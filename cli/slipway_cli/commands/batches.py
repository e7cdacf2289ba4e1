"""Commands about batches and jobs. They talk to a gateway with an API key, and need no kubeconfig."""

import functools
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from slipway_cli.api import Json
from slipway_cli.commands.options import Duration, output_option, print_data
from slipway_cli.errors import CommandError, Rejected, TimedOut, Unreachable
from slipway_cli.gateway.client import GatewayClient, batch_path, job_path
from slipway_cli.views import batches as views

_LOOK_S, _MAX_LOOK_S = 0.5, 5.0
_LISTED = 100

timeout_option = click.option("--timeout", type=Duration(), default="24h", help="Longest time to wait; default is 24h.")
callback_option = click.option("--callback-url", metavar="URL", help="Gets a signed webhook at the end.")


def with_gateway(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of a gateway to a command, which gets a `gateway` in their place."""

    @functools.wraps(command)
    @click.option("--url", envvar="SLIPWAY_URL", required=True, help="URL of a gateway; or set SLIPWAY_URL.")
    @click.option(
        "--api-key",
        envvar="SLIPWAY_API_KEY",
        default="",
        help="Key of a Tenant. Set SLIPWAY_API_KEY instead: others on this machine see arguments.",
    )
    def run(*given: Any, url: str, api_key: str, **options: Any) -> Any:
        return command(*given, gateway=GatewayClient(url, api_key), **options)

    return run


@click.group("batches")
def batches() -> None:
    """Submit batches of requests to a gateway, watch them and download results."""


@batches.command("list")
@click.option("--limit", type=click.IntRange(1, _LISTED), default=20, help="How many, the newest first; default is 20.")
@output_option("table", "json", "yaml")
@with_gateway
def list_(gateway: GatewayClient, limit: int, output: str) -> None:
    """List batches, the newest first."""
    found = gateway.get("/v1/batches", limit=str(limit)).get("data") or []
    if output != "table":
        print_data(found, output)
    elif found:
        click.echo("\n".join(views.batch_table(found)))
    else:
        click.echo("No batches found.", err=True)


@batches.command("get")
@click.argument("batch_id", metavar="BATCH")
@output_option("table", "json", "yaml")
@with_gateway
def get(gateway: GatewayClient, batch_id: str, output: str) -> None:
    """Show a batch, and the errors of its file."""
    found = gateway.get(batch_path(batch_id))
    if output != "table":
        print_data(found, output)
        return
    click.echo("\n".join(views.batch_table([found])))
    for line in views.errors(found):
        click.echo(line, err=True)


@batches.command("submit")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--endpoint", default="/v1/chat/completions", help="Of all lines; default is /v1/chat/completions.")
@callback_option
@click.option("--watch", is_flag=True, help="Wait for the end, with a progress bar.")
@timeout_option
@with_gateway
def submit(
    gateway: GatewayClient, file: Path, endpoint: str, callback_url: str | None, watch: bool, timeout: float
) -> None:
    """Upload FILE, one request on each line, and start a batch of it. Prints the id."""
    with _progress(DownloadColumn()) as bar:
        task = bar.add_task("uploading", total=file.stat().st_size)
        uploaded = gateway.upload(file, lambda size: bar.advance(task, size))
    given = {"input_file_id": uploaded["id"], "endpoint": endpoint, "completion_window": "24h"}
    made = gateway.post("/v1/batches", given | ({"callback_url": callback_url} if callback_url else {}))
    click.echo(made["id"])
    if watch:
        _watch(gateway, made["id"], timeout)


@batches.command("watch")
@click.argument("batch_id", metavar="BATCH")
@timeout_option
@with_gateway
def watch_(gateway: GatewayClient, batch_id: str, timeout: float) -> None:
    """Wait for the end of a batch, with a progress bar. Exits with 4 when it did not complete."""
    _watch(gateway, batch_id, timeout)


@batches.command("cancel")
@click.argument("batch_id", metavar="BATCH")
@with_gateway
def cancel(gateway: GatewayClient, batch_id: str) -> None:
    """Cancel a batch; what ran already is kept."""
    click.echo(views.summary(gateway.post(batch_path(batch_id, "/cancel"))))


@batches.command("download")
@click.argument("batch_id", metavar="BATCH")
@click.option("--errors", is_flag=True, help="The file of requests that failed.")
@click.option("--to", type=click.Path(dir_okay=False, path_type=Path), help="File to write; default is stdout.")
@with_gateway
def download(gateway: GatewayClient, batch_id: str, errors: bool, to: Path | None) -> None:
    """Download the results of a batch that has ended, one on each line."""
    found = gateway.get(batch_path(batch_id))
    file_id = found.get("error_file_id" if errors else "output_file_id")
    if not file_id:
        raise CommandError(f"there are no {'errors' if errors else 'results'}: {views.summary(found)}")
    if to is None:
        gateway.download(file_id, sys.stdout.buffer, lambda _: None)
        return
    part = to.with_name(to.name + ".part")  # no half of a file has the name of a whole one
    with part.open("wb") as opened, _progress(DownloadColumn()) as bar:
        task = bar.add_task("downloading", total=gateway.get(f"/v1/files/{file_id}").get("bytes"))
        gateway.download(file_id, opened, lambda size: bar.advance(task, size))
    part.replace(to)


@click.group("jobs")
def jobs() -> None:
    """Submit single requests that can wait, and read their results."""


@jobs.command("submit")
@click.argument("body", metavar="JSON")
@click.option("--endpoint", default="/v1/chat/completions", help="Of the request; default is /v1/chat/completions.")
@callback_option
@with_gateway
def submit_job(gateway: GatewayClient, body: str, endpoint: str, callback_url: str | None) -> None:
    """Start a job of one request, whose body is JSON, or `-` for stdin. Prints the id."""
    try:
        given = json.loads(sys.stdin.read() if body == "-" else body)
    except ValueError as error:
        raise click.UsageError(f"JSON: {error}") from error
    request = {"endpoint": endpoint, "body": given}
    click.echo(gateway.post("/v1/jobs", request | ({"callback_url": callback_url} if callback_url else {}))["job_id"])


@jobs.command("get")
@click.argument("job_id", metavar="JOB")
@output_option("json", "yaml")
@with_gateway
def get_job(gateway: GatewayClient, job_id: str, output: str) -> None:
    """Show a job with its result or error."""
    print_data(gateway.get(job_path(job_id)), output)


@jobs.command("watch")
@click.argument("job_id", metavar="JOB")
@timeout_option
@output_option("json", "yaml")
@with_gateway
def watch_job(gateway: GatewayClient, job_id: str, timeout: float, output: str) -> None:
    """Wait for the end of a job and show it. Exits with 4 when it did not complete."""
    for found in _looks(lambda: gateway.get(job_path(job_id)), timeout):
        if found["status"] in views.ENDED:
            print_data(found, output)
            if found["status"] != "completed":
                raise Rejected(f"{job_id} {found['status']}")


@jobs.command("cancel")
@click.argument("job_id", metavar="JOB")
@with_gateway
def cancel_job(gateway: GatewayClient, job_id: str) -> None:
    """Cancel a job that has not ended."""
    click.echo(f"{job_id} {gateway.delete(job_path(job_id))['status']}")


def _watch(gateway: GatewayClient, batch_id: str, timeout_s: float) -> None:
    with _progress(MofNCompleteColumn()) as bar:
        task = bar.add_task("validating", total=None)
        for found in _looks(lambda: gateway.get(batch_path(batch_id)), timeout_s):
            done, failed, total = views.counts(found)
            bar.update(task, description=found["status"], completed=done + failed, total=total or None)
    click.echo(views.summary(found), err=True)
    if found["status"] != "completed":
        raise Rejected("\n".join([f"{batch_id} {found['status']}", *views.errors(found)]))


def _looks(look: Callable[[], Json], timeout_s: float) -> Iterator[Json]:
    """Yields a batch or job again and again until it has ended; keeps trying while the gateway is away.

    Raises:
        TimedOut: after `timeout_s`; Unreachable if the gateway is away then.
    """
    ends_s, pause_s = time.monotonic() + timeout_s, _LOOK_S
    while True:
        try:
            found = look()
        except Unreachable:
            if time.monotonic() >= ends_s:
                raise
        else:
            yield found
            if found["status"] in views.ENDED:
                return
            if time.monotonic() >= ends_s:
                raise TimedOut(f"it is {found['status']} after {timeout_s:g} s")
        time.sleep(pause_s)
        pause_s = min(_MAX_LOOK_S, pause_s * 1.2)


@contextmanager
def _progress(column: Any) -> Iterator[Progress]:
    """A progress bar on stderr, where that is a terminal: stdout has ids and results alone."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), column, TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        yield bar
