"""Compiles tenants for the fast lane (pure)."""

from collections.abc import Callable, Sequence
from typing import Any

from ..identity.tenants import KeyHash, KnownTenant, TenantTable
from ..quotas.policy import Budget, Policy
from ..quotas.prices import Price
from ..quotas.shared import limits_tuple
from ..quotas.tenant import Limits


def compile_tenants(
    table: TenantTable,
    part: Callable[[Policy], tuple[Limits, Budget]],
    counts_together: Callable[[Policy], bool] = lambda policy: False,
) -> list[dict[str, Any]]:
    """The fields of all tenants that have keys, the oldest first: of a key that two have written it is the owner.

    Tenants with bounds of a single request are left out, with the ids of their keys: Python serves their requests.

    `part`: this gateway's part of limits and budget. `counts_together`: whether requests are counted with other
    gateways.
    """
    bounded = [tenant for tenant in table.tenants.values() if tenant.policy.bounds.any]
    keys_left_out = {key.id for tenant in bounded for key in tenant.keys}
    return [
        _compile(tenant, keys, *part(tenant.policy), together=counts_together(tenant.policy))
        for tenant in table.tenants.values()
        if not tenant.policy.bounds.any and (keys := [key for key in tenant.keys if key.id not in keys_left_out])
    ]


def _compile(
    one: KnownTenant, keys: Sequence[KeyHash], limits: Limits, budget: Budget, *, together: bool
) -> dict[str, Any]:
    policy = one.policy
    return {
        "name": one.name,
        "models": one.models,
        "is_disabled": one.disabled,
        "is_guarded": bool(one.guards),
        "weight": one.weight,
        "priority_limit": one.priority_limit,
        "prices": [_price(price) for price in policy.prices],
        "budget": (budget.day_nano, budget.month_nano),
        "output_tokens": policy.output_tokens,
        "limits": limits_tuple(limits),
        "shared_limits": limits_tuple(policy.limits) if together else None,
        "keys": [(key.id, key.hash, key.expires_s) for key in keys],
    }


def _price(price: Price) -> tuple[str, int, int, int | None, int, int]:
    tokens = (price.input_micro, price.output_micro, price.cached_input_micro)
    return price.model, *tokens, price.request_nano, price.hit_percentage
