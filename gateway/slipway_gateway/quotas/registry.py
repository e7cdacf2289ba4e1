"""The quotas of all tenants in one process."""

from collections.abc import Collection

from .tenant import Limits, TenantQuota


class Quotas:
    """A tenant's buckets live while it is known, and as long as something is owed."""

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

    def known(self) -> dict[str, TenantQuota]:
        return self._of

    def forget_others(self, tenants: Collection[str], now_s: float) -> None:
        """Drops what belongs to no tenant of these, where nothing is owed or running."""
        for name in [name for name, quota in self._of.items() if name not in tenants and quota.is_idle(now_s)]:
            del self._of[name]
