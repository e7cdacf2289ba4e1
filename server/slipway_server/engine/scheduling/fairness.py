"""Which tenant is served next: strict priority classes, and within a class the least served tenant by weight.

Weighted virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024): each tenant's
counter grows by what it is served, divided by its weight. A tenant is charged when a token is scheduled, so that a long
answer cannot take more than its share.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

PROMPT_COST, OUTPUT_COST = 1.0, 2.0
MAX_IDLE_TENANTS = 10_000


@dataclass(slots=True)
class _Account:
    served: float = 0.0  # cost units per weight
    active: int = 0  # requests that wait or run


@dataclass(slots=True)
class Fairness:
    _accounts: dict[str, _Account] = field(default_factory=dict)
    _num_active: int = 0  # tenants
    _last_served: float = 0.0  # the counter of the tenant that was active last

    def enter(self, tenant: str) -> None:
        """A request arrives. An idle tenant starts level with the least served one: idle time earns no credit.

        If no tenant is active, it starts level with the last active one, so that it has no advantage over that one.
        """
        account = self._accounts.setdefault(tenant, _Account())
        if account.active == 0:
            active = (item.served for item in self._accounts.values() if item.active)
            account.served = max(account.served, min(active, default=self._last_served))
            self._num_active += 1
        account.active += 1

    def leave(self, tenant: str) -> None:
        """A request ended."""
        account = self._accounts[tenant]
        account.active -= 1
        if account.active == 0:
            self._num_active -= 1
            self._last_served = account.served
        if len(self._accounts) > MAX_IDLE_TENANTS:
            self._accounts = {name: item for name, item in self._accounts.items() if item.active}

    def charge(self, tenant: str, weight: float, *, prompt: int = 0, output: int = 0) -> None:
        """Charges computed tokens of a request. Cached tokens cost nothing."""
        self._accounts[tenant].served += (PROMPT_COST * prompt + OUTPUT_COST * output) / weight

    def served(self, tenant: str) -> float:
        account = self._accounts.get(tenant)
        return account.served if account else 0.0

    def least(self, tenants: Iterable[str]) -> str:
        """The tenant that was served least for its weight."""
        return min(tenants, key=lambda name: (self.served(name), name))
