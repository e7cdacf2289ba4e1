"""Times as the API writes them: RFC 3339 in UTC, whole seconds."""

from datetime import UTC, datetime
from functools import lru_cache

KEPT = 4096  # times as text: one status names the same few in each reconcile
FIRST_YEAR, LAST_YEAR = 1970, 9000


@lru_cache(KEPT)
def format_time(moment: datetime) -> str:
    """RFC 3339 in UTC, whole seconds."""
    return moment.astimezone(UTC).isoformat(timespec="seconds")[:19] + "Z"


@lru_cache(KEPT)
def parse_time(text: str) -> datetime:
    """A datetime in UTC from RFC 3339.

    Raises:
        ValueError: when it is none, or so far away that nothing could be added to it.
    """
    moment = datetime.fromisoformat(text)
    if not FIRST_YEAR <= moment.year <= LAST_YEAR:
        raise ValueError(f"{text} is not a time between the years {FIRST_YEAR} and {LAST_YEAR}")
    return moment.astimezone(UTC)
