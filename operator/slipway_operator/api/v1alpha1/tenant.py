"""Tenant: who sends requests. Its spec, which gateways read too, is `slipway_contracts.tenants`."""

from dataclasses import dataclass
from typing import Annotated

from slipway_contracts.api.markers import Definition, ListMap, PrinterColumn, custom_resource, rule
from slipway_contracts.api.types import ApiType, Int64, strict
from slipway_contracts.tenants import TenantSpec
from slipway_operator.api.v1alpha1.status import Condition


def _condition(kind: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


@dataclass(frozen=True, slots=True)
class TenantUse:
    """What the tenant uses, at all gateways together, and after a slash what it may use. It is some seconds old."""

    requests: str = ""
    """Requests that were taken in the last minute."""
    input_tokens: str = ""
    """Tokens of prompts of requests that ended in the last minute."""
    output_tokens: str = ""
    """Generated tokens of requests that ended in the last minute."""
    running: str = ""
    """Requests in progress."""
    spent_today: str = ""
    """What was spent since 0:00 UTC, including what requests in progress may come to."""
    spent_this_month: str = ""
    """The same since the first day of the month."""


@strict
@dataclass(frozen=True, slots=True)
class TenantStatus:
    """What gateways report about the tenant. The operator writes it."""

    observed_generation: Int64 = 0
    """metadata.generation that the status was computed from."""
    use: TenantUse = TenantUse()
    conditions: Annotated[tuple[Condition, ...], ListMap("type")] = ()
    """Ready: gateways take the tenant's requests. QuotaExhausted: they refuse some of them, because a limit was reached
    in the last minute or the budget is spent. KeyExpiring: an API key ends within 14 days, or ended."""


@rule(
    "self.metadata.name.size() <= 63",
    "metadata.name may have at most 63 characters: logs, metrics and tables name the tenant by it",
)
@custom_resource(
    Definition(
        group="slipway.dev",
        version="v1alpha1",
        plural="tenants",
        short_names=("ten",),
        categories=(),  # `kubectl get slipway` is for people with rights in one namespace, who may not list these
        cluster_scoped=True,
        columns=(
            PrinterColumn("Ready", "string", _condition("Ready", "status"), "Whether gateways take its requests."),
            PrinterColumn("Reason", "string", _condition("Ready", "reason"), "Why they do, or do not."),
            PrinterColumn("Exhausted", "string", _condition("QuotaExhausted", "status"), "Whether some are refused."),
            PrinterColumn("Requests", "string", ".status.use.requests", "Requests in the last minute, and its limit."),
            PrinterColumn(
                "Input", "string", ".status.use.inputTokens", "Input tokens in the last minute, of how many."
            ),
            PrinterColumn("Output", "string", ".status.use.outputTokens", "Generated tokens in the last minute."),
            PrinterColumn("Running", "string", ".status.use.running", "Requests in progress, of how many."),
            PrinterColumn("Today", "string", ".status.use.spentToday", "What was spent today, of its budget."),
            PrinterColumn("Month", "string", ".status.use.spentThisMonth", "And this month.", wide=True),
            PrinterColumn("Models", "string", ".spec.models", "Models that the tenant may use.", wide=True),
            PrinterColumn("Keys", "string", ".spec.auth.keys[*].id", "Ids of its API keys.", wide=True),
            PrinterColumn("Weight", "integer", ".spec.weight", "Share of the tokens of servers.", wide=True),
            PrinterColumn("Age", "date", ".metadata.creationTimestamp"),
        ),
        status=True,
    )
)
class Tenant(ApiType):
    """Owner of requests: a team, a customer or an application. It belongs to no namespace, and the administrators of
    the gateways write it."""

    spec: TenantSpec
    status: TenantStatus | None = None
