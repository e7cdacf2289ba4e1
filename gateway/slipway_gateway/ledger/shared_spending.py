"""What tenants spent, in the compiled data plane: its fast lane spends of the same budgets."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..quotas.policy import Budget
from .spending import OwnSpending, Written
from .store import Spent

if TYPE_CHECKING:
    from slipway_plane import _native


class SharedSpending:
    """`Spending` in the data plane."""

    def __init__(self, native: "_native.Spending") -> None:
        self._native, self._own = native, Written()

    def read(self, spent: Mapping[str, Spent], hour: int) -> None:
        self._native.read({name: (one.day_nano, one.month_nano) for name, one in spent.items()}, hour)

    def written(self, added: Mapping[str, int], hour: int) -> None:
        self._own.add(added, hour)
        self._native.written(dict(added))

    def expect(self, tenant: str, nano: int) -> None:
        self._native.expect(tenant, nano)

    def begin(self, tenant: str, nano: int, budget: Budget, hour: int) -> str:
        return self._native.begin(tenant, nano, (budget.day_nano, budget.month_nano), hour)

    def of(self, tenant: str, hour: int) -> Spent:
        return Spent(*self._native.of(tenant, hour))

    def own(self, tenant: str, hour: int) -> OwnSpending:
        found = self._own.at(tenant, hour)
        return OwnSpending(found.day_nano, found.month_nano, self._native.unwritten(tenant))

    def exhausted(self, tenant: str, budget: Budget, hour: int) -> str:
        return self._native.exhausted(tenant, (budget.day_nano, budget.month_nano), hour)
