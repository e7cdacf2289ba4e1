"""Whose request it is, as the gateway says it. What the two say to each other stands in docs/contracts.md."""

import re
from collections.abc import Mapping

from .errors import invalid

TENANT = "X-Slipway-Tenant"

_TENANT = re.compile(r"[0-9a-f]{32}")


def tenant_of(headers: Mapping[str, str]) -> str:
    """Between tenants the engine is fair, and each has cached beginnings of its own. Empty: all whom nobody named."""
    given = headers.get(TENANT, "")
    if given and not _TENANT.fullmatch(given):
        raise invalid(f"{TENANT} must be 32 hexadecimal digits; leave it to the gateway.")
    return given
