"""Chooses requests to mirror and to compare, by a hash of the request's id (pure).

The split hashes the sticky key, and each mirror has its own salt, so the choices are independent.
"""

from collections.abc import Mapping

from slipway_contracts.route_table import MirrorRoute

from .router import fits
from .split import choose
from .table import Route


def choose_mirror(route: Route, answering: str, request_id: str, headers: Mapping[str, str]) -> MirrorRoute | None:
    """The first mirror that copies a request which the revision `answering` serves, or None.

    `headers` is case-insensitive.
    """
    return next((one for one in route.mirror_routes if _takes(one, route, answering, request_id, headers)), None)


def is_paired(route: Route, key: str) -> bool:
    """Whether the session `key`, with all its requests, is copied to a canary pod and its twin."""
    shadow = route.twin_shadow
    return shadow is not None and choose([shadow.percentage], f"{route.salt}\0twins", key) is not None


def is_compared(route: Route, request_id: str, percentage: int) -> bool:
    """Whether the answers to a mirrored request are among those that are compared."""
    return choose([percentage], f"{route.salt}\0compare", request_id) is not None


def _takes(one: MirrorRoute, route: Route, answering: str, request_id: str, headers: Mapping[str, str]) -> bool:
    if one.revision == answering or not fits(one.match, headers):
        return False
    return choose([one.percentage], f"{route.salt}\0mirror\0{one.name}", request_id) is not None
