"""What a limiter needs of counters that gateways share."""

from collections.abc import Mapping
from typing import Protocol

from ..quotas.gcra import Rate
from ..quotas.policy import Budget
from ..quotas.tenant import LimitReached, Limits


class CountersAway(Exception):
    """Their server does not answer, or refuses."""


class SharedBudgets(Protocol):
    """What gateways spent of the budgets of tenants. `away`: their server does not answer."""

    @property
    def away(self) -> bool: ...

    async def exhausted(self, tenant: str, budget: Budget, parts: int) -> str:
        """`day` or `month` where nothing is left of it, else empty: then the request is counted before the next await.

        While their server is away this gateway has its part, one of `parts`, of what was left.

        Raises:
            CountersAway: the server was never there since this gateway started, or this day.
        """
        ...

    def last_known(self, tenant: str) -> str:
        """`day` or `month` where nothing was left of it lately, else empty."""
        ...

    async def run(self) -> None:
        """Until it is cancelled."""

    async def close(self) -> None: ...


class SharedCounters(Protocol):
    """`away`: they cannot be used now."""

    away: bool

    async def reserve(
        self, tenant: str, id_: str, limits: Limits, amounts: Mapping[str, int]
    ) -> tuple[LimitReached | None, dict[str, tuple[Rate, float]]]:
        """Raises CountersAway when it is not known whether the request was taken."""
        ...

    def begin(self, tenant: str, id_: str, *, sent: bool) -> None: ...

    def settle(self, tenant: str, id_: str, used: Mapping[str, int]) -> None: ...

    async def run(self) -> None:
        """Until it is cancelled."""

    async def close(self) -> None: ...
