"""Times and durations as people write and read them; pure."""

import re
from datetime import UTC, datetime

HOURS_PER_MONTH = 730

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def parse_time(text: str | None) -> datetime | None:
    """A datetime in UTC from RFC 3339; None for none, and for one that the API takes and Python does not."""
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC) if text else None
    except (ValueError, OverflowError):
        return None


def parse_duration_s(text: str) -> int:
    """Seconds of `90`, `30s`, `10m` or `1h30m`.

    Raises:
        ValueError: when the text has another form.
    """
    if text.isdecimal():
        return int(text)
    match = _DURATION.fullmatch(text)
    if not match or not text:
        raise ValueError(f"'{text}' is not a duration: write for example 30s, 10m or 1h30m")
    return sum(int(part or 0) * seconds for part, (_, seconds) in zip(match.groups(), _UNITS, strict=True))


def format_duration(seconds: float) -> str:
    """A duration with two units at most, as kubectl writes it: 45s, 3m12s, 4h5m, 3d2h."""
    left = max(0, int(seconds))
    parts: list[str] = []
    for unit, size in _UNITS:
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
    return "".join(parts[:2]) or "0s"


def format_age(moment: datetime | None, now: datetime) -> str:
    """How long ago; `?` when that is not known."""
    return format_duration((now - moment).total_seconds()) if moment else "?"
