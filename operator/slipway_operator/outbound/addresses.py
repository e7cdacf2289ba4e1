"""Which addresses the operator may connect to on behalf of tenants; pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_network

from slipway_process.network.addresses import (
    CLUSTER_PORTS,
    OWN_PORTS,
    Address,
    Network,
    Reach,
    canonical,
    matches,
    parse_hosts,
    reach_of,
)

__all__ = ["Address", "EgressPolicy", "Network", "Reach", "canonical", "parse_hosts", "parse_networks", "reach_of"]

SETTINGS = "operator.outbound.allowedCIDRs or operator.outbound.allowedHosts of the chart"


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """The destinations that a cluster's admin allows."""

    networks: tuple[Network, ...] = ()  # private ranges that may be called
    hosts: tuple[str, ...] = ()  # host names that may be called at private addresses: "a.b.svc", or "*.b.svc"
    control: tuple[Address, ...] = ()  # addresses of the API server, which may not be called
    loopback: bool = False  # allow this machine: only tests do, no setting

    def refusal(self, host: str, address: str, port: int) -> str:
        """Return why a connection is forbidden; empty when it is allowed. `address` is what `host` resolved to.

        The message contains no address: tenants must not learn what a name resolves to inside a cluster.
        """
        try:
            found = canonical(address)
        except ValueError:
            return "it is at no IP address"
        if self.loopback and found.is_loopback:
            return ""
        reach = reach_of(found)
        if reach is Reach.FORBIDDEN or (reach is Reach.RESERVED and not self._names(found)):
            return "it is this machine, link-local, multicast, a cloud's metadata service or another reserved address"
        if found in self.control or port in CLUSTER_PORTS or (port in OWN_PORTS and reach is not Reach.PUBLIC):
            return "it is an address or a port of the cluster's own control"
        if reach is not Reach.PRIVATE or self._allows(host, found):
            return ""
        return f"it is at a private address; an admin allows it by {SETTINGS}"

    def _names(self, address: Address) -> bool:
        """Whether an allowed range that is itself reserved contains the address; wider ranges allow no reserved one."""
        return any(
            address in network and reach_of(network.network_address) is Reach.RESERVED for network in self.networks
        )

    def _allows(self, host: str, address: Address) -> bool:
        return any(address in network for network in self.networks) or any(
            matches(host, pattern) for pattern in self.hosts
        )


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Parse the ranges of a setting.

    Raises:
        ValueError: when one is invalid; the message names it.
    """
    found = []
    for text in texts:
        try:
            found.append(ip_network(text))
        except ValueError as error:
            raise ValueError(f"{text!r} is no address range: write for example 10.96.0.0/12") from error
    return tuple(found)
