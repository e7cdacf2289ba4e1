"""How much of a total one tenant may have: the last quarter is for tenants that have nothing of it (pure)."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Shares:
    """`most` places, and how many each tenant has taken. Without authentication all clients are the tenant ""."""

    most: int
    taken: Counter[str] = field(default_factory=Counter)

    def room(self, tenant: str) -> int:
        """How many more places the tenant may take."""
        free = self.most - self.taken.total()
        if not tenant:
            return max(0, free)
        beyond_reserve = free - self.reserve
        return max(0, beyond_reserve if self.taken[tenant] else min(free, max(1, beyond_reserve)))

    @property
    def reserve(self) -> int:
        return -(-self.most // 4) if self.most > 1 else 0

    def take(self, tenant: str) -> bool:
        """Take one place; False where the tenant may not."""
        if self.room(tenant) <= 0:
            return False
        self.taken[tenant] += 1
        return True

    def give_back(self, tenant: str) -> None:
        self.taken[tenant] -= 1
        if not self.taken[tenant]:
            del self.taken[tenant]
