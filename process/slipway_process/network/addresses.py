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


def _networks(*texts: str) -> tuple[Network, ...]:
    return tuple(ip_network(text) for text in texts)


_PRIVATE = _networks("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
_RESERVED = _networks(
    "192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20"
)
# Some of these are inside a private or a public range, so they are checked first.
_FORBIDDEN = _networks(
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",  # link-local: AWS, GCP, Azure, OpenStack, DigitalOcean, Oracle, Hetzner, Scaleway
    "168.63.129.16/32",  # Azure: the wire server
    "100.100.100.200/32",  # Alibaba Cloud
    "192.0.0.0/24",  # IETF protocols; 192.0.0.192 is Oracle Cloud Classic
    "192.88.99.0/24",  # 6to4 relays
    "224.0.0.0/4",
    "240.0.0.0/4",
    "fd00:ec2::/32",  # AWS: metadata, time, names, credentials of pods
    "fd20:ce::/32",  # GCP
    "fd00:c1::a9fe:a9fe/128",  # Oracle Cloud
    "fd00:42::42/128",  # Scaleway
    "2001::/23",  # IETF protocols, among them Teredo, which embeds an IPv4 address
    "2002::/16",  # 6to4: embeds an IPv4 address
)
_GLOBAL_UNICAST = IPv6Network("2000::/3")
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
    if any(address in network for network in _FORBIDDEN):
        return Reach.FORBIDDEN
    if any(address in network for network in _RESERVED):
        return Reach.RESERVED
    if any(address in network for network in _PRIVATE):
        return Reach.PRIVATE
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return Reach.FORBIDDEN  # ::/96, 64:ff9b:1::/48, fe80::/10, fec0::/10, 100::/64, ff00::/8 and the unassigned
    return Reach.PUBLIC


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
