"""What `slipway cost` prints; pure."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from slipway_cli.api import Json
from slipway_cli.sizing.costs import RevisionCost, total
from slipway_cli.views.table import format_table

_COLUMNS = (
    *("namespace", "name", "revision", "pods", "an hour", "cost", "requests", "input tokens", "output tokens"),
    *("per 1m tokens", "per 1m output", "per 1000 requests"),
)


def cost_table(costs: Sequence[RevisionCost]) -> list[str]:
    """A row for each revision, and the sum where every pod has a price."""
    lines = format_table(_COLUMNS, map(_row, costs))
    amount = total(costs)
    return lines if amount is None else [*lines, f"sum: {amount:.2f}"]


def data_of(cost: RevisionCost) -> dict[str, Any]:
    """A revision for programs; None where a number is unknown."""
    return asdict(cost) | {
        "per_hour": cost.per_hour,
        "cost": cost.cost,
        "per_million_tokens": cost.per_million_tokens,
        "per_million_output_tokens": cost.per_million_output_tokens,
        "per_thousand_requests": cost.per_thousand_requests,
    }


def remarks(costs: Sequence[RevisionCost], objects: Iterable[Json]) -> list[str]:
    """What the table does not show by itself."""
    notes = []
    if any(each.pods and each.price_of_pod is None for each in costs):
        notes.append("a revision without a price: set `pricing` of the chart for its devices, or give --price-hour")
    members = sorted(
        f"{item['metadata']['namespace']}/{item['metadata']['name']}"
        for item in objects
        if (item.get("spec") or {}).get("pool")
    )
    if members:
        notes.append(f"members of a pool have no pods of their own, and no cost here: {', '.join(members[:10])}")
    return notes


def _row(cost: RevisionCost) -> tuple[object, ...]:
    served = cost.served
    counts = (served.requests, served.input_tokens, served.output_tokens) if served else ("-", "-", "-")
    return (
        *(cost.namespace, cost.name, cost.revision, cost.pods, _amount(cost.per_hour), _amount(cost.cost)),
        *counts,
        *map(_amount, (cost.per_million_tokens, cost.per_million_output_tokens, cost.per_thousand_requests)),
    )


def _amount(amount: float | None) -> str:
    if amount is None:
        return "-"
    return f"{amount:.2f}" if amount >= 1 or not amount else f"{amount:.3g}"
