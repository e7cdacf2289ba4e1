"""The gateway's process with a tenant: its key, limits of every kind, a price and a budget, its usage in the ledger.

    python -m bench.gateway.metered FLAGS OF slipway-gateway

Tenants come from a cluster, and here is none: this one is published in place of the watch. All else is the process.
"""

import base64

from slipway_gateway import __main__ as process
from slipway_gateway.assembly import cluster
from slipway_gateway.authentication.known_tenants import KnownTenants
from slipway_gateway.identity import api_keys
from slipway_gateway.identity.tenants import KeyHash, KnownTenant
from slipway_gateway.quotas.policy import Budget, Policy
from slipway_gateway.quotas.prices import NANO, Price, micro
from slipway_gateway.quotas.tenant import Limits
from slipway_gateway.settings import GatewaySettings
from slipway_gateway.telemetry.metrics import GatewayMetrics

_BEGIN = f"slw_bench1_{'0' * api_keys.SECRET_LENGTH}"
KEY = f"{_BEGIN}_{api_keys.checksum(_BEGIN)}"
_PEPPER = b"p" * api_keys.MIN_PEPPER_BYTES
PEPPER_FILE = base64.urlsafe_b64encode(_PEPPER)
# More than any machine can use: nothing is refused, and all is counted.
_PLENTY = 1_000_000_000


def tenant() -> KnownTenant:
    limits = Limits(_PLENTY, _PLENTY, _PLENTY, concurrency=_PLENTY)
    prices, budget = (Price("*", micro("0.5"), micro("1.5")),), Budget(_PLENTY * NANO, _PLENTY * NANO)
    key = KeyHash("bench1", api_keys.digest(KEY, _PEPPER), None)
    return KnownTenant("bench", ("*",), keys=(key,), policy=Policy(limits, prices, budget))


def _publish(settings: GatewaySettings, known: KnownTenants, metrics: GatewayMetrics) -> None:
    known.publish([tenant()])


if __name__ == "__main__":
    cluster._tenants_watch = _publish
    process.main()
