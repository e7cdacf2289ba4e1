"""Series of what tenants have used of their budgets."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

MOST_TENANTS = 5_000
Shares = Mapping[str, float]  # by period, day or month


class TenantBudgets(Collector):
    """Shares of budgets, as the last look at all Tenants found them."""

    def __init__(self) -> None:
        self._known: Mapping[str, Shares] = {}

    def show(self, used: Mapping[str, Shares]) -> None:
        """Store the used shares by Tenant; a Tenant without a budget has none."""
        self._known = used

    def collect(self) -> Iterator[Any]:
        """Yield the series at each scrape."""
        used = GaugeMetricFamily(
            "slipway_tenant_budget_used_ratio",
            "Share of a tenant's budget of the present day or month that is used.",
            labels=("tenant", "period"),
        )
        for tenant, shares in islice(self._known.items(), MOST_TENANTS):
            for period, share in shares.items():
                used.add_metric((tenant, period), share)
        yield used
