"""What tenants spent, for their budgets: the ledger's totals, and costs that are not written there yet (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..quotas.policy import Budget
from .periods import day_begin, month_begin
from .store import Spent


@dataclass(frozen=True, slots=True)
class OwnSpending:
    """A tenant's costs at one gateway since it started, in billionths of the currency.

    `day_nano`, `month_nano`: written to the ledger in this UTC day and month. `unwritten_nano`: not written yet.
    """

    day_nano: int = 0
    month_nano: int = 0
    unwritten_nano: int = 0

    @property
    def total_nano(self) -> int:
        """All of this month: written, and not written yet."""
        return self.month_nano + self.unwritten_nano


_NOTHING = Spent()


class Written:
    """Costs that this process wrote to the ledger, by tenant."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[int, Spent]] = {}  # with the hour of the last write

    def add(self, added: Mapping[str, int], hour: int) -> None:
        for tenant, nano in added.items():
            former = self.at(tenant, hour)
            self._of[tenant] = hour, Spent(former.day_nano + nano, former.month_nano + nano)

    def at(self, tenant: str, hour: int) -> Spent:
        """What was written of a tenant in the day and the month of this hour."""
        then, found = self._of.get(tenant, (hour, _NOTHING))
        same_day, same_month = (begin(hour) == begin(then) for begin in (day_begin, month_begin))
        return Spent(found.day_nano * same_day, found.month_nano * same_month)


class Spending:
    """Costs of all tenants, as one process knows them, in billionths of the currency."""

    def __init__(self) -> None:
        self._spent: dict[str, Spent] = {}
        self._hour = 0
        # Costs that are not in the ledger yet: of responses that ended, and the expected ones of running requests.
        self._unwritten: dict[str, int] = {}
        self._own = Written()

    def read(self, spent: Mapping[str, Spent], hour: int) -> None:
        """Adopts the ledger's totals, read at this hour, which have all that was written until now."""
        self._spent, self._hour = dict(spent), hour

    def written(self, added: Mapping[str, int], hour: int) -> None:
        self._own.add(added, hour)
        for tenant, nano in added.items():
            former = self._spent.get(tenant, Spent())
            self._spent[tenant] = Spent(former.day_nano + nano, former.month_nano + nano)

    def expect(self, tenant: str, nano: int) -> None:
        """Adds to the costs of a tenant that are not written yet; `nano` below 0 takes from them."""
        total = self._unwritten.get(tenant, 0) + nano
        if total:
            self._unwritten[tenant] = total
        else:
            self._unwritten.pop(tenant, None)

    def begin(self, tenant: str, nano: int, budget: Budget, hour: int) -> str:
        """Expects a cost, unless a budget is used up: then it returns the period, and changes nothing."""
        if period := self.exhausted(tenant, budget, hour):
            return period
        self.expect(tenant, nano)
        return ""

    def of(self, tenant: str, hour: int) -> Spent:
        """What a tenant spent in the day and the month of this hour, with costs that are not written yet."""
        found, unwritten = self._written_at(tenant, hour), self._unwritten.get(tenant, 0)
        return Spent(found.day_nano + unwritten, found.month_nano + unwritten) if unwritten else found

    def own(self, tenant: str, hour: int) -> OwnSpending:
        """What a tenant spent at this process alone, in the day and the month of this hour."""
        found = self._own.at(tenant, hour)
        return OwnSpending(found.day_nano, found.month_nano, self._unwritten.get(tenant, 0))

    def exhausted(self, tenant: str, budget: Budget, hour: int) -> str:
        """The period whose budget a tenant has used up, `day` or `month`; empty when there is none."""
        if budget.month_nano is None and budget.day_nano is None:
            return ""
        spent, unwritten = self._written_at(tenant, hour), self._unwritten.get(tenant, 0)
        if budget.month_nano is not None and spent.month_nano + unwritten >= budget.month_nano:
            return "month"
        return "day" if budget.day_nano is not None and spent.day_nano + unwritten >= budget.day_nano else ""

    def _written_at(self, tenant: str, hour: int) -> Spent:
        """What the ledger has of a tenant for the day and the month of this hour."""
        found = self._spent.get(tenant, _NOTHING)
        if hour == self._hour:
            return found
        same_day, same_month = (begin(hour) == begin(self._hour) for begin in (day_begin, month_begin))
        return Spent(found.day_nano * same_day, found.month_nano * same_month)
