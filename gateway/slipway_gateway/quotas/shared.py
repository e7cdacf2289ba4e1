"""Quotas in the compiled data plane, where its fast lane takes from them too: both lanes take from the same buckets."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from .tenant import INPUT, OUTPUT, REQUESTS, LimitReached, Limits, TenantQuota

if TYPE_CHECKING:
    from slipway_plane import _native

BUCKETS = (REQUESTS, INPUT, OUTPUT)  # in the order of the data plane
_HEADERS = tuple(
    tuple(f"x-ratelimit-{kind}-{what}" for kind in ("limit", "remaining", "reset")) for what in ("requests", "tokens")
)


def limits_tuple(limits: Limits) -> "_native.Limits":
    """Limits as the data plane has them."""
    per_minute = (limits.requests_per_minute, limits.input_tokens_per_minute, limits.output_tokens_per_minute)
    return per_minute, limits.concurrency, limits.burst_s, limits.parts


def headers_of(shown: "_native.LimitHeaders") -> dict[str, str]:
    """`x-ratelimit-*` headers, of what the data plane has for requests and for tokens."""
    return {
        name: text
        for names, texts in zip(_HEADERS, shown, strict=True)
        for name, text in zip(names, texts or (), strict=False)
    }


class SharedTenantQuota:
    """`TenantQuota` in the data plane."""

    __slots__ = ("limits", "native")

    def __init__(self, limits: Limits, native: "_native.TenantQuota") -> None:
        self.limits, self.native = limits, native

    @property
    def running(self) -> int:
        return self.native.running

    def arrive(self, most: int) -> LimitReached | None:
        reached = self.native.arrive(most)
        return LimitReached(*reached) if reached else None

    def arrived(self) -> None:
        self.native.arrived()

    def reserve(self, amounts: Mapping[str, int], now_s: float) -> "_native.Reservation | LimitReached":
        reservation, reached = self.native.reserve([amounts.get(name, 0) for name in BUCKETS], now_s)
        if reservation is not None:
            return reservation
        assert reached is not None  # one of both is there
        return LimitReached(*reached)

    def settle(self, reservation: "_native.Reservation", used: Mapping[str, int], now_s: float) -> None:
        self.native.settle(reservation, [used.get(name) for name in BUCKETS], now_s)

    def enter(self) -> None:
        self.native.enter()

    def leave(self) -> None:
        self.native.leave()

    def owed(self, name: str, now_s: float) -> float:
        return self.native.owed(name, now_s)

    def headers(self, now_s: float) -> dict[str, str]:
        return headers_of(self.native.headers(now_s))


AnyQuota = TenantQuota | SharedTenantQuota


class SharedQuotas:
    """`Quotas` in the data plane."""

    def __init__(self, native: "_native.Quotas") -> None:
        self._native = native
        self._of: dict[str, SharedTenantQuota] = {}  # that Python has used

    def of(self, tenant: str, limits: Limits, now_s: float) -> SharedTenantQuota:
        found = self._of.get(tenant)
        if found is None or (found.limits is not limits and found.limits != limits):
            native = self._native.of(tenant, limits_tuple(limits), now_s)
            found = self._of[tenant] = SharedTenantQuota(limits, native)
        return found

    def find(self, tenant: str) -> SharedTenantQuota | None:
        found = self._of.get(tenant)
        if found is None and (native := self._native.find(tenant)) is not None:
            return SharedTenantQuota(Limits(), native)
        return found

    def names(self) -> Collection[str]:
        return self._native.names()

    def forget_others(self, tenants: Collection[str], now_s: float) -> None:
        self._native.forget_others(set(tenants), now_s)
        left = set(self._native.names())
        for name in [name for name in self._of if name not in left]:
            del self._of[name]
