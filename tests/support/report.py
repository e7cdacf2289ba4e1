"""The report of a gateway, as the operator keeps it, and as it is in JSON."""

from collections.abc import Mapping
from typing import Any

import msgspec

from slipway_gateway.balancing.load_balancer import LoadBalancer


def as_report(routes: Mapping[str, Any]) -> dict[str, msgspec.Raw]:
    """Routes of `/internal/routes`, each as JSON."""
    return {name: msgspec.Raw(msgspec.json.encode(route)) for name, route in routes.items()}


def as_json(report: Any) -> Any:
    """A report, or a part of one, as a reader of its JSON gets it."""
    return msgspec.json.decode(msgspec.json.encode(report))


def route_reports(balancer: LoadBalancer) -> dict[str, Any]:
    """The `routes` that the gateway reports now, as a reader of their JSON gets them."""
    return dict(as_json(balancer.report()))
