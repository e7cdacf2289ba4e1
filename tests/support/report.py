"""The report of a gateway, as the operator keeps it."""

from collections.abc import Mapping
from typing import Any

import msgspec


def as_report(routes: Mapping[str, Any]) -> dict[str, msgspec.Raw]:
    """Routes of `/internal/routes`, each as JSON."""
    return {name: msgspec.Raw(msgspec.json.encode(route)) for name, route in routes.items()}
