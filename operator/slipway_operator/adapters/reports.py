"""What a pod reports of its adapters. Size and time of an answer are bounded, because the pod belongs to a tenant."""

import aiohttp
import msgspec

from slipway_contracts.adapters import ADAPTERS_PATH, ADAPTERS_PORT, MAX_REPORT_BYTES, AdapterReport
from slipway_operator.model.adapter_views import LoadedState, States
from slipway_operator.model.text import printable
from slipway_process.network.guarded import read_body

TIMEOUT_S = 3.0

_DECODER = msgspec.json.Decoder(AdapterReport)


async def read_pod(session: aiohttp.ClientSession, address: str, port: int = ADAPTERS_PORT) -> States | None:
    """Read the states of a pod's adapters; None where it does not answer as slipway-adapter-loader does.

    `address`: IP address of the pod.
    """
    host = f"[{address}]" if ":" in address else address
    limit = aiohttp.ClientTimeout(total=TIMEOUT_S)
    try:
        url = f"http://{host}:{port}{ADAPTERS_PATH}"
        async with session.get(url, timeout=limit, allow_redirects=False) as response:
            if response.status != 200:
                return None
            body = await read_body(response, MAX_REPORT_BYTES)
        if len(body) > MAX_REPORT_BYTES:
            return None
        report = _DECODER.decode(body)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return None
    return {
        (found.name, found.revision): LoadedState(found.state, found.digest, printable(found.reason))
        for found in report.adapters
    }
