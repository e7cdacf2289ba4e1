"""Resolves names with addresses in them, for aiohttp: gateways connect to pods, the operator to gateways and pods."""

import socket

from aiohttp import ThreadedResolver
from aiohttp.abc import ResolveResult

from slipway_process.network.host_names import address_of


class NameResolver(ThreadedResolver):
    """Takes the address from a name of `host_names`; other names are resolved by the system."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        address = address_of(host)
        if address is None:
            return await super().resolve(host, port, family)
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
        ]
