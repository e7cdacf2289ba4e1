"""The command line: `python -m bench.sampling sampling|grammars`. Exit status 0 means that every bar held."""

import sys
from pathlib import Path

import click
from rich.console import Console

from bench.engine.models import ensure_model
from bench.engine.shapes import TINY as SMALL
from bench.engine.shapes import WIDE
from bench.sampling import alone
from bench.sampling.loads import DEFAULT, FOLLOWING, GREEDY, NUCLEUS, TOP_K, Load, Loaded
from bench.sampling.pairs import Ratio, compare
from testkit.report import Bar, Json, report, write

REPOSITORY = Path(__file__).resolve().parents[2]
TINY = REPOSITORY / "examples" / "models" / "tiny-v1"
# The examples' one, one of a wide vocabulary, and one whose steps take as long as those of small models do.
MODELS = {"tiny": None, "wide": WIDE, "small": SMALL}
DEFAULTS = {"sampling": "tiny,wide", "grammars": "small"}
SAMPLING_RATIO, GRAMMAR_RATIO = 0.97, 0.95
BATCHES = (1, 8, 32)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.argument("what", type=click.Choice(["sampling", "grammars"]))
@click.option("--turns", type=click.IntRange(4, 4096), default=128, show_default=True, help="Of four times four steps.")
@click.option("--models", default="", help=f"Of {', '.join(MODELS)}. Without: {DEFAULTS}.")
def main(what: str, turns: int, models: str) -> None:
    """Token rates of one engine with sampling or grammars, and of one without, in turns: the ratio and its spread."""
    names = [name.strip() for name in (models or DEFAULTS[what]).split(",")]
    if unknown := [name for name in names if name not in MODELS]:
        raise click.BadParameter(f"{', '.join(unknown)}: known are {', '.join(MODELS)}")
    rows = alone.rows() if what == "sampling" else []
    for row in rows:
        print(row, flush=True)
    measure = sampling if what == "sampling" else grammars
    for name in names:
        shape = MODELS[name]
        model = ensure_model(shape, Console(soft_wrap=True)) if shape else TINY
        rows += measure(name, model, turns)
    bars = bars_of(rows)
    path = write(report(what, rows, bars))
    for bar in bars:
        print(bar)
    print(f"report   {path.relative_to(REPOSITORY)}")
    sys.exit(0 if all(bar.ok for bar in bars) else 1)


def sampling(name: str, model: Path, turns: int) -> list[Json]:
    return [_compared(name, model, turns, (GREEDY, load), 32, SAMPLING_RATIO) for load in (NUCLEUS, DEFAULT, TOP_K)]


def grammars(name: str, model: Path, turns: int) -> list[Json]:
    return [_compared(name, model, turns, (DEFAULT, FOLLOWING), batch, GRAMMAR_RATIO) for batch in BATCHES]


def _compared(name: str, model: Path, turns: int, loads: tuple[Load, Load], batch: int, limit: float) -> Json:
    with Loaded(model, loads[0], batch) as a, Loaded(model, loads[1], batch) as b:
        ratio = compare(a, b, turns)
    row = {"kind": "pair", "model": name, "batch": batch, "a": loads[0].name, "b": loads[1].name, "limit": limit}
    row |= _figures(ratio)
    print(row, flush=True)
    return row


def _figures(ratio: Ratio) -> Json:
    numbers = {
        "ratio": ratio.middle, "low_quartile": ratio.quartiles[0], "high_quartile": ratio.quartiles[1],
        "error": ratio.error, "a_ms": ratio.a_ms, "b_ms": ratio.b_ms,
    }  # fmt: skip
    return {name: round(value, 4) for name, value in numbers.items()} | {"turns": len(ratio.ratios)}


def bars_of(rows: list[Json]) -> list[Bar]:
    return [
        Bar(
            f"{row['model']}, batch {row['batch']}: {row['b']} / {row['a']}",
            row["ratio"],
            f">= {row['limit']} (± {row['error']})",
            row["ratio"] >= row["limit"],
        )
        for row in rows
        if row["kind"] == "pair"
    ]


if __name__ == "__main__":
    main()
