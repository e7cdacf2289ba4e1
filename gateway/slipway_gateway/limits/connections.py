"""Whose connections are counted together (pure). All clients behind an ingress share its address and so one share."""

import functools
from ipaddress import IPv6Address, ip_address


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
