"""The latencies that requests have to hold, as `--slo` and `spec.slo` write them; pure."""

import re
from collections.abc import Mapping
from typing import Any

from slipway_contracts.service_levels import ITL, LATENCY, LONGEST_MS, TTFT

Objectives = Mapping[str, int]  # limits in milliseconds, by objective

SHARES = {TTFT: 0.95, ITL: 0.95, LATENCY: 0.99}  # of the requests that have to stay within the limit
EXAMPLE = "ttftP95=800ms,itlP95=60ms,latencyP99=2s"

_LIMIT = re.compile(r"([1-9][0-9]{0,6})(ms|s)")


def parse(text: str) -> Objectives:
    """Objectives of a text like EXAMPLE.

    Raises:
        ValueError: with the part that is wrong.
    """
    limits: dict[str, int] = {}
    for part in text.split(","):
        name, is_there, limit = part.strip().partition("=")
        if name not in SHARES or not is_there:
            raise ValueError(f"{part.strip()[:40]!r} is none of {', '.join(SHARES)} with a limit: write {EXAMPLE}")
        if name in limits:
            raise ValueError(f"{name} has two limits")
        limits[name] = _limit_ms(name, limit)
    return limits


def of_spec(spec: Mapping[str, Any]) -> Objectives:
    """The latencies of `spec.slo`; empty where it has none. Availability is no latency.

    Raises:
        ValueError: with the field that is wrong.
    """
    written = spec.get("slo")
    if not isinstance(written, Mapping):
        return {}
    return {name: _limit_ms(f"spec.slo.{name}", written[name]) for name in SHARES if written.get(name) is not None}


def text_of(objectives: Objectives) -> str:
    """The text that `parse` reads."""
    return ",".join(f"{name}={limit}ms" for name, limit in objectives.items())


def _limit_ms(name: str, text: Any) -> int:
    match = _LIMIT.fullmatch(text) if isinstance(text, str) else None
    if not match:
        raise ValueError(f"{name}: {str(text)[:40]!r} is no time like 800ms or 2s")
    limit = int(match[1]) * (1 if match[2] == "ms" else 1000)
    if limit > LONGEST_MS:
        raise ValueError(f"{name}: {text} is longer than {LONGEST_MS // 1000}s")
    return limit
