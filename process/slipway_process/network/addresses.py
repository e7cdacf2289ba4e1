"""Classifies addresses for connections to what tenants name: public, private, reserved or forbidden; pure.

Sources: the IANA special-purpose registries for IPv4 and IPv6, RFC 6052 and 8215 (NAT64), RFC 3056 (6to4), RFC 4380
(Teredo), and the documentation of each cloud's metadata service.
"""

from collections.abc import Iterable
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class Reach(StrEnum):
    """The class of an address."""

    PUBLIC = "public"
    PRIVATE = "private"  # of an organisation or a cluster
    RESERVED = "reserved"  # for documentation and benchmarks; some networks use them internally
    FORBIDDEN = "forbidden"  # this machine, its link, a cloud's metadata, or no unicast address


METADATA, LOOPBACK, LINK_LOCAL = "a metadata service of a cloud", "a loopback address", "a link-local address"
_OTHER, _TUNNEL = "a reserved address", "an address of a tunnel or translator"

# The first network that has the address counts.
_WRITTEN: tuple[tuple[Reach, str, tuple[str, ...]], ...] = (
    # AWS and most others, AWS for tasks, Azure's wire server, Alibaba Cloud, Oracle Cloud Classic.
    (Reach.FORBIDDEN, METADATA, ("169.254.169.254/32", "169.254.170.2/32", "168.63.129.16/32")),
    (Reach.FORBIDDEN, METADATA, ("100.100.100.200/32", "192.0.0.192/32")),
    # AWS with time, names and credentials of pods; GCP, Oracle Cloud, Scaleway.
    (Reach.FORBIDDEN, METADATA, ("fd00:ec2::/32", "fd20:ce::/32", "fd00:c1::a9fe:a9fe/128", "fd00:42::42/128")),
    (Reach.FORBIDDEN, LOOPBACK, ("127.0.0.0/8", "::1/128")),
    (Reach.FORBIDDEN, LINK_LOCAL, ("169.254.0.0/16", "fe80::/10")),
    (Reach.RESERVED, _OTHER, ("192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24")),
    (Reach.RESERVED, _OTHER, ("2001:db8::/32", "3fff::/20")),
    # IETF protocols and relays of 6to4 among them.
    (Reach.FORBIDDEN, _OTHER, ("0.0.0.0/8", "192.0.0.0/24", "192.88.99.0/24", "240.0.0.0/4", "100::/64", "fec0::/10")),
    (Reach.FORBIDDEN, "a multicast address", ("224.0.0.0/4", "ff00::/8")),
    # IPv4 in IPv6, NAT64 of a site, Teredo and other protocols of the IETF, 6to4.
    (Reach.FORBIDDEN, _TUNNEL, ("::/96", "64:ff9b:1::/48", "2001::/23", "2002::/16")),
    (
        Reach.PRIVATE,
        "a private address",
        ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"),
    ),
    (Reach.PUBLIC, "a public address", ("0.0.0.0/0", "2000::/3")),
    (Reach.FORBIDDEN, _OTHER, ("::/0",)),  # what no registry assigns
)
_TABLE: tuple[tuple[Network, Reach, str], ...] = tuple(
    (ip_network(text), reach, kind) for reach, kind, texts in _WRITTEN for text in texts
)
# Prefixes whose last 32 bits are the IPv4 address of the destination: mapped, translated (SIIT), NAT64.
_EMBEDDING = (IPv6Network("::ffff:0:0/96"), IPv6Network("::ffff:0:0:0/96"), IPv6Network("64:ff9b::/96"))


def canonical(text: str) -> Address:
    """Return the address that a connection to `text` reaches: IPv4 where an IPv6 address embeds one.

    Raises:
        ValueError: when it is no address.
    """
    found = ip_address(text.partition("%")[0])
    if isinstance(found, IPv6Address) and any(found in network for network in _EMBEDDING):
        return IPv4Address(int(found) & 0xFFFF_FFFF)
    return found


def reach_of(address: Address) -> Reach:
    """Return the class of a canonical address; what no registry assigns is forbidden."""
    return described(address)[0]


def described(address: Address) -> tuple[Reach, str]:
    """The class of a canonical address, and what it is in words: "a link-local address"."""
    return next((reach, kind) for network, reach, kind in _TABLE if address in network)


# Docker, etcd, API server, kubelet, kube-proxy, scheduler, controller manager.
CLUSTER_PORTS = frozenset({2375, 2376, 2379, 2380, 6443, *range(10248, 10260)})
# Ports of Slipway's processes: /metrics, routes, probes; the metrics API. At public addresses both are ordinary ports.
OWN_PORTS = frozenset({8001, 8443})


def matches(host: str, pattern: str) -> bool:
    """Whether a host name matches a pattern of `parse_hosts`; `*.` stands for one or more labels."""
    name = host.lower().rstrip(".")
    return name.endswith(pattern[1:]) if pattern.startswith("*.") else name == pattern


def parse_hosts(texts: Iterable[str]) -> tuple[str, ...]:
    """Parse host names, or patterns such as *.tools.svc, of a setting.

    Raises:
        ValueError: one is invalid; the message names it.
    """
    found = []
    for text in texts:
        name = text.lower().rstrip(".")
        labels = name.removeprefix("*.").split(".")
        if not all(_is_label(label) for label in labels) or _is_address(name):
            raise ValueError(f"{text!r} is no host name: write for example prometheus.monitoring.svc or *.tools.svc")
        found.append(name)
    return tuple(found)


def _is_label(text: str) -> bool:
    plain = text.replace("-", "").replace("_", "")
    return bool(plain) and plain.isascii() and plain.isalnum() and len(text) <= 63 and text[0] != "-" != text[-1]


def _is_address(text: str) -> bool:
    return text.replace(".", "").isdigit()
