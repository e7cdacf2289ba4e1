"""Whose address a request of a browser has behind a proxy, and what a browser reads without a connection."""

import ipaddress
from collections.abc import Sequence

from aiohttp import web

from slipway_process.network.connections import ConnectionLimit, refusal

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

KEEPALIVE_S = 75.0
MOST_HOPS = 16  # addresses of a header that are looked at
_REFUSAL = refusal(b"Too many connections are open: close pages of the console, and try again.\n")


class TrustedProxies:
    """Proxies that are believed about the clients that they forward for. `networks`: of their addresses."""

    def __init__(self, networks: Sequence[Network] = ()) -> None:
        self._networks = networks

    def __contains__(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        parsed = getattr(parsed, "ipv4_mapped", None) or parsed
        return any(parsed in network for network in self._networks)

    def client_of(self, request: web.BaseRequest) -> str:
        """The address of the client: the last one of X-Forwarded-For that is no trusted proxy's.

        Without a trusted proxy that is the other end of the connection, whatever the header says.
        """
        client = request.remote or ""
        if client not in self:
            return client
        forwarded = ",".join(request.headers.getall("X-Forwarded-For", ())).split(",")
        for hop in reversed(forwarded[-MOST_HOPS:]):
            address = hop.strip()
            try:
                client = str(ipaddress.ip_address(address))
            except ValueError:
                return client  # of the proxy that wrote it, and of no one before it
            if client not in self:
                return client
        return client


def connection_limit(most: int, proxies: TrustedProxies) -> ConnectionLimit:
    """At most `most` connections. Those of a trusted proxy have no share, because it has many clients."""
    return ConnectionLimit(most, _REFUSAL, proxies.__contains__)
