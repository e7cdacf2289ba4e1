"""Reads from every gateway what it reports about tenants."""

import aiohttp
import msgspec

from slipway_contracts.tenants import GatewayTenants
from slipway_operator.kube.reading.gateway_pages import read_pages
from slipway_operator.kube.reading.gateways import Gateways
from slipway_operator.model.cluster.tenant_reports import TenantReports

_DECODER = msgspec.json.Decoder(GatewayTenants)


async def read_reports(gateways: Gateways, session: aiohttp.ClientSession) -> TenantReports:
    """Read all gateways' reports. Of those without an answer, only ready ones count as silent: others get no requests.

    Raises:
        ApiError: addresses of gateways cannot be read.
    """
    return TenantReports(*await read_pages(gateways, session, "/internal/tenants", _DECODER.decode))
