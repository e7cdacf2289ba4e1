"""What a gateway reports about tenants."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

MOST_MESSAGE = 512


class TenantReport(msgspec.Struct):
    """What one gateway reports of one tenant. `*_nano` are billionths of the currency."""

    generation: int = 0  # of the Tenant, as the gateway uses it; 0: it has not read the Tenant
    problem: str = ""  # why it does not use the current generation
    trouble: tuple[str, str] | None = None  # reason and message: why some of its requests cannot be authenticated
    last_minute: dict[str, int] = {}  # keys: requests, input_tokens, output_tokens
    refused: dict[str, int] = {}  # requests refused in the last minute, by limit
    running: int = 0
    day_nano: int = 0
    month_nano: int = 0
    exhausted: str = ""  # the exhausted budget, `day` or `month`; empty: none


class GatewayTenants(msgspec.Struct):
    """A response of `/internal/tenants`."""

    tenants: dict[str, TenantReport]
    authenticates: bool = True  # False: the gateway uses no Tenants
    ledger: str = ""  # id of its ledger of spending: gateways with the same id share one; empty: its own


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
