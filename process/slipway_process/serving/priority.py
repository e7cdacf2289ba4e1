"""The priority of a request, by the headers that the gateway sets; docs/contracts.md describes them."""

from collections.abc import Mapping

from slipway_contracts.headers import PRIORITY_LIMIT, SHADOW
from slipway_process.serving.errors import invalid

PRIORITY = 1001  # of a shadow request, a copy whose response is discarded: after all that clients can request


def priority_of(headers: Mapping[str, str], requested: int | None = None) -> int:
    """The priority class of a request, clamped to the gateway's limit. Lower classes run earlier; a shadow
    request has the last one.

    Raises:
        HttpError: the limit is no number (400).
    """
    if SHADOW in headers:
        return PRIORITY
    given = headers.get(PRIORITY_LIMIT)
    if given is None:
        return requested or 0
    if len(given) > 5 or not given.removeprefix("-").isdecimal() or not given.isascii():
        raise invalid(f"{PRIORITY_LIMIT} must be a number from -1000 to 1000; leave it to the gateway.")
    return max(requested or 0, int(given))
