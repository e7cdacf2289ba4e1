"""The priority of a request, by the headers that the gateway sets; docs/contracts.md describes them."""

from collections.abc import Mapping

from slipway_contracts.headers import PRIORITY_LIMIT, SHADOW
from slipway_process.serving.errors import invalid

PRIORITY = 1001  # of a shadow request, a copy whose response is discarded: after all that clients can request


def priority_of(headers: Mapping[str, str], requested: int | None = None) -> int:
    """The priority class of a request, clamped to the gateway's limit. A shadow request has the last class.

    Raises:
        HttpError: the limit is no number (400).
    """
    return PRIORITY if SHADOW in headers else limit_priority(headers, requested or 0)


def limit_priority(headers: Mapping[str, str], requested: int) -> int:
    """The requested priority class, clamped to the gateway's limit where there is one. Lower classes run earlier.

    Raises:
        HttpError: the limit is no number (400).
    """
    given = headers.get(PRIORITY_LIMIT)
    if given is None:
        return requested
    if len(given) > 5 or not given.removeprefix("-").isdecimal() or not given.isascii():
        raise invalid(f"{PRIORITY_LIMIT} must be a number from -1000 to 1000; leave it to the gateway.")
    return max(requested, int(given))
