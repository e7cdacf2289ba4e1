"""`slipway bench` and `slipway size`: what a model carries by a load test, and how many pods a rate needs."""

import asyncio
import json
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from slipway_cli.api import Json
from slipway_cli.cluster.client import ClusterClient
from slipway_cli.commands.options import Duration, Number, complete_name, output_option, print_data, with_cluster
from slipway_cli.errors import INTERRUPTED, CommandError
from slipway_cli.gateway.client import base_url
from slipway_cli.objects.deployment import read_deployment
from slipway_cli.packing.request import read_gpu_types
from slipway_cli.sizing import lengths, objectives, report, search, summary
from slipway_cli.sizing.answer import Demand
from slipway_cli.sizing.answer import answer as answer_of
from slipway_cli.sizing.objectives import EXAMPLE, Objectives
from slipway_cli.sizing.report import LARGEST_BYTES, Report
from slipway_cli.sizing.search import Plan
from slipway_cli.sizing.steps import Step
from slipway_cli.views import sizing as views
from slipway_contracts.service_levels import LATENCY
from slipway_operator.model import quantity

_INTERRUPTED = "Interrupted"
_REFUSED = 0.01  # share of the requests that may fail
_LARGEST_BODY = 64 << 20


class Parsed(click.ParamType[Any]):
    """A text that a pure function reads; its ValueError is a usage error."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """What the text says."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


SLO = Parsed("objectives", objectives.parse)
LENGTHS = Parsed("tokens", lengths.parse)
_FORMS = "512, 128-1024 (evenly), or 300~2000 (lognormal: median and 95th percentile)"


@dataclass(frozen=True, slots=True)
class _Subject:
    """What is measured. `kind`: chat or predict."""

    model: str
    objectives: Objectives
    pods: int
    kind: str


@click.command("bench")
@click.argument("name", required=False, shell_complete=complete_name)
@click.option("--url", envvar="SLIPWAY_URL", required=True, help="URL of a gateway; or set SLIPWAY_URL.")
@click.option(
    "--api-key",
    envvar="SLIPWAY_API_KEY",
    default="",
    help="Key of a Tenant. Set SLIPWAY_API_KEY instead: others on this machine see arguments.",
)
@click.option("--model", help="Model by its name at the gateway, in place of NAME: no cluster is used.")
@click.option("--slo", type=SLO, help=f"What requests have to hold: {EXAMPLE}. Default is spec.slo.")
@click.option("--prompt-tokens", type=LENGTHS, default="256", help=f"Length of prompts: {_FORMS}; default is 256.")
@click.option("--output-tokens", type=LENGTHS, default="64", help="Most tokens of a response, likewise; default is 64.")
@click.option(
    "--ignore-eos", is_flag=True, help="Responses have that length whatever the model says: for engines that take it."
)
@click.option("--body", type=click.Path(path_type=Path), help="A classic model: FILE with the body of each request.")
@click.option("--pods", type=click.IntRange(1, 100_000), help="How many serve; default is what the status has, else 1.")
@click.option("--first-concurrency", type=click.IntRange(1, 10_000), default=1, help="Of the first step; default is 1.")
@click.option("--max-concurrency", type=click.IntRange(1, 10_000), default=16, help="Of the last one; default is 16.")
@click.option("--step-seconds", type=Number(0.1, 3600), default=15.0, help="Of each step; default is 15.")
@click.option("--refinements", type=click.IntRange(0, 10), default=2, help="Steps after one that fails; default is 2.")
@click.option("--max-requests", type=click.IntRange(1, 1_000_000), default=5000, help="Of all steps; default is 5000.")
@click.option("--max-seconds", type=Number(1, 86_400), default=600.0, help="Of all steps; default is 600.")
@click.option("--max-error-share", type=Number(0, 1), default=_REFUSED, help="Ends the test; default is 0.01.")
@click.option("--timeout", type=Duration(), default="60s", help="Longest time for one response; default is 60s.")
@click.option("--during-rollout", is_flag=True, help="Also while a rollout is in progress.")
@click.option("--save", type=click.Path(dir_okay=False, path_type=Path), help="FILE for `slipway size --from`.")
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="Also draw FILE, .svg or .png.")
@output_option("text", "json", "yaml")
@with_cluster
def bench(cluster: ClusterClient, name: str | None, url: str, api_key: str, output: str, **options: Any) -> None:
    """Load a model within bounds, and find how many requests in progress still hold its objectives.

    It is a closed loop: each client sends its next request when it has the response to the one before, so the load
    never exceeds the concurrency, and a slow server gets fewer requests. Real clients come in any number at any moment:
    at the same rate their latencies are worse. Plan for a part of what this finds, as `slipway size` does.

    Concurrency doubles from step to step until an objective is missed, then steps halve the distance. It refuses plans
    beyond --max-requests and --max-seconds, and sends no request beyond them but two before, which show how many tokens
    a word has. It stops when too many requests fail.
    Prompts share no prefix, so no cache helps. Load takes from other clients of the model.
    """
    plan = _plan_of(options)
    base = base_url(url)
    body = _body(options["body"])
    if options["picture"]:
        from slipway_cli.views import picture

        picture.check(options["picture"], "--picture")
    subject = _subject(cluster, name, options, body is not None)
    _echo(views.plan_line(plan, subject.model, subject.objectives))
    found = _measured(base, api_key, subject, plan, options, body)
    notes = [*found.notes, *(_changed(cluster, name, subject) if name and found.ended != _INTERRUPTED else ())]
    found = _with_notes(found, notes)
    steps = report.steps_of(found)
    result = summary.summarize(steps, subject.objectives, found.max_error_share)
    if output != "text":
        best = result.best
        chosen = best and {"concurrency": best.concurrency, "rate": best.rate, "low": result.low, "high": result.high}
        data: dict[str, Any] = {"best": chosen, "limit": result.limit, "why": result.why}
        print_data(report.data_of(found) | data | {"table": [_shown(step) for step in steps]}, output)
    else:
        click.echo("\n".join(views.step_table(steps, subject.objectives, found.max_error_share)))
        click.echo("\n".join(views.summary_lines(result, subject.pods)))
    for note in notes:
        _echo(f"note: {note}")
    # What was measured is printed before: a file that cannot be written does not lose it.
    if options["save"] and steps:
        _write(options["save"], report.write(found))
    if options["picture"] and steps:
        picture.draw_steps(steps, subject.objectives, f"{subject.model}, {found.at}", options["picture"])
    if found.ended == _INTERRUPTED:
        raise SystemExit(INTERRUPTED)
    if result.best is None:
        raise CommandError(f"no step holds the objectives: {result.why}")


def _plan_of(options: dict[str, Any]) -> Plan:
    plan = Plan(
        options["max_concurrency"],
        options["step_seconds"],
        options["refinements"],
        options["max_requests"],
        options["max_seconds"],
        options["first_concurrency"],
    )
    if reason := search.refusal(plan):
        raise click.UsageError(reason)
    return plan


def _subject(cluster: ClusterClient, name: str | None, options: dict[str, Any], is_classic: bool) -> _Subject:
    """What is measured, from the cluster or from options alone."""
    if bool(name) == bool(options["model"]):
        raise click.UsageError("give a NAME, or --model MODEL")
    chosen, pods, kind = options["slo"], options["pods"] or 1, "predict" if is_classic else "chat"
    if not name:
        return _Subject(options["model"], _fitting(chosen, kind, "write --slo"), pods, kind)
    obj = cluster.deployment(name)
    deployment = read_deployment(obj)
    if (deployment.spec.get("model") or {}).get("task") == "predict" and not is_classic:
        raise click.UsageError(f"{name} is a classic model: give --body FILE with a request")
    rollout = deployment.rollout
    if rollout and rollout.state != "Aborted" and not options["during_rollout"]:
        raise CommandError(
            f"{name} is in a rollout, whose analyses would count this load: wait for its end, or give --during-rollout"
        )
    try:
        chosen = chosen or objectives.of_spec(deployment.spec)
    except ValueError as error:
        raise CommandError(str(error)) from error
    limits = _fitting(chosen, kind, f"{name} has no latency in spec.slo: write --slo")
    return _Subject(f"{deployment.namespace}/{deployment.name}", limits, options["pods"] or _serving(obj), kind)


def _fitting(chosen: Objectives | None, kind: str, otherwise: str) -> Objectives:
    """Objectives that such a model can have: a prediction is no stream."""
    fitting = {name: limit for name, limit in (chosen or {}).items() if kind == "chat" or name == LATENCY}
    if not fitting:
        needed = "latencyP99, as predictions are no streams" if kind == "predict" else EXAMPLE
        raise click.UsageError(f"{otherwise} with {needed}")
    return fitting


def _serving(obj: Json) -> int:
    """Ready pods of revisions that get requests; at least one, which a sleeping deployment starts."""
    revisions = (obj.get("status") or {}).get("revisions") or ()
    return max(1, sum(int(item.get("ready") or 0) for item in revisions if item.get("weight")))


def _changed(cluster: ClusterClient, name: str, subject: _Subject) -> list[str]:
    """A note where other pods serve than before, or may do: then what one carries is not known."""
    try:
        now = _serving(cluster.deployment(name))
    except CommandError as error:
        return [f"whether the same pods serve as at the start is not known: {error}"]
    return [] if now == subject.pods else [f"{subject.pods} pods served at the start and {now} at the end: repeat it"]


def _measured(
    url: str, api_key: str, subject: _Subject, plan: Plan, options: dict[str, Any], body: bytes | None
) -> Report:
    """The report of a load test, of what there is where Ctrl-C ends it."""
    # Imported here, because aiohttp takes long to load.
    try:
        from slipway_cli.bench import requests, run
    except ImportError as error:
        raise CommandError("slipway bench needs aiohttp: pip install aiohttp") from error
    steps: list[Step] = []
    kind_of_tokens, ended, is_busy = "none" if body is not None else "estimated", _INTERRUPTED, False

    async def measure() -> tuple[str, bool]:
        nonlocal kind_of_tokens
        async with requests.session(api_key) as session:
            gateway = requests.Gateway(session, url, subject.model, options["timeout"])
            if body is not None:
                predictions = requests.Predictions(gateway, body, requests.path_of(subject.model, json.loads(body)))
                await predictions.check()
                send = predictions.send
            else:
                chats = requests.Chats(
                    gateway,
                    options["prompt_tokens"],
                    options["output_tokens"],
                    f"{secrets.token_hex(4)}-",
                    ignores_eos=options["ignore_eos"],
                )
                chats, is_counted = await chats.calibrated()
                kind_of_tokens, send = "counted" if is_counted else "estimated", chats.send
            limit = options["max_error_share"]
            return await run.run(
                send, plan, subject.objectives, limit, steps,
                lambda step: _echo(views.step_line(step, subject.objectives, limit)),
            )  # fmt: skip

    try:
        ended, is_busy = asyncio.run(measure())
    except KeyboardInterrupt:
        _echo("interrupted: what follows is of the steps that had ended")
    return Report(
        1,
        subject.model,
        datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        subject.pods,
        dict(subject.objectives),
        options["max_error_share"],
        "predict" if body is not None else "chat",
        str(options["prompt_tokens"]),
        str(options["output_tokens"]),
        kind_of_tokens,  # type: ignore[arg-type]
        ended,
        tuple(map(report.saved, steps)),
        ("this program had no processor time to spare: the server may carry more",) if is_busy else (),
    )


def _with_notes(found: Report, notes: list[str]) -> Report:
    import msgspec

    return msgspec.structs.replace(found, notes=tuple(notes))


def _shown(step: Step) -> dict[str, Any]:
    """A step with its quantiles, for programs."""
    return {
        "concurrency": step.concurrency,
        "rate": step.rate,
        "tokensPerSecond": step.tokens_per_second,
        "requests": step.ended_well,
        "errors": dict(step.errors or {}),
    } | views.quantiles(step)


def _body(file: Path | None) -> bytes | None:
    """The body of each request to a classic model. Raises CommandError where it is no JSON."""
    if file is None:
        return None
    text = _read(file, _LARGEST_BODY)
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{file} is no JSON: {error}") from error
    return text


def _read(file: Path, largest: int) -> bytes:
    try:
        with file.open("rb") as opened:
            text = opened.read(largest + 1)
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}") from error
    if len(text) > largest:
        raise CommandError(f"{file} has more than {largest} bytes")
    return text


def _write(file: Path, text: bytes) -> None:
    part = file.with_name(file.name + ".part")  # no half of a file has the name of a whole one
    try:
        part.write_bytes(text)
        part.replace(file)
    except OSError as error:
        raise CommandError(f"{file} cannot be written: {error.strerror}") from error


def _echo(line: str) -> None:
    click.echo(line, err=True)


@click.command("size")
@click.option("--model", "name", shell_complete=complete_name, help="ModelDeployment, whose status has the capacity.")
@click.option("--from", "file", type=click.Path(path_type=Path), help="FILE of `slipway bench --save`.")
@click.option("--rate", type=Number(0, 1e9, min_open=True), required=True, help="Requests per second.")
@click.option("--slo", type=SLO, help=f"What they have to hold: {EXAMPLE}. Default is spec.slo, or that of the report.")
@click.option("--prompt-tokens", type=LENGTHS, help=f"Length of prompts: {_FORMS}. Default is that of the report.")
@click.option("--output-tokens", type=LENGTHS, help="Length of responses, likewise.")
@click.option(
    "--utilization", type=click.IntRange(10, 100), default=80, help="Percent of what pods carry; default is 80."
)
@click.option("--spare", type=click.IntRange(0, 1000), default=0, help="Pods beside those: 1 for N+1; default is 0.")
@click.option("--price-hour", type=Number(0, 1e9, min_open=True), help="Price of a pod for an hour.")
@click.option("--prices", type=click.Path(path_type=Path), help="FILE with gpuTypes, as `slipway plan` reads it.")
@click.option("--gpu", help="Name of a type in --prices; default is spec.resources.accelerator.type.")
@click.option("--gpus", type=click.IntRange(1, 64), help="Of a pod; default is that of the spec, else 1.")
@click.option("--memory-gb", type=Number(0, 1e6, min_open=True), help="Memory that a pod needs on its GPUs.")
@output_option("text", "json", "yaml")
@with_cluster
def size(cluster: ClusterClient, name: str | None, file: Path | None, output: str, **options: Any) -> None:
    """Compute pods, accelerators and cost for a rate of requests.

    It answers from the capacity model in the status of a ModelDeployment (spec.autoscaling.objective), or from a report
    of `slipway bench`, with the bounds of either. It says when it extrapolates, and ends with 1 when there is no data.
    """
    if bool(name) == bool(file):
        raise click.UsageError("give --model NAME, or --from FILE")
    spec: Json = {}
    arguments = (options["slo"], options["prompt_tokens"], options["output_tokens"])
    from slipway_cli.sizing import capacity

    try:
        if name:
            obj = cluster.deployment(name)
            spec, source = obj.get("spec") or {}, capacity.of_status(obj, *arguments)
            limits = options["slo"] or objectives.of_spec(spec)
        else:
            assert file, "one of both is there"
            saved = report.read(_read(file, LARGEST_BYTES))
            source, limits = capacity.of_report(saved, *arguments), options["slo"] or report.objectives_of(saved)
        pods = _Pods.of(spec, options)
        demand = Demand(options["rate"], options["utilization"] / 100, options["spare"])
        found = answer_of(source, demand, pods.gpus, pods.price)
    except ValueError as error:
        raise CommandError(str(error)) from error
    is_short = pods.available is not None and found.gpus > pods.available
    if output != "text":
        data = {"answer": asdict(found), "capacity": asdict(source), "objectives": dict(limits), "enough": not is_short}
        print_data(data, output)
    else:
        text = objectives.text_of(limits)
        click.echo("\n".join(views.answer_lines(source, demand, found, text, pods.gpu)))
    if is_short:
        raise CommandError(f"{found.gpus} GPUs of type {pods.gpu} are needed, and there are {pods.available}")


@dataclass(frozen=True, slots=True)
class _Pods:
    """Accelerators of a pod, its price for an hour, and how many accelerators there are; None: not known."""

    gpu: str
    gpus: int
    price: float | None
    available: int | None = None

    @classmethod
    def of(cls, spec: Json, options: dict[str, Any]) -> "_Pods":
        """From the options, and what the spec has. Raises ValueError where they do not fit."""
        accelerator = (spec.get("resources") or {}).get("accelerator") or {}
        gpu = options["gpu"] or accelerator.get("type") or accelerator.get("resource") or ""
        gpus = options["gpus"] or accelerator.get("count") or (1 if gpu else 0)
        if options["prices"] is None:
            if options["memory_gb"]:
                raise ValueError("--memory-gb needs --prices with the memory of the GPU")
            return cls(str(gpu), gpus, options["price_hour"])
        if options["price_hour"]:
            raise ValueError("give --price-hour of a pod, or --prices of GPUs")
        types = {each.name: each for each in read_gpu_types(_read(options["prices"], 1 << 20))}
        chosen = types.get(str(gpu)) or (next(iter(types.values())) if len(types) == 1 and not gpu else None)
        if chosen is None:
            raise ValueError(f"{options['prices']}: gpuTypes has no {gpu or 'single type'}: name one with --gpu")
        gpus = max(1, gpus)
        needed_gb = options["memory_gb"] or gpus * _gigabytes(accelerator.get("memory"))
        if needed_gb > chosen.memory_gb * gpus:
            raise ValueError(
                f"memory limits: a pod needs {needed_gb:g} GB, and {gpus} x {chosen.name} have "
                f"{chosen.memory_gb * gpus:g} GB"
            )
        return cls(chosen.name, gpus, gpus * chosen.price_per_hour, chosen.available)


def _gigabytes(amount: object) -> float:
    """A quantity of memory as Kubernetes has it; 0 without one, or for one of another form."""
    try:
        return float(quantity.parse(str(amount or 0)) / 10**9)
    except (ValueError, OverflowError):
        return 0.0
