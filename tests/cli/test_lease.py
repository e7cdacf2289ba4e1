"""Whether an operator keeps the status up to date, as `slipway status` shows it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from slipway_cli.objects import lease
from slipway_cli.views import status
from tests.cli.objects import idle
from tests.cli.test_view import NOW, drawn

WHERE = ("slipway-system", "slipway-operator")
pytestmark = pytest.mark.finding("S12")


def renewed(ago_s: float, **more: Any) -> dict[str, Any]:
    moment = (NOW - timedelta(seconds=ago_s)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"spec": {"holderIdentity": "operator-1", "leaseDurationSeconds": 20, "renewTime": moment, **more}}


@pytest.mark.parametrize(
    ("live", "why"),
    [
        (None, "is gone"),
        ({}, "has no holder"),
        ({"spec": {}}, "has no holder"),
        (renewed(1, holderIdentity=""), "has no holder"),
        (renewed(720), "was renewed 12m ago for the last time"),
        (renewed(30, leaseDurationSeconds=None), "was renewed 30s ago for the last time"),
    ],
)
def test_lease_that_is_not_renewed(live: dict[str, Any] | None, why: str) -> None:
    assert lease.find_outage(WHERE, live, NOW) == (
        f"no operator runs: its Lease slipway-system/slipway-operator {why}; what follows is as it was written last"
    )


@pytest.mark.parametrize("live", [renewed(0), renewed(19.5), renewed(-3), renewed(50, leaseDurationSeconds=60)])
def test_lease_that_is_renewed(live: dict[str, Any]) -> None:
    assert lease.find_outage(WHERE, live, NOW) is None


@pytest.mark.parametrize(
    ("reported", "place"), [("a/b", ("a", "b")), ("a", None), ("", None), (None, None), ("/b", None), ("a/", None)]
)
def test_place_of_the_lease_is_read_from_the_status(reported: str | None, place: tuple[str, str] | None) -> None:
    assert lease.parse_place(idle(lease=reported)) == place


def test_status_without_an_operator_starts_with_a_warning() -> None:
    why = lease.find_outage(WHERE, None, NOW)
    seen = status.build_view(idle(), [], [], NOW, outdated=why)
    assert drawn(seen)[:3] == ["demo/chat  Healthy", why, "serving"]
    assert status.format_headline(seen) == f"{why}: Healthy [no pods] serving"
    assert status.to_data(seen)["outdated"] == why
    assert "outdated" not in status.to_data(status.build_view(idle(), [], [], datetime(2026, 1, 1, tzinfo=UTC)))
