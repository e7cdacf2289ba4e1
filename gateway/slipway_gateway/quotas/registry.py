"""The quotas of all tenants in one process."""

from collections.abc import Collection

from .tenant import Limits, TenantQuota


class Quotas:
    """The quota of each tenant. It is kept while the tenant exists, and longer while its buckets are not full."""

    def __init__(self) -> None:
        self._of: dict[str, TenantQuota] = {}

    def of(self, tenant: str, limits: Limits, now_s: float) -> TenantQuota:
        """The quota of a tenant, with these limits from now on."""
        found = self._of.get(tenant)
        if found is None:
            found = self._of[tenant] = TenantQuota(limits)
        elif found.limits is not limits and found.limits != limits:
            found.change(limits, now_s)
        return found

    def find(self, tenant: str) -> TenantQuota | None:
        return self._of.get(tenant)

    def names(self) -> Collection[str]:
        """Tenants that have a quota."""
        return self._of.keys()

    def forget_others(self, tenants: Collection[str], now_s: float) -> None:
        """Drops the quotas of all other tenants, except where a bucket is not full or a request runs."""
        for name in [name for name, quota in self._of.items() if name not in tenants and quota.is_idle(now_s)]:
            del self._of[name]
