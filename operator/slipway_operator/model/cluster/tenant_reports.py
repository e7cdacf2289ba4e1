"""What a gateway reports about tenants."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipway_contracts.tenants import GatewayTenants, TenantReport

MOST_MESSAGE = 512


@dataclass(frozen=True, slots=True)
class TenantReports:
    """The reports of all gateways. `silent`: number of ready gateways that did not answer."""

    answers: tuple[GatewayTenants, ...] = ()
    silent: int = 0

    def of(self, name: str) -> list[TenantReport]:
        """Return the report of one tenant from each gateway that answered."""
        return [answer.tenants.get(name, TenantReport()) for answer in self.answers]

    def spent(self, name: str) -> tuple[int, int]:
        """Return what a tenant spent today and this month, in billionths of the currency, summed over ledgers.

        Gateways that share a ledger report the same sums, of which the largest one is the newest.
        """
        found: dict[str, tuple[int, int]] = {}
        for number, answer in enumerate(self.answers):
            one, key = answer.tenants.get(name, TenantReport()), answer.ledger or str(number)
            day, month = found.get(key, (0, 0))
            found[key] = max(day, one.day_nano), max(month, one.month_nano)
        return sum(day for day, _ in found.values()), sum(month for _, month in found.values())


NO_REPORTS = TenantReports()


def total(counted: Sequence[Mapping[str, int]], name: str) -> int:
    """Return the sum of one counter over the reports of all gateways."""
    return sum(max(0, one.get(name, 0)) for one in counted)
