"""Reading the firewall: what netavark leaves is found, what others wrote is not."""

from __future__ import annotations

from devcluster.node.host import firewall_chains, firewall_jumps

SAVED = """*nat
:POSTROUTING ACCEPT [0:0]
:NETAVARK-1D8721804F16F - [0:0]
:NETAVARK-HOSTPORT-DNAT - [0:0]
:DOCKER - [0:0]
-A POSTROUTING -j NETAVARK-HOSTPORT-MASQ
-A POSTROUTING -s 10.89.0.0/24 -m comment --comment "name: kind" -j NETAVARK-1D8721804F16F
-A NETAVARK-1D8721804F16F -d 10.89.0.0/24 -j ACCEPT
-A DOCKER -j RETURN
COMMIT
*filter
:NETAVARK_FORWARD - [0:0]
-A FORWARD -m comment --comment "netavark firewall plugin rules" -j NETAVARK_FORWARD
COMMIT
"""


def test_chains_of_the_engines_network() -> None:
    assert firewall_chains(SAVED) == [
        ("nat", "NETAVARK-1D8721804F16F"),
        ("nat", "NETAVARK-HOSTPORT-DNAT"),
        ("filter", "NETAVARK_FORWARD"),
    ]


def test_jumps_from_chains_that_stay() -> None:
    jumps = firewall_jumps(SAVED)
    assert [table for table, _ in jumps] == ["nat", "nat", "filter"]
    assert jumps[0][1] == ["-D", "POSTROUTING", "-j", "NETAVARK-HOSTPORT-MASQ"]
    assert jumps[1][1][6:8] == ["--comment", "name: kind"]
