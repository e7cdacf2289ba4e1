"""Reads from every gateway what it reports about tenants."""

import asyncio

import aiohttp
import msgspec

from slipway_contracts.tenants import GatewayTenants
from slipway_operator.kube.reading.gateways import Endpoint, Gateways
from slipway_operator.model.cluster.tenant_reports import TenantReports
from slipway_process.network.guarded import read_body

TIMEOUT = aiohttp.ClientTimeout(total=5.0)
MAX_BYTES = 32 << 20
_DECODER = msgspec.json.Decoder(GatewayTenants)
_TROUBLES = (aiohttp.ClientError, OSError, TimeoutError, msgspec.MsgspecError, UnicodeDecodeError, ValueError)


async def read_reports(gateways: Gateways, session: aiohttp.ClientSession) -> TenantReports:
    """Read all gateways' reports. Of those without an answer, only ready ones count as silent: others get no requests.

    Raises:
        ApiError: addresses of gateways cannot be read.
    """
    found = await gateways.endpoints()
    answers = await asyncio.gather(*(_read(session, endpoint) for endpoint in found))
    silent = sum(answer is None and endpoint.ready for answer, endpoint in zip(answers, found, strict=True))
    return TenantReports(tuple(answer for answer in answers if answer is not None), silent)


async def _read(session: aiohttp.ClientSession, endpoint: Endpoint) -> GatewayTenants | None:
    try:
        async with session.get(f"{endpoint.url}/internal/tenants", timeout=TIMEOUT) as response:
            response.raise_for_status()
            content = await read_body(response, MAX_BYTES)
            return _DECODER.decode(content) if len(content) <= MAX_BYTES else None
    except _TROUBLES:
        return None
