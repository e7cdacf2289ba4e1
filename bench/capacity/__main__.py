"""The command line: `python -m bench.capacity`. Exit status 0: every bar held; 1: one did not."""

import sys
import time
from collections.abc import Iterator

import click

from bench.capacity import report
from bench.capacity.policies import CONTENDERS, Contender, Parameters
from bench.capacity.simulate import Outcome, first_pods, perfect, run, tuned
from bench.capacity.traces import STEPS_PER_DAY, Trace, traces
from bench.page import publish
from testkit import ROOT
from testkit.report import Json
from testkit.report import report as as_report

PAGE = ROOT / "docs" / "capacity.md"
BEGIN, END = "<!-- table -->", "<!-- end of the table -->"


def measured(trace: Trace) -> Iterator[Json]:
    """The clairvoyant planner, then every rule with what the first day chose."""
    best = perfect(trace, STEPS_PER_DAY)
    yield report.row(trace.name, report.PERFECT, (), best, best)
    chosen: dict[str, Parameters] = {}
    for name, contender in CONTENDERS.items():
        # On the first day there is no forecast yet: with and without one the same parameters are chosen.
        chosen[name] = chosen[report.OURS] if name == report.REACTIVE else tuned(trace, contender)
        yield report.row(trace.name, name, chosen[name], outcome_of(trace, contender, chosen[name]), best)


def outcome_of(trace: Trace, contender: Contender, parameters: Parameters) -> Outcome:
    return run(trace.steps, contender.make(*parameters), first_pods(trace), STEPS_PER_DAY)


@click.command(help=__doc__)
@click.option("--trace", "names", multiple=True, help="Simulate this trace alone; may be given several times.")
@click.option("--page", is_flag=True, help="Write the table into docs/capacity.md.")
def main(names: tuple[str, ...], page: bool) -> None:
    started, rows = time.process_time(), list[Json]()
    for trace in traces():
        if not names or trace.name in names:
            rows.extend(measured(trace))
            click.echo(f"{time.process_time() - started:5.0f} s CPU  {trace.name}")
    made = list(report.bars(rows))
    text = report.page(rows, made)
    if page:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{text}{END}{rest.partition(END)[2]}")
    seconds = round(time.process_time() - started, 1)
    sys.exit(publish(as_report("capacity", rows, made, cpu_s=seconds), made, text, None))


if __name__ == "__main__":
    main()
