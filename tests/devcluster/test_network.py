"""Reading the firewall: what belongs to our network is found, what belongs to others is not."""

from __future__ import annotations

import json

from devcluster.node.network import (
    Network,
    chains_of,
    parse_chains,
    parse_network,
    parse_rules,
    rules_to_delete,
    shared_by_others,
)

OURS, OTHERS = "NETAVARK-62F930FC96F2B", "NETAVARK-1D8721804F16F"
SUBNETS = {"10.89.1.0/24"}
SAVED = f"""*nat
:POSTROUTING ACCEPT [0:0]
:{OTHERS} - [0:0]
:{OURS} - [0:0]
:NETAVARK-DN-62F930FC96F2B - [0:0]
:NETAVARK-HOSTPORT-DNAT - [0:0]
:DOCKER - [0:0]
-A POSTROUTING -j NETAVARK-HOSTPORT-MASQ
-A POSTROUTING -s 10.89.0.0/24 -m comment --comment "name: kind" -j {OTHERS}
-A POSTROUTING -s 10.89.1.0/24 -j {OURS}
-A {OTHERS} -d 10.89.0.0/24 -j ACCEPT
-A {OURS} -d 10.89.1.0/24 -j ACCEPT
-A NETAVARK-HOSTPORT-DNAT -p tcp --dport 18081 -j NETAVARK-DN-62F930FC96F2B
-A DOCKER -j RETURN
COMMIT
*filter
:NETAVARK_FORWARD - [0:0]
-A FORWARD -m comment --comment "netavark firewall plugin rules" -j NETAVARK_FORWARD
-A NETAVARK_FORWARD -s 10.89.1.0/24 -j ACCEPT
COMMIT
"""


def test_chains_of_our_subnet_only() -> None:
    assert chains_of(parse_rules(SAVED), SUBNETS) == {OURS, "NETAVARK-DN-62F930FC96F2B"}
    assert chains_of(parse_rules(SAVED), set()) == set()


def test_rules_that_lead_to_us_from_chains_that_stay() -> None:
    rules = parse_rules(SAVED)
    found = rules_to_delete(rules, SUBNETS, chains_of(rules, SUBNETS))
    assert [(rule.table, rule.chain) for rule in found] == [
        ("nat", "POSTROUTING"),
        ("nat", "NETAVARK-HOSTPORT-DNAT"),
        ("filter", "NETAVARK_FORWARD"),
    ]


def test_common_chains_stay_while_another_network_uses_them() -> None:
    chains = parse_chains(SAVED)
    assert ("nat", OTHERS) in chains and ("nat", "DOCKER") not in chains
    assert shared_by_others(chains)
    assert not shared_by_others([("nat", "NETAVARK-HOSTPORT-DNAT"), ("filter", "NETAVARK_FORWARD")])


def test_quoted_comments_stay_one_word() -> None:
    rule = next(rule for rule in parse_rules(SAVED) if OTHERS in rule.words)
    assert "name: kind" in rule.words


def test_podmans_file_about_a_network() -> None:
    text = json.dumps(
        {"network_interface": "podman2", "subnets": [{"subnet": "10.89.1.0/24"}, {"subnet": "fc00::/64"}]}
    )
    assert parse_network(text) == Network("podman2", ("10.89.1.0/24", "fc00::/64"))
