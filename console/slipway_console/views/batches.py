"""A batch as a row of the page: state, progress, errors and owner; pure."""

from dataclasses import dataclass
from datetime import UTC, datetime

from slipway_contracts.batch_list import BatchRow

_BADGES = {
    "completed": "good", "validating": "wait", "in_progress": "wait", "finalizing": "wait", "cancelling": "wait",
    "failed": "bad", "expired": "bad",
}  # fmt: skip
_LATEST = 253_402_300_799.0  # of year 9999


@dataclass(frozen=True, slots=True)
class Batch:
    """`done`: requests that have ended, of `total`; 0 of 0 until the file is validated."""

    id: str
    owner: str
    kind: str
    endpoint: str
    status: str
    badge: str
    done: int
    total: int
    failed: int
    errors: str
    created: datetime | None
    ends: datetime | None  # when it ended, or when it expires
    has_ended: bool


def read_batch(row: BatchRow) -> Batch:
    """What the page shows of a row."""
    errors = ", ".join(f"{code}: {count}" for code, count in row.errors.items())
    return Batch(
        id=row.id,
        owner=row.tenant or "without a key",
        kind=row.kind,
        endpoint=row.endpoint,
        status=row.status.replace("_", " "),
        badge=_BADGES.get(row.status, "plain"),
        done=row.completed + row.failed,
        total=row.total,
        failed=row.failed,
        errors=errors,
        created=_time(row.created_at),
        ends=_time(row.expires_at if row.ended_at is None else row.ended_at),
        has_ended=row.ended_at is not None,
    )


def _time(unix_s: float) -> datetime | None:
    return datetime.fromtimestamp(unix_s, UTC) if 0 <= unix_s <= _LATEST else None
