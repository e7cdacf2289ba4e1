"""Retry budgets: how many retries and fallbacks may be in progress beside the requests of a route (pure).

As Envoy's: the greater one of a percentage of the requests in progress and a number. See retry_budget in
https://www.envoyproxy.io/docs/envoy/latest/api-v3/config/cluster/v3/circuit_breaker.proto
"""

from collections import Counter

from ..routing.table import Route


class RetryBudgets:
    """Retries in progress at one gateway, by route."""

    def __init__(self) -> None:
        self._active: Counter[str] = Counter()

    def take(self, route: Route | None, requests: int) -> bool:
        """Begins a retry until `leave`, if the budget has room. `requests`: of the route, in progress."""
        if route is None or (budget := route.retry_budget) is None:
            return True
        most = max(budget.min_retry_concurrency, requests * budget.budget_percent // 100)
        if self._active[route.name] >= most:
            return False
        self._active[route.name] += 1
        return True

    def leave(self, name: str) -> None:
        """A retry has ended. Without effect for a route that had no budget when it began."""
        if self._active[name] > 1:
            self._active[name] -= 1
        else:
            self._active.pop(name, None)

    def active(self, name: str) -> int:
        """Retries of a route in progress."""
        return self._active.get(name, 0)
