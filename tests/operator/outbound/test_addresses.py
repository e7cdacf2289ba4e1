"""Which addresses may be connected to, against the list that all guards share."""

from ipaddress import ip_address, ip_network

import pytest

from slipway_operator.outbound.addresses import EgressPolicy, Reach, canonical, reach_of
from tests.support.address_corpus import BLOCKED_ALWAYS, PRIVATE, PUBLIC

pytestmark = pytest.mark.attack_class(8)

EVERYTHING = EgressPolicy(tuple(ip_network(text) for text in ("0.0.0.0/0", "::/0")), ("host", "*.host"))


@pytest.mark.finding(17)
@pytest.mark.parametrize("address", BLOCKED_ALWAYS)
def test_forbidden_address_cannot_be_allowed_by_a_setting(address: str) -> None:
    """Safety 17: fd00:ec2::254, 168.63.129.16, 100.100.100.200 and NAT64 forms were let through."""
    assert reach_of(canonical(address)) in (Reach.FORBIDDEN, Reach.RESERVED)
    assert "a cloud's metadata service or another reserved address" in EVERYTHING.refusal("host", address, 80)


@pytest.mark.finding(17)
@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_an_admins_to_allow(address: str) -> None:
    """Safety 17: private ranges were open to the URLs of every user."""
    assert "operator.outbound.allowedCIDRs" in EgressPolicy().refusal("host", address, 80)
    assert EVERYTHING.refusal("other", address, 80) == ""
    by_name = EgressPolicy(hosts=("prom.monitoring.svc", "*.tools.svc"))
    for host in ("prom.monitoring.svc", "Prom.Monitoring.svc.", "a.tools.svc", "a.b.tools.svc"):
        assert by_name.refusal(host, address, 80) == ""
    for host in ("tools.svc", "eviltools.svc", "prom.monitoring.svc.evil.com", "x.prom.monitoring.svc"):
        assert by_name.refusal(host, address, 80)


def test_a_range_allows_itself_alone() -> None:
    policy = EgressPolicy((ip_network("10.96.0.0/12"), ip_network("fd00:10::/32")))
    allowed = {text for text in PRIVATE if policy.refusal("h", text, 80) == ""}
    assert allowed == {"10.96.0.1"}
    assert policy.refusal("h", "::ffff:10.96.7.7", 80) == policy.refusal("h", "64:ff9b::10.96.7.7", 80) == ""


def test_a_network_that_uses_reserved_addresses_within_names_them_itself() -> None:
    assert EgressPolicy((ip_network("192.0.2.2/32"),)).refusal("h", "192.0.2.2", 80) == ""
    assert EgressPolicy((ip_network("192.0.2.2/32"),)).refusal("h", "192.0.2.2", 8001)
    for wide in ("192.0.0.0/16", "0.0.0.0/0", "127.0.0.0/8", "169.254.169.254/32"):
        policy = EgressPolicy((ip_network(wide),))
        for address in ("192.0.2.2", "127.0.0.1", "169.254.169.254"):
            assert policy.refusal("h", address, 80)


@pytest.mark.parametrize("address", PUBLIC)
def test_the_public_internet_is_open(address: str) -> None:
    assert reach_of(canonical(address)) is Reach.PUBLIC
    assert EgressPolicy().refusal("host", address, 443) == EgressPolicy().refusal("host", address, 8443) == ""


@pytest.mark.finding(17)
@pytest.mark.parametrize("port", [2379, 2380, 6443, 8001, 8443, 10248, 10250, 10255, 10257, 10259])
def test_control_ports_of_the_cluster_are_closed_where_all_else_is_open(port: int) -> None:
    """Safety 17: the gateway's port 8001 among them."""
    assert EVERYTHING.refusal("host", "10.0.0.7", port) == "it is an address or a port of the cluster's own control"


def test_the_api_server_is_closed_on_every_port() -> None:
    policy = EgressPolicy(EVERYTHING.networks, control=(ip_address("10.96.0.1"),))
    for address in ("10.96.0.1", "::ffff:10.96.0.1"):
        assert "the cluster's own control" in policy.refusal("host", address, 443)
    assert policy.refusal("host", "10.96.0.2", 443) == ""


def test_refusal_does_not_disclose_the_resolved_address() -> None:
    for address in (*BLOCKED_ALWAYS, *PRIVATE):
        assert address.partition("%")[0] not in EgressPolicy().refusal("name.tools.svc", address, 80).split()
