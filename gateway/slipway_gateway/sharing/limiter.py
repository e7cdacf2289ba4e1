"""Admits requests within the limits of their tenants, by shared counters or this gateway's part, and settles them."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from ..quotas.registry import Quotas
from ..quotas.shared import AnyQuota, SharedQuotas, headers_of
from ..quotas.tenant import (
    CONCURRENCY,
    INPUT,
    OUTPUT,
    REQUESTS,
    LimitReached,
    Limits,
    Share,
    headers,
)
from .counters import CountersAway, SharedCounters
from .ready_gateways import ReadyGateways

if TYPE_CHECKING:
    from slipway_plane import _native

GRACE_S = 0.05
_NOTHING = {REQUESTS: 0, INPUT: 0, OUTPUT: 0}


class Taken(msgspec.Struct, frozen=True):
    """A request that was admitted. `headers`: `x-ratelimit-*`, which show clients the tenant's limits."""

    tenant: str
    id: str
    quota: AnyQuota
    headers: dict[str, str]
    reservation: Any  # of the quota's own kind; None: it is at the server of the shared counters


@dataclass(frozen=True, slots=True)
class LimitRefusal:
    """A request that a limit refused. `headers`: `x-ratelimit-*`, which show clients the tenant's limits."""

    reached: LimitReached
    headers: Mapping[str, str]


class Limiter:
    """Limits of one gateway. `counters`: shared with other gateways; None: there are none."""

    def __init__(
        self, clock: Callable[[], float], gateways: ReadyGateways | None = None, counters: SharedCounters | None = None
    ) -> None:
        self._clock = clock
        self._gateways = gateways or ReadyGateways()
        self._counters = counters
        self.quotas: Quotas | SharedQuotas = Quotas()

    @property
    def parts(self) -> int:
        """The number of gateways that divide limits and budgets which they do not count together."""
        return self.share.parts

    @property
    def share(self) -> Share:
        """This gateway's share of limits that it does not count with others."""
        return self._gateways.share

    @property
    def counters(self) -> SharedCounters | None:
        """Where limits are counted with other gateways; None: they are not."""
        return self._counters

    def part(self, limits: Limits) -> Limits:
        """This gateway's part of limits that it does not count with others."""
        return limits if self.share.parts <= 1 else limits.part(self.share)

    def adopt(
        self,
        tenant: str,
        id_: str,
        limits: Limits,
        reservation: "_native.Reservation | None",
        shown: "_native.LimitHeaders",
    ) -> Taken:
        """A request that the fast lane has admitted, by shared counters where there is no reservation.

        `shown`: the limits as they were then.
        """
        quota = self._quota(tenant, limits, self._clock())
        return Taken(tenant, id_, quota, headers_of(shown), reservation)

    async def reserve(self, tenant: str, id_: str, limits: Limits, amounts: Mapping[str, int]) -> Taken | LimitRefusal:
        """Admits a request and takes `amounts`, or refuses it. `id_`: unique to the request. `settle` ends it, once."""
        now_s = self._clock()
        quota = self._quota(tenant, limits, now_s)
        counters = self._counters
        if counters is None or not limits.any:
            return self._reserve_here(quota, tenant, id_, amounts, now_s)
        tried = not counters.away
        if tried:
            try:
                return await self._reserve_shared(counters, quota, tenant, id_, limits, amounts)
            except CountersAway:
                pass  # and now here, so that the request is not lost
        found = self._reserve_here(quota, tenant, id_, amounts, self._clock())
        if tried or isinstance(found, Taken):
            counters.begin(tenant, id_, sent=tried)
            if isinstance(found, LimitRefusal):
                counters.settle(tenant, id_, _NOTHING)  # the server may have taken it
        return found

    def arrive(self, tenant: str, limits: Limits) -> AnyQuota | LimitRefusal:
        """The body of a request is awaited, until `arrived` of the returned quota; or too many are, at this gateway."""
        now_s = self._clock()
        quota = self._quota(tenant, limits, now_s)
        reached = quota.arrive(limits.concurrency if self._counters else quota.limits.concurrency)
        return LimitRefusal(reached, quota.headers(now_s)) if reached else quota

    def _quota(self, tenant: str, limits: Limits, now_s: float) -> AnyQuota:
        return self.quotas.of(tenant, self.part(limits), now_s)

    def settle(self, taken: Taken, used: Mapping[str, int]) -> None:
        if taken.reservation is None:
            taken.quota.leave()
        else:
            taken.quota.settle(taken.reservation, used, self._clock())
        if self._counters is not None:
            self._counters.settle(taken.tenant, taken.id, used)

    async def _reserve_shared(
        self,
        counters: SharedCounters,
        quota: AnyQuota,
        tenant: str,
        id_: str,
        limits: Limits,
        amounts: Mapping[str, int],
    ) -> Taken | LimitRefusal:
        try:
            reached, states = await counters.reserve(tenant, id_, limits, amounts)
            if reached and reached.limit == CONCURRENCY:
                # A client's next request may come before another gateway has settled the one that just ended.
                await asyncio.sleep(GRACE_S)
                reached, states = await counters.reserve(tenant, id_, limits, amounts)
        except asyncio.CancelledError:
            counters.begin(tenant, id_, sent=True)
            counters.settle(tenant, id_, _NOTHING)  # the server may have taken it
            raise
        if reached:
            return LimitRefusal(reached, headers(states))
        quota.enter()
        counters.begin(tenant, id_, sent=True)
        return Taken(tenant, id_, quota, headers(states), None)

    def _reserve_here(
        self, quota: AnyQuota, tenant: str, id_: str, amounts: Mapping[str, int], now_s: float
    ) -> Taken | LimitRefusal:
        found = quota.reserve(amounts, now_s)
        if isinstance(found, LimitReached):
            return LimitRefusal(found, quota.headers(now_s))
        return Taken(tenant, id_, quota, quota.headers(now_s), found)
