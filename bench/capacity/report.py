"""From outcomes: rows, bars and the page (pure)."""

from collections.abc import Iterator, Sequence

from bench.capacity.simulate import TARGET, Outcome
from bench.page import bars_table, table
from testkit.report import Bar, Json

MOST = 1.15  # times the replica-hours of the clairvoyant planner
OURS, REACTIVE, PERFECT, WRONG = "Slipway", "Slipway, reactive", "clairvoyant", "wrong forecast"
_SLACK = 0.001  # of the attainment, between the same rule with and without a forecast


def row(trace: str, policy: str, parameters: Sequence[float], outcome: Outcome, perfect: Outcome) -> Json:
    return {
        "trace": trace, "policy": policy, "parameters": list(parameters), "attainment": round(outcome.attainment, 4),
        "replica_hours": round(outcome.replica_hours, 1), "changes": outcome.changes,
        "by_clairvoyant": round(outcome.replica_hours / perfect.replica_hours, 3),
    }  # fmt: skip


def bars(rows: Sequence[Json]) -> Iterator[Bar]:
    """Both bars of each trace for our rule; and that a forecast that misleads is no worse than none."""
    ours = {line["trace"]: line for line in rows if line["policy"] == OURS}
    reactive = {line["trace"]: line for line in rows if line["policy"] == REACTIVE}
    for trace, line in ours.items():
        share, ratio = line["attainment"], line["by_clairvoyant"]
        yield Bar(f"{trace}: attainment", share, f">= {TARGET:g}", share >= TARGET)
        yield Bar(f"{trace}: replica-hours by the clairvoyant's", ratio, f"<= {MOST}", ratio <= MOST)
    if WRONG in ours:
        change = round(ours[WRONG]["attainment"] - reactive[WRONG]["attainment"], 4)
        yield Bar(f"{WRONG}: attainment beside reactive", change, f">= -{_SLACK}", change >= -_SLACK)


def page(rows: Sequence[Json], made: Sequence[Bar]) -> str:
    """docs/capacity.md between its marks."""
    lines = [
        [
            line["trace"], line["policy"], " ".join(f"{number:g}" for number in line["parameters"]) or "-",
            f"{line['attainment']:.2%}", f"{line['replica_hours']:g}", f"{line['by_clairvoyant']:.2f}",
            str(line["changes"]),
        ]
        for line in rows
    ]  # fmt: skip
    header = ["trace", "rule", "parameters", "attainment", "replica-hours", "by the clairvoyant's", "changes"]
    return f"{table(header, lines)}\n\n{bars_table(made)}\n"
