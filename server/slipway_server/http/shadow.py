"""Copies of requests whose answers nobody waits for, as the gateway marks them; docs/contracts.md has the words."""

from collections.abc import Mapping

from .priority import limit_priority

SHADOW = "X-Slipway-Shadow"
PRIORITY = 1001  # behind all that clients can ask for


def priority_of(headers: Mapping[str, str], requested: int | None = None) -> int:
    """The class of a request, of which lower ones run earlier: as far as it may be asked for; a shadow has the last."""
    return PRIORITY if SHADOW in headers else limit_priority(headers, requested or 0)
