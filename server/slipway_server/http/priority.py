"""How urgent a client's request may be, as the gateway says. What the two say to each other is in docs/contracts.md."""

from collections.abc import Mapping

from .errors import invalid

PRIORITY_LIMIT = "X-Slipway-Priority-Limit"


def limit_priority(headers: Mapping[str, str], requested: int) -> int:
    """The class that was asked for, of which lower ones run earlier, held to the gateway's limit where it says one.

    Raises:
        ApiError: the limit is no number (400).
    """
    given = headers.get(PRIORITY_LIMIT)
    if given is None:
        return requested
    if len(given) > 5 or not given.removeprefix("-").isdecimal() or not given.isascii():
        raise invalid(f"{PRIORITY_LIMIT} must be a number from -1000 to 1000; leave it to the gateway.")
    return max(requested, int(given))
