"""Minutes of hostile requests against a live engine, directly and through a gateway: no other client may notice.

    python -m bench.fuzz --minutes 10 --seed 1          (make fuzz MINUTES=10)

Bodies come from the server's own OpenAPI document at the edges of every field, with mutations of them; heads are raw
bytes, and so are frames of HTTP/2 to the gateway's gRPC. Every fiftieth request is a sound one whose answer must stay
what it was. Custom resources, routes files, archives, folders and what engines report as usage are drawn for what reads
them, without processes; a ledger takes each charge. Prints what was covered, writes
build/reports/fuzz.json, and exits 1 when a bar does not hold; the first examples that broke one are printed.
"""

import sys

import click

from testkit.report import write
from testkit.world.program import DidNotStart

from .run import REPOSITORY, fuzz


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--minutes", type=click.FloatRange(min=0.1), default=10.0, show_default=True)
@click.option("--seconds", type=click.FloatRange(min=5.0), help="In place of minutes.")
@click.option("--seed", default=1, show_default=True, help="Of what is drawn; the same requests for the same seed.")
def main(minutes: float, seconds: float | None, seed: int) -> None:
    """Hostile requests against a live model server and a gateway before it."""
    try:
        report = fuzz(seconds or minutes * 60, seed)
    except DidNotStart as error:
        print(f"it did not start: {error}")
        sys.exit(2)
    row, *parts = report["rows"]
    for wrong in (one for each in report["rows"] for one in each["wrong"]):
        print(f"wrong: {wrong}")
    for part in parts:
        print(f"{part['part']}: {part['examples']} examples, {part['fields_covered']} of {part['fields']} fields")
    print(
        f"{row['requests']} requests, {row['distinct_requests']} distinct; "
        f"{row['fields_covered']} of {row['fields']} fields"
    )
    for bar in report["bars"]:
        print(f"{'ok  ' if bar['ok'] else 'MISS'} {bar['bar']}: {bar['value']} (must be {bar['limit']})")
    print(f"report   {write(report).relative_to(REPOSITORY)}")
    sys.exit(0 if all(bar["ok"] for bar in report["bars"]) else 1)


if __name__ == "__main__":
    main()
