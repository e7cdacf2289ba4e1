"""What tenants spent, for their budgets: as the ledger says, and what it does not know yet (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..quotas.policy import Budget
from .periods import day_begin, month_begin
from .store import Spent


@dataclass(frozen=True, slots=True)
class OwnSpending:
    """What one gateway spent since it started: brought to the ledger this day and this month, and not yet."""

    day_nano: int = 0
    month_nano: int = 0
    unwritten_nano: int = 0

    @property
    def total_nano(self) -> int:
        """Of this month."""
        return self.month_nano + self.unwritten_nano


_NOTHING = Spent()


class Spending:
    """Of all tenants, in one process."""

    def __init__(self) -> None:
        self._spent: dict[str, Spent] = {}
        self._hour = 0
        # Costs that are not in the ledger yet: of responses that ended, and what running ones may come to.
        self._unwritten: dict[str, int] = {}
        self._own: dict[str, tuple[int, Spent]] = {}  # what this process wrote, and the hour of the last time

    def read(self, spent: Mapping[str, Spent], hour: int) -> None:
        """What the ledger has, with all that was written until now."""
        self._spent, self._hour = dict(spent), hour

    def written(self, added: Mapping[str, int], hour: int) -> None:
        for tenant, nano in added.items():
            own = self.own(tenant, hour)
            self._own[tenant] = hour, Spent(own.day_nano + nano, own.month_nano + nano)
            former = self._spent.get(tenant, Spent())
            self._spent[tenant] = Spent(former.day_nano + nano, former.month_nano + nano)

    def expect(self, tenant: str, nano: int) -> None:
        """More or, below 0, less is not written yet."""
        total = self._unwritten.get(tenant, 0) + nano
        if total:
            self._unwritten[tenant] = total
        else:
            self._unwritten.pop(tenant, None)

    def of(self, tenant: str, hour: int) -> Spent:
        """In the day and the month of this hour."""
        found, unwritten = self._spent.get(tenant, _NOTHING), self._unwritten.get(tenant, 0)
        if hour == self._hour:
            return Spent(found.day_nano + unwritten, found.month_nano + unwritten) if unwritten else found
        same_day, same_month = (begin(hour) == begin(self._hour) for begin in (day_begin, month_begin))
        return Spent(found.day_nano * same_day + unwritten, found.month_nano * same_month + unwritten)

    def own(self, tenant: str, hour: int) -> OwnSpending:
        """Of this process alone."""
        then, found = self._own.get(tenant, (hour, Spent()))
        same_day, same_month = (begin(hour) == begin(then) for begin in (day_begin, month_begin))
        return OwnSpending(found.day_nano * same_day, found.month_nano * same_month, self._unwritten.get(tenant, 0))

    def exhausted(self, tenant: str, budget: Budget, hour: int) -> str:
        """`day` or `month` where nothing of it is left, else empty."""
        if not budget.any:
            return ""
        spent = self.of(tenant, hour)
        if budget.month_nano is not None and spent.month_nano >= budget.month_nano:
            return "month"
        return "day" if budget.day_nano is not None and spent.day_nano >= budget.day_nano else ""
