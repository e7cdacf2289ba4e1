"""The status of a Tenant, from its spec and what gateways report (pure)."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal

from slipway_contracts.api.times import format_time
from slipway_contracts.tenants import TenantReport, TenantSpec
from slipway_operator.api.v1alpha1.status import Condition
from slipway_operator.api.v1alpha1.tenant import TenantStatus, TenantUse
from slipway_operator.model.cluster.plan import Event
from slipway_operator.model.cluster.tenant_reports import MOST_MESSAGE, TenantReports, total
from slipway_operator.planning.conditions.transitions import READ_BY_KSTATUS, carry_over, condition, failed

READY, QUOTA_EXHAUSTED, KEY_EXPIRING = "Ready", "QuotaExhausted", "KeyExpiring"
FOR_A_PERSON = frozenset({"NoCredentials", "KeysExpired", "AuthenticationOff", "NotAccepted"})  # reasons of Ready
BEHIND = "NotObserved"  # gateways have not read the Tenant yet, for a moment after each change
EXPIRING = timedelta(days=14)
NANO = 1_000_000_000
_BUDGETS = {"day": "perDay", "month": "perMonth"}


def status(
    name: str, generation: int, spec: TenantSpec, reports: TenantReports, former: TenantStatus, now: datetime
) -> TenantStatus:
    """The status as it is now; conditions that did not change keep the transition time of `former`."""
    found = reports.of(name)
    ready = _ready(generation, spec, reports, found, now)
    stalled = (failed(ready.reason, ready.message, now),) if ready.reason in FOR_A_PERSON else ()
    fresh = (ready, _exhausted(spec, found, now), _expiring(spec, now), *stalled)
    return TenantStatus(generation, _use(name, spec, reports, found), carry_over(fresh, former.conditions))


def used_shares(name: str, spec: TenantSpec, reports: TenantReports) -> dict[str, float]:
    """The used share of each budget that the Tenant has, by period; 1 where nothing may be spent."""
    day, month = reports.spent(name)
    budgets = (("day", day, spec.budget.per_day), ("month", month, spec.budget.per_month))
    return {
        period: float(Decimal(spent) / NANO / Decimal(amount)) if Decimal(amount) else 1.0
        for period, spent, amount in budgets
        if amount is not None
    }


def events(former: TenantStatus, fresh: TenantStatus) -> tuple[Event, ...]:
    """Events for conditions that changed since the former status; none for a new Tenant that is Ready at once."""
    return tuple(_events({one.type: one for one in former.conditions}, fresh))


def _events(former: dict[str, Condition], fresh: TenantStatus) -> Iterator[Event]:
    for one in fresh.conditions:
        before = former.get(one.type)
        if one.type == READY:
            if one.status == "False" and (before is None or before.reason != one.reason):
                yield Event("Warning", one.reason, one.message)
            elif one.status == "True" and before is not None and before.status == "False":
                yield Event("Normal", one.reason, one.message)
        elif one.type in READ_BY_KSTATUS:  # the reason of Ready has an Event
            continue
        elif one.status == "True" and (before is None or before.status != "True" or _news(before, one)):
            yield Event("Warning", one.type, one.message)


def _news(before: Condition, now: Condition) -> bool:
    """Whether a condition that stays true needs another Event: other keys expire, or its reason is another."""
    return before.message != now.message if now.type == KEY_EXPIRING else before.reason != now.reason


def _ready(
    generation: int, spec: TenantSpec, reports: TenantReports, found: list[TenantReport], now: datetime
) -> Condition:
    """The condition Ready, with the first reason found why gateways do not take the Tenant's requests."""
    for holds, reason, message in (
        (spec.disabled, "Disabled", "spec.disabled is true: all requests are refused with 403"),
        *_credentials(spec, now),
        *_at_gateways(generation, reports, found),
    ):
        if holds:
            return Condition(READY, "Unknown" if reason == BEHIND else "False", reason, message, now)
    if not found:
        message = f"none of {reports.silent} gateways answers" if reports.silent else "there is no gateway"
        return Condition(READY, "Unknown", "NoGateway", message, now)
    if reports.silent:
        message = f"{reports.silent} of {reports.silent + len(found)} gateways do not answer"
        return Condition(READY, "Unknown", "GatewayUnknown", message, now)
    return condition(READY, True, "Accepted", f"{len(found)} gateways take its requests", now)


def _credentials(spec: TenantSpec, now: datetime) -> tuple[tuple[bool, str, str], ...]:
    keys, auth = spec.auth.keys, spec.auth
    others = bool(auth.jwt or auth.service_accounts or auth.client_certificates)
    ended = all(key.expires_at is not None and key.expires_at <= now for key in keys)
    return (
        (
            not keys and not others,
            "NoCredentials",
            "no request can be the tenant's: add a key with `slipway keys create`, or fill another list of spec.auth",
        ),
        (bool(keys) and ended and not others, "KeysExpired", "all of its keys have expired: add one"),
    )


def _at_gateways(generation: int, reports: TenantReports, found: list[TenantReport]) -> Iterator[tuple[bool, str, str]]:
    blind = any(not answer.authenticates for answer in reports.answers)
    yield blind, "AuthenticationOff", "gateways look at no Tenant: set auth.mode of the chart to auto or required"
    problem = next((one.problem for one in found if one.problem), "")
    yield bool(problem), "NotAccepted", f"a gateway keeps the former one: {problem}"[:MOST_MESSAGE]
    behind = sum(one.generation < generation for one in found)
    yield behind > 0, BEHIND, f"{behind} of {len(found)} gateways have not read it yet"
    reason, message = next((one.trouble for one in found if one.trouble), ("", ""))
    yield bool(reason), reason[:64], message[:MOST_MESSAGE]


def _exhausted(spec: TenantSpec, found: list[TenantReport], now: datetime) -> Condition:
    spent = next((one.exhausted for one in found if one.exhausted in _BUDGETS), "")
    if spent:
        message = f"spec.budget.{_BUDGETS[spent]} is spent: requests are refused until the {spent} ends (UTC)"
        return condition(QUOTA_EXHAUSTED, True, "BudgetSpent", message, now)
    reached = sorted(
        {name for one in found for name, count in one.refused.items() if count > 0 and name.isidentifier()}
    )
    if reached:
        message = f"requests were refused in the last minute by the limit of {', '.join(reached)}"[:MOST_MESSAGE]
        return condition(QUOTA_EXHAUSTED, True, "LimitReached", message, now)
    return condition(QUOTA_EXHAUSTED, False, "WithinLimits", "no request was refused in the last minute", now)


def _expiring(spec: TenantSpec, now: datetime) -> Condition:
    ending = sorted(
        (key.expires_at, key.id) for key in spec.auth.keys if key.expires_at and key.expires_at - now <= EXPIRING
    )
    if not ending:
        return condition(KEY_EXPIRING, False, "NoKeyExpires", "no key expires within 14 days", now)
    listed = ", ".join(f"{id_} {'expired' if at <= now else 'expires'} at {format_time(at)}" for at, id_ in ending)
    reason = "KeyExpired" if ending[0][0] <= now else "ExpiresSoon"
    return condition(KEY_EXPIRING, True, reason, f"{listed}: see `slipway keys rotate`"[:MOST_MESSAGE], now)


def _use(name: str, spec: TenantSpec, reports: TenantReports, found: list[TenantReport]) -> TenantUse:
    limits, budget = spec.limits, spec.budget
    counted = [one.last_minute for one in found]
    day, month = reports.spent(name)
    return TenantUse(
        _of(total(counted, "requests"), limits.requests_per_minute),
        _of(total(counted, "input_tokens"), limits.input_tokens_per_minute),
        _of(total(counted, "output_tokens"), limits.output_tokens_per_minute),
        _of(sum(max(0, one.running) for one in found), limits.concurrency),
        _of(_money(day), budget.per_day),
        _of(_money(month), budget.per_month),
    )


def _of(used: int | str, limit: int | str | None) -> str:
    return str(used) if limit is None else f"{used}/{limit}"


def _money(nano: int) -> str:
    """Billionths of a currency unit as units with two decimals, rounded up: what is not 0 is not shown as 0."""
    cents = -(-nano * 100 // NANO)
    return f"{Decimal(cents) / 100:.2f}"
