"""Budgets that several gateways count together at a Redis server, where each reserves an amount that it may spend.

Requests do not wait for the server while the amount lasts. A gateway writes what it spent there twice a second.
"""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from redis.asyncio import Redis
from redis.exceptions import RedisError

from ..ledger.periods import day_begin, month_begin
from ..ledger.spending import OwnSpending
from ..quotas.policy import Budget
from ..telemetry.metrics import GatewayMetrics
from .counters import CountersAway
from .redis_client import drop_connections, open_client, refuse_cluster
from .redis_counters import cancellations
from .scripts import SPEND

log = logging.getLogger(__name__)

LEASE_S, RENEW_EACH_S = 30.0, 10.0
SYNC_EACH_S, RETRY_EACH_S = 0.5, 1.0
# How long an answer that nothing is left counts: requests that it refuses do not all call the server again.
FRESH_S = 0.1
# Time after the server lost its data until all gateways have written theirs again.
SETTLED_AFTER_S = 3.0
_IDLE_AFTER_S = 2.0
_FORGOTTEN_AFTER_S = 60.0
_BATCH = 100
_CONNECTIONS = 2
_NANO_PER_UNIT = 1000
_FAILURES = (RedisError, OSError, TimeoutError)


@dataclass(frozen=True, slots=True)
class _Share:
    """What the server answered about one tenant. Amounts are in nano; `left` of a period without a budget is None."""

    at_s: float
    hour: int
    budget: Budget
    own: OwnSpending  # as it was written there
    left_day: int | None
    left_month: int | None
    granted: int

    def period(self, left_at_most: int = 0) -> str:
        if self.left_month is not None and self.left_month <= left_at_most:
            return "month"
        return "day" if self.left_day is not None and self.left_day <= left_at_most else ""


@dataclass(slots=True)
class _SpendingTenant:
    """A tenant whose requests come to this gateway. `wanted_s`: time of the last one."""

    budget: Budget
    parts: int
    wanted_s: float
    share: _Share | None = None
    waiting: "asyncio.Future[None] | None" = None  # for an answer of the server

    def answered(self) -> None:
        waiting, self.waiting = self.waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)


class RedisBudgets:
    """See `SharedBudgets`. `own`: returns this gateway's spending of a tenant. `hour`: returns the hour (Unix time)."""

    def __init__(
        self,
        url: str,
        prefix: str,
        timeout_s: float,
        metrics: GatewayMetrics,
        *,
        own: Callable[[str], OwnSpending],
        hour: Callable[[], int],
    ) -> None:
        self._client: Redis = open_client(url, _CONNECTIONS, timeout_s)
        self._prefix, self._timeout_s, self._metrics = prefix, timeout_s, metrics
        self._own, self._hour = own, hour
        self._clock = asyncio.get_running_loop().time
        self._id = uuid.uuid4().hex
        self._sequence = 0
        self._followed: dict[str, _SpendingTenant] = {}
        self._wake = asyncio.Event()
        self._reached = False
        self._complete_from_s = float("-inf")  # answers of before may lack what other gateways spent

    @property
    def away(self) -> bool:
        """Whether the server does not answer, or has lost its data and not got it again."""
        return not self._reached or self._clock() < self._complete_from_s

    async def exhausted(self, tenant: str, budget: Budget, parts: int) -> str:
        """See `counters.SharedBudgets`."""
        followed = self._follow(tenant, budget, parts)
        deadline_s = self._clock() + 3 * self._timeout_s
        while not self.away:
            if (verdict := self._verdict(tenant, followed)) is not None:
                return verdict
            if self._clock() >= deadline_s:
                break
            await self._synced(followed, deadline_s)
        return self._alone(tenant, followed)

    def allows(self, tenant: str, budget: Budget, parts: int) -> bool:
        """See `counters.SharedBudgets`."""
        followed = self._follow(tenant, budget, parts)
        return not self.away and self._verdict(tenant, followed) == ""

    def _follow(self, tenant: str, budget: Budget, parts: int) -> _SpendingTenant:
        followed = self._followed.setdefault(tenant, _SpendingTenant(budget, parts, 0.0))
        followed.budget, followed.parts, followed.wanted_s = budget, parts, self._clock()
        return followed

    def last_known(self, tenant: str) -> str:
        followed = self._followed.get(tenant)
        share = followed.share if followed else None
        return share.period() if share and self._same_day(share) else ""

    async def run(self) -> None:
        """Writes new spending to the server and reads what is left; tries again each second while it is away."""
        while not cancellations():
            try:
                await self._sync()
                self._recovered()
            except Exception as error:
                self._failed(error)  # requests do not wait for answers that never come
                await drop_connections(self._client)
                if not isinstance(error, _FAILURES):
                    raise
            self._metrics.shared_budgets.set(not self.away)
            if not self._reached:
                await asyncio.sleep(RETRY_EACH_S)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SYNC_EACH_S):
                    await self._wake.wait()

    async def close(self) -> None:
        """Writes what was spent last, if the server is there."""
        try:
            if self._reached:
                await self._sync()
        except _FAILURES as error:
            self._failed(error)
        finally:
            await drop_connections(self._client)

    # -- decisions

    def _verdict(self, tenant: str, followed: _SpendingTenant) -> str | None:
        """As `exhausted`, by the server's last answer; None: the server has to be called first."""
        share = followed.share
        # While a call is under way the server may already have taken back what was reserved before.
        if followed.waiting or share is None or share.at_s < self._complete_from_s:
            return None
        if share.budget != followed.budget or not self._same_day(share):
            return None
        age_s = self._clock() - share.at_s
        if period := share.period():
            return period if age_s < FRESH_S else None
        # At least one unit: as long as something is left, one more request is taken.
        may_spend = share.own.total_nano + max(share.granted, 1)
        return "" if age_s < LEASE_S and self._own(tenant).total_nano < may_spend else None

    def _alone(self, tenant: str, followed: _SpendingTenant) -> str:
        """As `exhausted`, without the server: from its last answer, less `parts` times this gateway's spending since.

        Raises:
            CountersAway: nothing is known of this day.
        """
        share = followed.share
        if share is None or share.budget != followed.budget or not self._same_day(share):
            raise CountersAway
        spent = self._own(tenant).total_nano - share.own.total_nano
        return share.period(max(0, spent * followed.parts))

    def _same_day(self, share: _Share) -> bool:
        return day_begin(share.hour) == day_begin(self._hour())

    # -- at the server

    async def _synced(self, followed: _SpendingTenant, deadline_s: float) -> None:
        """Waits until the server has answered about the tenant or has failed, or until the deadline."""
        if followed.waiting is None:
            followed.waiting = asyncio.get_running_loop().create_future()
            self._wake.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, deadline_s - self._clock())):
                await asyncio.shield(followed.waiting)

    async def _sync(self) -> None:
        """Writes the spending of all tenants that are due and reads what is left. A server that was away is pinged."""
        self._wake.clear()
        now_s = self._clock()
        self._forget(now_s)
        due = [tenant for tenant, followed in self._followed.items() if self._is_due(tenant, followed, now_s)]
        if not self._reached:
            async with asyncio.timeout(self._timeout_s):
                await refuse_cluster(self._client)
                await self._client.ping()
        for begin in range(0, len(due), _BATCH):
            await self._sync_batch(due[begin : begin + _BATCH])

    def _is_due(self, tenant: str, followed: _SpendingTenant, now_s: float) -> bool:
        share = followed.share
        if followed.waiting is not None or share is None or share.own != self._own(tenant):
            return True
        if now_s - followed.wanted_s < _IDLE_AFTER_S:
            return now_s - share.at_s >= SYNC_EACH_S
        return bool(share.granted) or (bool(share.own.unwritten_nano) and now_s - share.at_s >= RENEW_EACH_S)

    def _forget(self, now_s: float) -> None:
        """Drops tenants without requests for a minute, once the server has all their spending."""
        for tenant, followed in list(self._followed.items()):
            idle = now_s - followed.wanted_s >= _FORGOTTEN_AFTER_S
            if idle and not self._own(tenant).unwritten_nano and not self._is_due(tenant, followed, now_s):
                del self._followed[tenant]

    async def _sync_batch(self, tenants: list[str]) -> None:
        began_s, hour = self._clock(), self._hour()
        sent = [(tenant, self._followed[tenant], self._own(tenant)) for tenant in tenants]
        for _, followed, _ in sent:
            followed.waiting = followed.waiting or asyncio.get_running_loop().create_future()
        budgets = {tenant: followed.budget for tenant, followed, _ in sent}  # they may change meanwhile
        async with asyncio.timeout(self._timeout_s), self._client.pipeline(transaction=False) as pipeline:
            for tenant, followed, own in sent:
                pipeline.eval(SPEND, 2, *self._keys(tenant, hour), *self._arguments(followed, own, hour, began_s))
            answers = await pipeline.execute()
        for (_, followed, _), (*_, was_known) in zip(sent, answers, strict=True):
            if followed.share is not None and not was_known and month_begin(followed.share.hour) == month_begin(hour):
                self._complete_from_s = self._clock() + SETTLED_AFTER_S
        for (tenant, followed, own), (day, month, granted, _) in zip(sent, answers, strict=True):
            lefts = [int(one) * _NANO_PER_UNIT if one else None for one in (day, month)]
            more = int(granted) * _NANO_PER_UNIT
            if began_s >= self._complete_from_s:
                followed.share = _Share(began_s, hour, budgets[tenant], own, lefts[0], lefts[1], more)
            followed.answered()

    def _arguments(
        self, followed: _SpendingTenant, own: OwnSpending, hour: int, now_s: float
    ) -> list[str | int | float]:
        self._sequence += 1
        budget = followed.budget
        spent = [-(-nano // _NANO_PER_UNIT) for nano in (own.day_nano, own.month_nano, own.unwritten_nano)]
        limits = [-1 if nano is None else nano // _NANO_PER_UNIT for nano in (budget.day_nano, budget.month_nano)]
        reserves = int(now_s - followed.wanted_s < _IDLE_AFTER_S)
        return [self._id, self._sequence, LEASE_S, day_begin(hour), *spent, *limits, followed.parts, reserves]

    def _keys(self, tenant: str, hour: int) -> list[str]:
        """The two keys of a tenant's month. Its name in braces is the hash tag: one slot of a cluster has both."""
        month = month_begin(hour)
        return [f"{self._prefix}:{{{tenant}}}:{name}:{month}" for name in ("spent", "spenders")]

    def _failed(self, error: BaseException) -> None:
        self._metrics.shared_limits_failures.inc()
        if self._reached:
            trouble = f"{type(error).__name__}: {error}"[:300]
            log.warning("budgets are not shared now, each gateway uses its part of them: %s", trouble)
        self._reached = False
        for followed in self._followed.values():
            followed.answered()

    def _recovered(self) -> None:
        if not self._reached:
            log.info("budgets are shared by Redis")
        self._reached = True
