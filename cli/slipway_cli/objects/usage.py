"""What tenants used, added up from rows of gateways' ledgers; pure."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

HOUR_S = 3600
NANO = 1_000_000_000
GROUPS = ("tenant", "key", "model", "revision", "day", "hour")
COUNTS = ("requests", "input_tokens", "cached_tokens", "output_tokens", "estimated")
COST = "cost"
Row = dict[str, Any]


def hours(now: datetime, since_s: float) -> tuple[int, int]:
    """The first hour of the last `since_s` seconds, and the hour after the last one, in hours of Unix time."""
    end_s = now.timestamp()
    return max(0, int((end_s - since_s) // HOUR_S)), int(end_s // HOUR_S) + 1


def add_up(rows: Iterable[Mapping[str, Any]], by: Sequence[str]) -> list[Row]:
    """One row for each combination of the columns `by`, sorted, with its counts and its cost."""
    sums: dict[tuple[str, ...], list[int]] = {}
    for row in rows:
        total = sums.setdefault(tuple(_group(row, name) for name in by), [0] * (len(COUNTS) + 1))
        for place, name in enumerate((*COUNTS, "cost_nano")):
            total[place] += int(row[name])
    return [
        dict(zip(by, group, strict=True)) | dict(zip(COUNTS, total, strict=False)) | {COST: shown_cost(total[-1])}
        for group, total in sorted(sums.items())
    ]


def shown_cost(nano: int) -> str:
    """A cost, given in billionths of the currency, as a decimal number: exact, with at least two decimals."""
    amount = Decimal(nano) / NANO
    cents = amount.quantize(Decimal("0.01"))
    return str(cents) if cents == amount else f"{amount.normalize():f}"


def to_csv(rows: Iterable[Row], by: Sequence[str]) -> str:
    """The rows as CSV with a header; times in UTC. No cell begins as a formula of a spreadsheet does."""
    text = io.StringIO()
    writer = csv.DictWriter(text, (*by, *COUNTS, COST), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _plain(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _plain(value: Any) -> Any:
    """A cell that is no formula: users write names of tenants and models, and a name may begin like a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _group(row: Mapping[str, Any], name: str) -> str:
    if name not in ("day", "hour"):
        return str(row[name])
    moment = datetime.fromtimestamp(int(row["hour"]) * HOUR_S, UTC)
    return moment.strftime("%Y-%m-%d" if name == "day" else "%Y-%m-%dT%H:00Z")
