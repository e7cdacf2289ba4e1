"""What a limiter needs of counters that gateways share."""

from collections.abc import Mapping
from typing import Protocol

from ..quotas.gcra import Rate
from ..quotas.tenant import LimitReached, Limits


class CountersAway(Exception):
    """Their server does not answer, or refuses."""


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
