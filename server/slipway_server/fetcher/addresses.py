"""The kind of an address: public, private, loopback, or blocked; pure.

The tables are explicit: `ipaddress` knows no metadata services, and its own properties change between Python versions.
"""

import ipaddress
from dataclasses import dataclass
from enum import Enum

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class AddressKind(Enum):
    """The kind of an address."""

    PUBLIC = "public"
    PRIVATE = "private"  # of an organisation or a cluster
    LOOPBACK = "loopback"  # this machine: tests alone connect to it
    BLOCKED = "blocked"  # never connected to


@dataclass(frozen=True, slots=True)
class AddressCheck:
    """The kind of an address, and its description."""

    kind: AddressKind
    what: str


def judge(text: str) -> AddressCheck:
    """Classify an address; an IPv4 address inside an IPv6 one counts as itself.

    Raises:
        ValueError: for a text that is not an address.
    """
    address = ipaddress.ip_address(text)
    inner = _embedded(address)
    return _of(inner or address)


def is_in(text: str, networks: tuple[Network, ...]) -> bool:
    """Whether an address, or the IPv4 address inside it, belongs to one of the networks."""
    address = ipaddress.ip_address(text)
    inner = _embedded(address) or address
    return any(inner.version == network.version and inner in network for network in networks)


def _embedded(address: Address) -> ipaddress.IPv4Address | None:
    if isinstance(address, ipaddress.IPv4Address) or not any(address in network for network in _EMBEDDING):
        return None
    return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)


def _of(address: Address) -> AddressCheck:
    for network, verdict in _TABLE:
        if address.version == network.version and address in network:
            return verdict
    if isinstance(address, ipaddress.IPv4Address) or address in _GLOBAL_UNICAST:
        return AddressCheck(AddressKind.PUBLIC, "a public address")
    return AddressCheck(AddressKind.BLOCKED, "a reserved address")


_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
# IPv4 mapped, IPv4 translated (SIIT), and the well-known prefix of NAT64.
_EMBEDDING = tuple(map(ipaddress.IPv6Network, ("::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96")))

_METADATA = AddressCheck(AddressKind.BLOCKED, "a metadata service of a cloud")
_LINK_LOCAL = AddressCheck(AddressKind.BLOCKED, "a link-local address")
_LOOPBACK = AddressCheck(AddressKind.LOOPBACK, "a loopback address")
_PRIVATE = AddressCheck(AddressKind.PRIVATE, "a private address")
_RESERVED = AddressCheck(AddressKind.BLOCKED, "a reserved address")
_MULTICAST = AddressCheck(AddressKind.BLOCKED, "a multicast address")
_TUNNEL = AddressCheck(AddressKind.BLOCKED, "an address of a tunnel or translator")

# The first network that has the address counts.
_WORDS: tuple[tuple[AddressCheck, tuple[str, ...]], ...] = (
    (_METADATA, ("169.254.169.254/32", "169.254.170.2/32", "168.63.129.16/32", "100.100.100.200/32", "192.0.0.192/32")),
    (_METADATA, ("fd00:ec2::/32", "fd20:ce::254/128", "fd00:42::42/128", "fd00:c1::a9fe:a9fe/128")),
    (_LOOPBACK, ("127.0.0.0/8", "::1/128")),
    (_LINK_LOCAL, ("169.254.0.0/16", "fe80::/10")),
    (_RESERVED, ("0.0.0.0/8", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24")),
    (_RESERVED, ("203.0.113.0/24", "240.0.0.0/4", "2001:db8::/32", "3fff::/20", "100::/64", "fec0::/10")),
    (_MULTICAST, ("224.0.0.0/4", "ff00::/8")),
    (_TUNNEL, ("::/96", "64:ff9b:1::/48", "2001::/23", "2002::/16")),
    (_PRIVATE, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")),
)
_TABLE: tuple[tuple[Network, AddressCheck], ...] = tuple(
    (ipaddress.ip_network(text), verdict) for verdict, texts in _WORDS for text in texts
)
