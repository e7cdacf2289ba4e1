"""Names of addresses: each leads back to its address, and no other host does."""

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_process.network import host_names

ZONE = host_names.pod_zone("team-a")


@given(st.ip_addresses())
def test_a_name_leads_back_to_its_address(address):
    name = host_names.host_name(str(address), ZONE)
    label, _, zone = name.partition(".")
    assert zone == ZONE
    assert len(label) <= 63
    assert not label.startswith("-")
    assert not label.endswith("-")
    assert host_names.address_of(name) == address
    assert host_names.shown(name) == str(address)


def test_a_name_is_that_of_one_namespace():
    assert host_names.host_name("10.0.0.7", ZONE) == "10-0-0-7.team-a.pod.slipway.internal"
    assert host_names.host_name("10.0.0.7", host_names.gateway_zone()) == "10-0-0-7.gateway.slipway.internal"
    assert host_names.address_of("10-0-0-7.team-a.pod.slipway.internal") == IPv4Address("10.0.0.7")
    seven = "2001-0db8-0000-0000-0000-0000-0000-0007.gateway.slipway.internal"
    assert host_names.host_name("2001:db8::7", host_names.gateway_zone()) == seven
    assert host_names.address_of(seven) == IPv6Address("2001:db8::7")


@pytest.mark.parametrize(
    "host", ["10.0.0.7", "example.com", "10-0-0-7.team-a.pod.example.com", "chat.team-a.pod.slipway.internal", "", "a."]
)
def test_another_host_has_no_address_in_its_name(host):
    assert host_names.address_of(host) is None
    assert host_names.shown(host) == host
