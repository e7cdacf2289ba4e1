"""Batches and jobs as lines of text; pure."""

from collections.abc import Iterable
from datetime import UTC, datetime

from slipway_cli.api import Json
from slipway_cli.views.table import format_table

ENDED = ("completed", "failed", "expired", "cancelled")
_COLUMNS = ("id", "status", "done", "failed", "total", "endpoint", "created")


def batch_table(batches: Iterable[Json]) -> list[str]:
    """The lines of a table with one row for each batch."""
    rows = []
    for one in batches:
        done, failed, total = counts(one)
        created = datetime.fromtimestamp(one.get("created_at") or 0, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        rows.append((one.get("id"), one.get("status"), done, failed, total, one.get("endpoint"), created))
    return format_table(_COLUMNS, rows)


def counts(batch: Json) -> tuple[int, int, int]:
    """Numbers of a batch's requests: completed, failed, all."""
    found = batch.get("request_counts") or {}
    return found.get("completed") or 0, found.get("failed") or 0, found.get("total") or 0


def summary(batch: Json) -> str:
    """The status and the counts of a batch in one line."""
    done, failed, total = counts(batch)
    return f"{batch.get('id')} {batch.get('status')}: {done} completed, {failed} failed, {total} in all"


def errors(batch: Json) -> list[str]:
    """The errors in a batch's input file, one line for each."""
    data = (batch.get("errors") or {}).get("data") or ()
    return [f"line {one.get('line') or '-'}: {one.get('message')}" for one in data]
