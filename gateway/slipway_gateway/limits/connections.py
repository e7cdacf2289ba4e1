"""How many connections clients may hold: in all, and from one address (pure).

All clients behind an ingress share its address and so one share, half of the limit by default.
"""

import functools
from collections import Counter
from ipaddress import IPv6Address, ip_address

TOTAL, ADDRESS = "total", "address"


class ConnectionCounts:
    """Counts the open connections. `limit`: in all. `per_address`: from one address; 0: half of `limit`."""

    def __init__(self, limit: int, per_address: int) -> None:
        self._limit = limit
        self._per_address = per_address or max(1, limit // 2)
        self._addresses: Counter[str] = Counter()
        self.count = 0

    @property
    def full(self) -> bool:
        return self.count >= self._limit

    def refused(self, address: str) -> str:
        """Counts a new connection until `left`, and returns ""; or returns why it is refused: TOTAL or ADDRESS."""
        if self._addresses[address] >= self._per_address:
            return ADDRESS
        if self.full:
            return TOTAL
        self._addresses[address] += 1
        self.count += 1
        return ""

    def left(self, address: str) -> None:
        self.count -= 1
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]


@functools.lru_cache(maxsize=4096)
def address_owner(host: str) -> str:
    """What stands for the owner of an address: with IPv6 its network /64, because one customer has all of that."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return host
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> 64 << 64)) + "/64"
