"""The status of a Tenant: what it uses, whether gateways take its requests, and what is news."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from slipway_contracts.api.reading import encoded, read
from slipway_contracts.tenants import GatewayTenants, TenantReport, TenantSpec
from slipway_operator.api.v1alpha1.tenant import TenantStatus
from slipway_operator.model.cluster.tenant_reports import TenantReports
from slipway_operator.planning import tenants

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)
KEY = {"id": "k7Qm2x", "hash": "hmac-sha256:" + "0" * 64}
SPEC: dict[str, Any] = {"models": ["*"], "auth": {"keys": [KEY]}}
WELL = TenantReport(generation=3)


def spec(**fields: Any) -> TenantSpec:
    return read(TenantSpec, encoded(SPEC | fields))


def gateways(*found: TenantReport, ledgers: tuple[str, ...] = (), silent: int = 0, **changes: Any) -> TenantReports:
    shared = ledgers or ("",) * len(found)
    answers = [GatewayTenants({"a": one}, ledger=id_, **changes) for one, id_ in zip(found, shared, strict=True)]
    return TenantReports(tuple(answers), silent)


def status(
    reports: TenantReports, given: TenantSpec | None = None, former: TenantStatus | None = None, now: datetime = NOW
) -> TenantStatus:
    return tenants.status("a", 3, given or spec(), reports, former or TenantStatus(), now)


def conditions(found: TenantStatus) -> dict[str, tuple[str, str]]:
    return {one.type: (one.status, one.reason) for one in found.conditions}


def ends(**keys: datetime | None) -> TenantSpec:
    listed = [KEY | {"id": id_} | ({"expiresAt": f"{at:%Y-%m-%dT%H:%M:%SZ}"} if at else {}) for id_, at in keys.items()]
    return spec(auth={"keys": listed})


@pytest.mark.parametrize(
    ("given", "reports", "expected"),
    [
        (spec(), gateways(WELL, WELL), ("True", "Accepted")),
        (spec(disabled=True), gateways(WELL), ("False", "Disabled")),
        (spec(auth={}), gateways(WELL), ("False", "NoCredentials")),
        (ends(first1=NOW), gateways(WELL), ("False", "KeysExpired")),
        (spec(auth={"serviceAccounts": [{"namespace": "a", "name": "app"}]}), gateways(WELL), ("True", "Accepted")),
        (spec(auth={"clientCertificates": [{"dns": "a.example.org"}]}), gateways(WELL), ("True", "Accepted")),
        (ends(first1=NOW, second=None), gateways(WELL), ("True", "Accepted")),
        (spec(), gateways(), ("Unknown", "NoGateway")),
        (spec(), gateways(WELL, silent=1), ("Unknown", "GatewayUnknown")),
        (spec(), gateways(WELL, TenantReport(generation=2)), ("Unknown", "NotObserved")),
        (spec(), gateways(WELL, TenantReport(generation=2, problem="bad price")), ("False", "NotAccepted")),
        (spec(), gateways(TenantReport(3, trouble=("KeyPepperMissing", "no pepper"))), ("False", "KeyPepperMissing")),
        (spec(), gateways(WELL, authenticates=False), ("False", "AuthenticationOff")),
    ],
)
def test_ready_has_the_first_reason_why_requests_are_not_taken(
    given: TenantSpec, reports: TenantReports, expected: tuple[str, str]
) -> None:
    assert conditions(status(reports, given))["Ready"] == expected


def test_use_is_of_all_gateways_and_of_each_ledger_once() -> None:
    first = TenantReport(3, last_minute={"requests": 5, "input_tokens": 100}, running=2, day_nano=10**10, month_nano=1)
    second = TenantReport(3, last_minute={"requests": 7, "output_tokens": 9}, running=1, day_nano=3 * 10**9)
    given = spec(limits={"requestsPerMinute": 60, "concurrency": 8}, budget={"perDay": "50"})
    apart, shared = (status(gateways(first, second, ledgers=ids), given).use for ids in (("", ""), ("x", "x")))
    assert (apart.requests, apart.input_tokens, apart.output_tokens) == ("12/60", "100", "9")
    assert (apart.running, apart.spent_today, apart.spent_this_month) == ("3/8", "13.00/50", "0.01")
    assert shared.spent_today == "10.00/50"


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (WELL, ("False", "WithinLimits")),
        (TenantReport(3, refused={"requests": 0}), ("False", "WithinLimits")),
        (TenantReport(3, refused={"requests": 2}), ("True", "LimitReached")),
        (TenantReport(3, refused={"spend": 2}, exhausted="day"), ("True", "BudgetSpent")),
    ],
)
def test_quota_is_exhausted_while_requests_are_refused(report: TenantReport, expected: tuple[str, str]) -> None:
    assert conditions(status(gateways(WELL, report)))["QuotaExhausted"] == expected


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (timedelta(days=15), ("False", "NoKeyExpires")),
        (timedelta(days=14), ("True", "ExpiresSoon")),
        (timedelta(0), ("True", "KeyExpired")),
    ],
)
def test_a_key_expires_soon_from_fourteen_days_before(after: timedelta, expected: tuple[str, str]) -> None:
    assert conditions(status(gateways(WELL), ends(first1=NOW + after, second=None)))["KeyExpiring"] == expected


def test_events_are_about_changes_only() -> None:
    def found_events(former: TenantStatus, found: TenantStatus) -> list[tuple[str, str]]:
        return [(one.type, one.reason) for one in tenants.events(former, found)]

    new = status(gateways(WELL))
    assert found_events(TenantStatus(), new) == []
    busy = status(gateways(TenantReport(3, refused={"requests": 2})), former=new)
    assert found_events(new, busy) == [("Warning", "QuotaExhausted")]
    assert found_events(busy, status(gateways(TenantReport(3, refused={"requests": 9})), former=busy)) == []
    spent = status(gateways(TenantReport(3, exhausted="month")), former=busy)
    assert found_events(busy, spent) == [("Warning", "QuotaExhausted")]
    soon = status(gateways(WELL), ends(first1=NOW + timedelta(days=2), second=None), new)
    assert found_events(new, soon) == [("Warning", "KeyExpiring")]
    another = status(gateways(WELL), ends(first1=NOW + timedelta(days=2), second=NOW + timedelta(days=3)), soon)
    assert found_events(soon, another) == [("Warning", "KeyExpiring")]
    off = status(gateways(WELL), spec(disabled=True), new)
    assert found_events(new, off) == [("Warning", "Disabled")]
    assert found_events(off, status(gateways(WELL), former=off)) == [("Normal", "Accepted")]
    unknown = status(gateways(), former=new)
    assert found_events(new, unknown) == []


def test_a_condition_keeps_its_time_until_its_status_changes() -> None:
    first = status(gateways(WELL))
    later = status(gateways(WELL, WELL), former=first, now=NOW + timedelta(hours=1))
    assert {one.last_transition_time for one in later.conditions} == {NOW}
    assert replace(later, use=first.use) != first, "the message has the number of gateways"
