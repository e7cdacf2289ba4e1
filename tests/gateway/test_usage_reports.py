"""Reports of usage that no request can have caused, as the operator sees them: the first of a period, for a while."""

from slipway_contracts.gateway_report import ImplausibleUsage
from slipway_gateway.balancing.usage_reports import SHOWN_S, UsageReports


def test_the_first_report_of_a_period_is_shown_until_a_while_after_the_last() -> None:
    """What is shown does not change with each report: each change is a write of the status."""
    now_s, woken = [0.0], list[str]()
    reports = UsageReports(lambda: now_s[0], woken.append)
    for reported in (100, 200, 50):
        reports.implausible("a", reported, 10)
        now_s[0] += SHOWN_S - 1
    assert reports.report("a") == ImplausibleUsage(reported=100, possible=10)
    assert reports.report("b") is None
    assert woken == ["a"]
    now_s[0] += 1
    assert reports.report("a") is None
    reports.implausible("a", 7, 3)
    assert reports.report("a") == ImplausibleUsage(reported=7, possible=3)
    reports.follow([])
    assert reports.report("a") is None
