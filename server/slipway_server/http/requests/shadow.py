"""Shadow requests: copies that the gateway marks and whose responses are discarded; see docs/contracts.md."""

from collections.abc import Mapping

from slipway_contracts.headers import SHADOW

from .priority import limit_priority

PRIORITY = 1001  # after all priorities that clients can request


def priority_of(headers: Mapping[str, str], requested: int | None = None) -> int:
    """The priority class of a request, clamped to the gateway's limit. A shadow request has the last class."""
    return PRIORITY if SHADOW in headers else limit_priority(headers, requested or 0)
