"""The gateway's limit on a request's priority. The protocol is described in docs/contracts.md."""

from collections.abc import Mapping

from slipway_contracts.headers import PRIORITY_LIMIT

from ..errors import invalid


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
