"""Limits, prices and budgets of a Tenant, as gateways read them and keep them."""

from typing import Any

import msgspec
import pytest

from slipway_gateway.identity.tenants import KnownTenant, UnreadableTenant, parse
from slipway_gateway.quotas.policy import Budget, Policy
from slipway_gateway.quotas.prices import Price
from slipway_gateway.quotas.tenant import Limits

SPEC: dict[str, Any] = {
    "models": ["*"],
    "limits": {
        "requestsPerMinute": 600,
        "inputTokensPerMinute": 200_000,
        "outputTokensPerMinute": 50_000,
        "concurrency": 64,
        "burstSeconds": 30,
    },
    "defaultEstimatedOutputTokens": 100,
    "prices": [
        {
            "model": "chat",
            "inputPerMillion": "0.5",
            "cachedInputPerMillion": "0.05",
            "outputPerMillion": "1.5",
            "perRequest": "0.001",
        }
    ],
    "budget": {"perDay": "50", "perMonth": "1000.25"},
}
POLICY = Policy(
    Limits(600, 200_000, 50_000, 64, 30.0),
    (Price("chat", 500_000, 1_500_000, 50_000, 1_000_000),),
    Budget(50 * 10**9, 1_000_250_000_000),
    100,
)


def read(**changes: Any) -> KnownTenant:
    return parse({"metadata": {"name": "team-a"}, "spec": SPEC | changes})


def test_every_field_of_the_resource_is_read() -> None:
    assert read().policy == POLICY


def test_without_fields_nothing_is_limited() -> None:
    assert parse({"metadata": {"name": "team-a"}, "spec": {"models": ["*"]}}).policy == Policy()


def test_limits_are_kept_over_a_restart() -> None:
    assert msgspec.json.decode(msgspec.json.encode(read()), type=KnownTenant).policy == POLICY


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"prices": [{"model": "chat", "outputPerMillion": "-1"}]}, r"spec.prices\[0\].outputPerMillion"),
        ({"prices": [{"model": "chat", "perRequest": "1e9"}]}, r"spec.prices\[0\].perRequest"),
        ({"budget": {"perDay": "much"}}, "spec.budget.perDay"),
        ({"limits": {"concurrency": "many"}}, "limits.concurrency"),
    ],
)
def test_what_is_no_amount_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(UnreadableTenant, match=field):
        read(**changes)
