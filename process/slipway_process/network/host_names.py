"""Names of pods and gateways in certificates, made of an address and a zone, so that they need no DNS.

`10-0-0-7.team-a.pod.slipway.internal` is the pod of namespace team-a with address 10.0.0.7. A certificate has the name
with `*` in place of the address, and a client takes the address from the name.
"""

from ipaddress import IPv4Address, IPv6Address, ip_address

_ZONE = "slipway.internal"
_GATEWAYS = f"gateway.{_ZONE}"
OPERATOR = f"operator.{_ZONE}"


def pod_zone(namespace: str) -> str:
    """What the names of a namespace's pods end with."""
    return f"{namespace}.pod.{_ZONE}"


def gateway_zone() -> str:
    """What the names of the release's gateways end with."""
    return _GATEWAYS


def wildcard(zone: str) -> str:
    """The name in a certificate, for every address."""
    return f"*.{zone}"


def host_name(address: str, zone: str) -> str:
    """The name of an address; IPv6 in full, because a label neither begins nor ends with a hyphen.

    Raises:
        ValueError: `address` is no IP address.
    """
    parsed = ip_address(address)
    text = parsed.exploded.replace(":", "-") if parsed.version == 6 else str(parsed).replace(".", "-")
    return f"{text}.{zone}"


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """The address in a name; None for a host that is not one of these names."""
    label, _, zone = host.partition(".")
    if not zone.endswith(f".{_ZONE}"):
        return None
    try:
        return ip_address(label.replace("-", "." if label.count("-") == 3 else ":"))
    except ValueError:
        return None


def shown(host: str) -> str:
    """The address in a name of `host_name`, else the host itself: for people and reports."""
    address = address_of(host)
    return host if address is None else str(address)
