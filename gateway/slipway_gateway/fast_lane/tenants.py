"""Compiles tenants for the fast lane, and decides whose requests are Python's (pure)."""

from collections.abc import Callable
from typing import Any

from ..identity.tenants import KnownTenant, TenantTable
from ..quotas.policy import Budget, Policy
from ..quotas.prices import Price
from ..quotas.shared import limits_tuple
from ..quotas.tenant import Limits


def compile_tenants(
    table: TenantTable,
    part: Callable[[Policy], tuple[Limits, Budget]],
    why_shared: Callable[[Policy], str],
    *,
    together: bool = False,
) -> list[dict[str, Any]]:
    """The fields of all tenants that have keys, the oldest first: of a key that two have written it is the owner.

    `part`: this gateway's part of limits and budget. `why_shared`: why a tenant's requests are Python's, else empty.
    `together`: gateways count limits together.
    """
    return [
        _compile(one, *part(one.policy), why_shared(one.policy), together=together)
        for one in table.tenants.values()
        if one.keys
    ]


def _compile(one: KnownTenant, limits: Limits, budget: Budget, reason: str, *, together: bool) -> dict[str, Any]:
    policy = one.policy
    return {
        "name": one.name,
        "models": one.models,
        "is_disabled": one.disabled,
        "weight": one.weight,
        "priority_limit": one.priority_limit,
        "prices": [_price(price) for price in policy.prices],
        "budget": (budget.day_nano, budget.month_nano),
        "output_tokens": policy.output_tokens,
        "limits": limits_tuple(limits),
        "shared_limits": limits_tuple(policy.limits) if together and policy.limits.any else None,
        "reason": reason,
        "keys": [(key.id, key.hash, key.expires_s) for key in one.keys],
    }


def _price(price: Price) -> tuple[str, int, int, int | None, int]:
    return price.model, price.input_micro, price.output_micro, price.cached_input_micro, price.request_nano
