"""What a limiter needs of counters that gateways share."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from ..quotas.gcra import Rate
from ..quotas.policy import Budget
from ..quotas.tenant import LimitReached, Limits


class OnAnswer(Protocol):
    """Gets an answer of the counters."""

    def __call__(self, full_s: list[float] | None, *, known: bool) -> None:
        """`full_s`: seconds until each bucket is full; None: it was not taken. `known`: whether that is known."""


class CountersAway(Exception):
    """The server of the shared counters does not answer, or refuses the call."""


class SharedClaims(Protocol):
    """What any gateway of the release has counted, kept in a store that gateways share."""

    async def claim(self, ids: Sequence[bytes], seconds: float) -> list[bool]:
        """Claims ids for `seconds`; returns whether each one was new. Raises CountersAway: that is not known."""

    async def close(self) -> None: ...


class SharedBudgets(Protocol):
    """What all gateways together spent of tenants' budgets. `away`: the server that counts it does not answer."""

    @property
    def away(self) -> bool: ...

    async def exhausted(self, tenant: str, budget: Budget, parts: int) -> str:
        """The period of which nothing is left, `day` or `month`; else empty: the caller counts the request at once.

        While the server is away this gateway may spend its part, one of `parts`, of what was left.

        Raises:
            CountersAway: nothing is known, because the server has not answered since this gateway or this day began.
        """
        ...

    def allows(self, tenant: str, budget: Budget, parts: int) -> bool:
        """Whether something is left of a budget, by the last answer of the server; false: it has to be called first."""
        ...

    def last_known(self, tenant: str) -> str:
        """`day` or `month` where nothing was left of it lately, else empty."""
        ...

    async def run(self) -> None:
        """Until it is cancelled."""

    async def close(self) -> None: ...


class SharedCounters(Protocol):
    """Limits of tenants, counted for all gateways together. `away`: the counters cannot be used now."""

    away: bool

    async def reserve(
        self, tenant: str, id_: str, limits: Limits, amounts: Mapping[str, int]
    ) -> tuple[LimitReached | None, dict[str, tuple[Rate, float]]]:
        """The limit that refused the request, or None; and by limit its rate and the seconds until its bucket is full.

        Raises CountersAway when it is not known whether the request was taken.
        """
        ...

    def call(self, tenant: str, id_: str, limits: Limits, amounts: Mapping[str, int], on_answer: OnAnswer) -> None:
        """As `reserve`, for a request of the fast lane; a request that was taken did not `begin` yet."""
        ...

    def begin(self, tenant: str, id_: str, *, sent: bool) -> None: ...

    def settle(self, tenant: str, id_: str, used: Mapping[str, int]) -> None: ...

    async def run(self) -> None:
        """Until it is cancelled."""

    async def close(self) -> None: ...
